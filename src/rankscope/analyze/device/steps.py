"""Where the time of a step went, on the device and on the host."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.derived import derived
from rankscope.analyze.device.events import DATA_LOADER, percent, processes_of, with_process
from rankscope.analyze.intervals import Intervals, Moments, Segments, added_within, covered_ns, sweep, union
from rankscope.analyze.metric import EVERYTHING, Selection, metric
from rankscope.model.sql import quote_text
from rankscope.model.tables import Array, Table, Trace

# What may go on at a moment, the more important first; a moment counts for the first of those that do.
_CATEGORIES = ("kernel", "memcpy", "memset", "device_comm", "host_comm", "runtime", "data_loader", "cpu")
_PARTS = {
    "kernel_ns": ("kernel",),
    "memcpy_ns": ("memcpy",),
    "memset_ns": ("memset",),
    "communication_ns": ("device_comm", "host_comm"),
    "runtime_ns": ("runtime",),
    "data_loader_ns": ("data_loader",),
    "cpu_ns": ("cpu",),
}
_ON_DEVICE = sum(1 << _CATEGORIES.index(name) for name in ("kernel", "memcpy", "memset", "device_comm"))


class Windows(NamedTuple):
    """The time of each step of each process; the whole trace (step -1) if no step was marked."""

    process: Array
    step: Array
    start: Array
    end: Array

    def covered(self, intervals: Intervals) -> Array:
        """Per window, the time that the intervals of its process cover."""
        return covered_ns(intervals, self.start, self.end, self.process)

    def added(self, amounts: Array, time: Array, process: Array) -> Array:
        """Per window, the sum of the amounts whose moment lies in it."""
        return added_within(Moments(process, time, amounts), self.start, self.end, self.process)[1]

    def with_device(self, trace: Trace) -> Windows:
        """Those of processes that have work on a device."""
        return self.of_processes(
            with_process(trace, trace.sql("SELECT DISTINCT file_id, rank FROM kernels").columns())["process"]
        )

    def of_processes(self, processes: Array) -> Windows:
        rows = np.isin(self.process, processes)
        return Windows(*(column[rows] for column in self))

    def as_intervals(self) -> Intervals:
        return union(self.start, self.end, self.process)

    def per_process(self, per_window: Array, n_processes: int) -> Array:
        totals = np.zeros(n_processes, np.int64)
        np.add.at(totals, self.process, per_window)
        return totals


# A step ends with its mark or with the last work it launched, whichever is later; the next one begins no earlier.
_MARKED = """
    SELECT s.file_id, s.rank, s.step, s.start_ns,
           max(greatest(s.start_ns + s.duration_ns, coalesce(k.end_ns, 0))) OVER steps_so_far AS end_ns
    FROM steps AS s LEFT JOIN (
        SELECT file_id, rank, step, max(start_ns + duration_ns) AS end_ns FROM kernels GROUP BY ALL
    ) AS k ON k.file_id = s.file_id AND k.rank = s.rank AND k.step = s.step
    WINDOW steps_so_far AS (PARTITION BY s.file_id, s.rank ORDER BY s.start_ns ROWS UNBOUNDED PRECEDING)
"""
_WHOLE = " UNION ALL ".join(
    f"SELECT file_id, rank, start_ns, start_ns + duration_ns AS end_ns FROM {table}"
    for table in ("kernels", "ops", "runtime_calls", "comms", "annotations")
)
_WINDOWS = f"""
    SELECT file_id, rank, step,
           greatest(start_ns, lag(end_ns, 1, 0) OVER (PARTITION BY file_id, rank ORDER BY start_ns)) AS start_ns, end_ns
    FROM ({_MARKED})
    UNION ALL
    SELECT file_id, rank, NULL, min(start_ns), max(end_ns)
    FROM ({_WHOLE}) ANTI JOIN steps USING (file_id, rank) GROUP BY file_id, rank
