"""All work of a capture in the order of its streams and on one clock: the basis of the critical path and the replay.

Work is what a device did: kernels, copies, fills and communication. Collectives that ran on the host (gloo) are work
too, on a separate stream: the thread that ran them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.derived import derived
from rankscope.analyze.device.events import processes_of, with_process
from rankscope.analyze.intervals import Intervals, last_begun
from rankscope.model.tables import MISSING, Array, Trace


class Processes(NamedTuple):
    """The traced processes; everything else names them by their row here."""

    file_id: Array
    rank: Array
    start: Array
    """Of the first step, or of the first event where no steps are marked."""
    end: Array
    """Of the last step, or of the last event on the host."""


class Work(NamedTuple):
    """By process, stream and start. What the trace does not contain is MISSING."""

    process: Array
    key: Array
    """kernel_id; comm_id of what ran on the host."""
    stream: Array
    """Numbered over all processes."""
    device: Array
    stream_id: Array
    """As recorded."""
    start: Array
    end: Array
    launch: Array
    launch_end: Array
    tid: Array
    """Of the thread that launched it."""
    step: Array
    match: Array
    n_bytes: Array
    """Of a collective or transfer."""
    is_comm: Array
    is_p2p: Array
    is_copy: Array
    on_host: Array

    @property
    def before(self) -> Array:
        """The work before on the same stream, MISSING for the first."""
        row = np.arange(len(self.stream)) - 1
        row[1:][self.stream[1:] != self.stream[:-1]] = MISSING
        return row


class Steps(NamedTuple):
    """The marked steps of each process, in order."""

    process: Array
    step: Array
    start: Array
    end: Array


class Job(NamedTuple):
    processes: Processes
    work: Work
    steps: Steps


def job_of(trace: Trace) -> Job:
    return derived(trace, _load_job)


def same_process(left: str, right: str) -> str:
    """The condition that two rows belong to one process: a file may hold several, and the rank may not be known."""
    return f"{left}.file_id = {right}.file_id AND coalesce({left}.rank, {MISSING}) = coalesce({right}.rank, {MISSING})"


class Timeline:
    """Rows that happen at a time, each in its group: finds the last one that had happened at a moment."""

    def __init__(self, rows: Array, group: Array, time: Array) -> None:
        order = np.lexsort((time, group))
        self._rows = rows[order]
        self._events = Intervals(group[order], time[order], time[order])

    def last(self, group: Array, moment: Array) -> Array:
        """Per group and moment; MISSING where nothing had happened yet."""
        position = self.place(group, moment)
        return np.where(position >= 0, self._rows[position], MISSING) if len(self._rows) else position

    def n_happened(self, group: Array, moment: Array) -> Array:
        position = self.place(group, moment)
        return np.where(position >= 0, position + 1 - np.searchsorted(self._events.group, group), 0)

    def place(self, group: Array, moment: Array) -> Array:
        """In the order of group and time."""
        return last_begun(self._events, moment, group)

    def at(self, position: Array) -> tuple[Array, Array]:
        """The rows at places in that order, and their groups."""
        return self._rows[position], self._events.group[position]


def numbered(*columns: Array) -> Array:
    """A number per distinct combination of values."""
    order = np.lexsort(columns)
    is_new = np.zeros(len(order), bool)
    for column in columns:
        is_new[1:] |= column[order][1:] != column[order][:-1]
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(is_new)
    return number


def aligned(trace: Trace, process: Array, time: Array) -> Array:
    """Times of traced processes on the common clock; what is MISSING stays so."""
    offset, drift, at = derived(trace, _clocks)
    shown = time - offset[process] - np.rint((time - at[process]) * drift[process]).astype(np.int64)
    return np.where(time == MISSING, MISSING, shown)


def _clocks(trace: Trace) -> tuple[Array, Array, Array]:
    """Per process: its offset, its drift, and the moment at which the offset holds."""
    processes, clocks = processes_of(trace), trace.table("profile_clocks")
    offset, at = np.zeros((2, len(processes)), np.int64)
    drift = np.zeros(len(processes))
    row_of = {key: row for row, key in enumerate(zip(processes.file_id.tolist(), processes.rank.tolist(), strict=True))}
    for clock in clocks.rows():
        row = row_of.get((clock["file_id"], clock["rank"]))
        if row is not None:
            offset[row], at[row] = clock["offset_ns"], clock["at_ns"]
            drift[row] = np.nan_to_num(clock["drift_ppb"]) / 1e9
    return offset, drift, at


def _load_job(trace: Trace) -> Job:
    columns = with_process(trace, trace.sql(_STEPS).columns())
    process = columns["process"]
    start, end = (aligned(trace, process, columns[name]) for name in ("start_ns", "end_ns"))
    return Job(_load_processes(trace), _load_work(trace), Steps(process, columns["step"], start, end))


_STEPS = """
SELECT file_id, rank, step, start_ns, start_ns + duration_ns AS end_ns FROM steps ORDER BY file_id, rank, start_ns
"""


_HOST_SPANS = f"""
WITH marked AS (
    SELECT file_id, rank, min(start_ns) AS start_ns, max(start_ns + duration_ns) AS end_ns FROM steps
    GROUP BY file_id, rank
), everything AS (
    SELECT file_id, rank, min(start_ns) AS start_ns, max(start_ns + duration_ns) AS end_ns
    FROM (SELECT file_id, rank, start_ns, duration_ns FROM ops
          UNION ALL SELECT file_id, rank, start_ns, duration_ns FROM runtime_calls
          UNION ALL SELECT file_id, rank, start_ns, duration_ns FROM annotations WHERE kind = 'host'
          UNION ALL SELECT file_id, rank, coalesce(launch_start_ns, start_ns), 0 FROM kernels
          UNION ALL SELECT file_id, rank, start_ns, 0 FROM comms)
    GROUP BY file_id, rank
)
SELECT file_id, rank, start_ns, end_ns FROM marked
UNION ALL SELECT e.file_id, e.rank, e.start_ns, e.end_ns FROM everything AS e
    ANTI JOIN marked AS m ON {same_process("e", "m")}