"""


def step_windows(trace: Trace, selection: Selection) -> Windows:
    is_all = selection.where() == EVERYTHING.where()
    return derived(trace, _every_window) if is_all else _chosen_windows(trace, selection)


def _every_window(trace: Trace) -> Windows:
    return _chosen_windows(trace, EVERYTHING)


def _chosen_windows(trace: Trace, selection: Selection) -> Windows:
    columns = with_process(
        trace,
        trace.sql(f"""
            SELECT file_id, rank, step, start_ns, greatest(start_ns, end_ns) AS end_ns
            FROM ({_WINDOWS}) WHERE {selection.where()} ORDER BY file_id, rank, start_ns
        """).columns(),
    )
    return Windows(columns["process"], columns["step"], columns["start_ns"], columns["end_ns"])


_SPAN = "file_id, rank, start_ns, start_ns + duration_ns AS end_ns"
_IS_LOADER = f"regexp_matches(name, {quote_text(DATA_LOADER)}, 'i')"


def loading_time(trace: Trace) -> Intervals:
    """When the host loaded data, per process."""
    columns = with_process(
        trace,
        trace.sql(f"""
            SELECT {_SPAN} FROM annotations WHERE kind = 'host' AND {_IS_LOADER}
            UNION ALL SELECT {_SPAN} FROM ops WHERE {_IS_LOADER}
        """).columns(),
    )
    return union(columns["start_ns"], columns["end_ns"], columns["process"])


def _events() -> str:
    """Everything that takes time, with its place in _CATEGORIES."""
    number = {name: index for index, name in enumerate(_CATEGORIES)}
    span, is_loader = _SPAN, _IS_LOADER
    return f"""
        SELECT {span}, (CASE WHEN type = 'communication' THEN {number["device_comm"]}
                             WHEN kind = 'memset' THEN {number["memset"]}
                             WHEN kind = 'memcpy' OR type = 'memory' THEN {number["memcpy"]}
                             ELSE {number["kernel"]} END)::TINYINT AS category FROM kernels
        UNION ALL SELECT {span}, {number["host_comm"]} FROM comms WHERE kernel_id IS NULL
        UNION ALL SELECT {span}, {number["runtime"]} FROM runtime_calls
        UNION ALL SELECT {span}, CASE WHEN {is_loader} THEN {number["data_loader"]} ELSE {number["cpu"]} END FROM ops
        UNION ALL SELECT {span}, {number["data_loader"]} FROM annotations WHERE kind = 'host' AND {is_loader}
    """


def _swept_events(trace: Trace) -> Segments:
    events = with_process(trace, trace.sql(_events()).columns())
    return sweep(events["start_ns"], events["end_ns"], events["category"], events["process"])


@metric("steps", "step_breakdown", needs=("profiles",))
def steps(trace: Trace, selection: Selection) -> Table:
    """One row per traced process and step: where its time went.

    Overlapping activities are counted once, in this order: a kernel that does not communicate, a copy, a fill,
    communication (on the device or, with gloo, on the host), a call into the device's runtime, data loading, an
    operator on the host. The rest is other: Python code, garbage collection, waiting. So communication is exposed
    communication, and host time is the time when the device ran nothing.

    A step runs from its mark, or from the end of the previous step if that is later, to the end of its mark or of the
    last work it launched on the device, whichever is later. If no step was marked, the row is the whole trace.
    """
    windows = step_windows(trace, selection)
    segments = _swept_events(trace)
    first = (segments.kinds & -segments.kinds).astype(np.int64)
    parts = {
        column: windows.covered(segments.where(np.isin(first, [1 << _CATEGORIES.index(name) for name in names])))
        for column, names in _PARTS.items()
    }
    duration = windows.end - windows.start
    busy = windows.covered(segments.where((segments.kinds & _ON_DEVICE) != 0))
    known = processes_of(trace)
    return Table(
        "step_breakdown",
        {
            "file_id": known.file_id[windows.process],
            "rank": known.rank[windows.process],
            "step": windows.step,
            "start_ns": windows.start,
            "duration_ns": duration,
            **parts,
            "other_ns": duration - sum(parts.values()),
            "device_busy_ns": busy,
            "device_busy_pct": percent(busy, duration),
        },
    )