"""


def _load_processes(trace: Trace) -> Processes:
    known = processes_of(trace)
    spans = with_process(trace, trace.sql(_HOST_SPANS).columns())
    bounds = np.zeros((2, len(known)), np.int64)
    for bound, name in zip(bounds, ("start_ns", "end_ns"), strict=True):
        bound[spans["process"]] = aligned(trace, spans["process"], spans[name])
    return Processes(known.file_id, known.rank, *bounds)


# Executions of whole graphs (type other) enclose the work that counts. A collective on the host was asked for by the
# last call into torch's library of collectives before it.
_WORK = f"""
WITH described AS (
    SELECT c.file_id, c.rank, c.comm_id, c.kernel_id, c.is_p2p, c.n_bytes, c.tid, c.start_ns, c.duration_ns, c.step,
           m.match_id
    FROM comms AS c LEFT JOIN comm_calls AS m ON {same_process("c", "m")} AND c.comm_id = m.comm_id
), called AS (
    SELECT file_id, rank, tid, start_ns, start_ns + duration_ns AS end_ns FROM ops WHERE name LIKE 'c10d::%'
), everything AS (
    SELECT k.file_id, k.rank, k.kernel_id AS key, false AS on_host, k.device, k.stream, k.start_ns, k.duration_ns,
           k.launch_start_ns, k.launch_end_ns, k.launch_tid, k.step, d.match_id, d.n_bytes,
           k.type = 'communication' AS is_comm, d.is_p2p, k.type = 'memory' AS is_copy
    FROM kernels AS k LEFT JOIN described AS d ON {same_process("k", "d")} AND k.kernel_id = d.kernel_id
    WHERE k.type IS DISTINCT FROM 'other'
    UNION ALL
    SELECT d.file_id, d.rank, d.comm_id, true, {MISSING}, d.tid, d.start_ns, d.duration_ns,
           coalesce(o.start_ns, d.start_ns), coalesce(o.end_ns, d.start_ns), o.tid, d.step, d.match_id, d.n_bytes, true,
           d.is_p2p, false
    FROM described AS d ASOF LEFT JOIN called AS o ON {same_process("d", "o")} AND d.start_ns >= o.start_ns
    WHERE d.kernel_id IS NULL
)
SELECT file_id, rank, key, on_host, is_comm, is_p2p, is_copy, start_ns AS "start", start_ns + duration_ns AS "end",
       dense_rank() OVER (ORDER BY file_id, rank, on_host, device, stream) - 1 AS stream,
       device, stream AS stream_id, launch_start_ns AS launch, launch_end_ns AS launch_end, launch_tid AS tid, step,
       match_id AS match, n_bytes
FROM everything ORDER BY 10, "start", "end", key
"""
_TIMES = ("start", "end", "launch", "launch_end")


def _load_work(trace: Trace) -> Work:
    columns = with_process(trace, trace.sql(_WORK).columns())
    process = columns["process"]
    for name in _TIMES:
        columns[name] = aligned(trace, process, columns[name])
    return Work(**{name: columns[name] for name in Work._fields})
