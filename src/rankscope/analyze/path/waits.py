"""What waited for what within a process: the host for work, and streams for the events of other streams.

If a trace has synchronization events (cuda_sync), they say so. If it has none, as is usual, the host's waits are
recognized by the names of its calls; those of streams are inferred in path_links.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.device.events import with_process
from rankscope.analyze.intervals import last_begun, union
from rankscope.analyze.path.work import Timeline, Work, aligned, numbered, same_process
from rankscope.model.tables import MISSING, Array, Trace

# The device's clock is tied to the host's to within microseconds: a wait may seem to end before what it waited for.
_CLOCK_SLACK_NS = 10_000
# So much work of other threads, launched during a wait, may have ended before it did until we give up looking.
_MAX_LATER_LAUNCHES = 64
# Queues of CUDA take about a thousand launches. One that takes so long with so many before it was held up by them.
_MIN_FULL_QUEUE_NS = 100_000
_MIN_QUEUED = 256


class HostWaits(NamedTuple):
    """Calls that return only when work is done, by process and end."""

    process: Array
    tid: Array
    call_id: Array
    """MISSING for a wait inside another call: for a copy, or for a collective on the host."""
    start: Array
    end: Array
    work: Array
    """What was waited for."""

    def is_blocking(self, work: Work) -> Array:
        """Whether the work was still to be done when the host began to wait."""
        return work.end[self.work] > self.start


class StreamWaits(NamedTuple):
    """Work that could not start before work of another stream had ended."""

    work: Array
    awaited: Array


def find_host_waits(trace: Trace, work: Work) -> HostWaits:
    parts = (
        _synchronizing_calls(trace, work),
        _blocking_copies(work),
        _full_queues(work),
        _waits_for_host_collectives(trace, work),
    )
    waits = HostWaits(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    order = np.lexsort((waits.end, waits.process))
    return HostWaits(*(column[order] for column in waits))


# Threads that launch nothing (pinning memory, watchdogs) wait on their own account.
_CALLS = f"""
WITH calls AS (
    SELECT file_id, rank, tid, call_id, correlation, start_ns, start_ns + duration_ns AS end_ns FROM runtime_calls
    SEMI JOIN (SELECT DISTINCT file_id, launch_tid AS tid FROM kernels) USING (file_id, tid)
    WHERE name ILIKE '%synchronize%'
), recorded AS (
    SELECT file_id, rank, correlation, min(start_ns) AS start_ns FROM runtime_calls
    WHERE name ILIKE '%eventrecord%' AND correlation > 0 GROUP BY file_id, rank, correlation
)
SELECT c.file_id, c.rank, c.tid, c.call_id, c.start_ns, c.end_ns, s.device,
       CASE s.kind WHEN 'stream' THEN s.stream WHEN 'event' THEN s.wait_on_stream END AS stream_id,
       CASE WHEN s.kind = 'event' THEN coalesce(r.start_ns, c.start_ns) ELSE c.start_ns END AS until_ns
FROM calls AS c
LEFT JOIN syncs AS s
    ON {same_process("s", "c")} AND s.correlation = c.correlation AND c.correlation > 0
       AND s.kind IS DISTINCT FROM 'stream-wait'
LEFT JOIN recorded AS r ON {same_process("r", "c")} AND r.correlation = s.wait_on_call
"""


def _synchronizing_calls(trace: Trace, work: Work) -> HostWaits:
    """Waits for what had been launched on the stream, if that is known; else for what ended last before the return."""
    calls = with_process(trace, trace.sql(_CALLS).columns())
    process = calls["process"]
    start, end, until = (aligned(trace, process, calls[name]) for name in ("start_ns", "end_ns", "until_ns"))
    stream = _stream_rows(work, process, calls["device"], calls["stream_id"])
    awaited = _launched_last(work, stream, until)
    unknown = stream < 0
    awaited[unknown] = _ended_last(work, process[unknown], start[unknown], end[unknown] + _CLOCK_SLACK_NS)
    is_known = awaited >= 0
    columns = (process, calls["tid"], calls["call_id"], start, end, awaited)
    return HostWaits(*(column[is_known] for column in columns))


def _blocking_copies(work: Work) -> HostWaits:
    """A copy from or to pageable memory is over when its call returns."""
    rows = np.flatnonzero(work.is_copy & (work.launch >= 0) & (work.end <= work.launch_end))
    no_call = np.full(len(rows), MISSING)
    return HostWaits(work.process[rows], work.tid[rows], no_call, work.launch[rows], work.launch_end[rows], rows)


def _full_queues(work: Work) -> HostWaits:
    """A launch that finds the queue full returns only when the device has come so far."""
    slow = np.flatnonzero((work.launch >= 0) & (work.launch_end - work.launch >= _MIN_FULL_QUEUE_NS))
    process, launch = work.process[slow], work.launch[slow]
    launched = np.flatnonzero(work.launch >= 0)
    n_launched, n_begun = (
        Timeline(launched, work.process[launched], times[launched]).n_happened(process, launch)
        for times in (work.launch, work.start)
    )
    rows = slow[n_launched - n_begun >= _MIN_QUEUED]
    awaited = _ended_last(work, work.process[rows], work.launch[rows], work.launch_end[rows])
    rows, awaited = rows[awaited >= 0], awaited[awaited >= 0]
    no_call = np.full(len(rows), MISSING)
    return HostWaits(work.process[rows], work.tid[rows], no_call, work.launch[rows], work.launch_end[rows], awaited)


def _waits_for_host_collectives(trace: Trace, work: Work) -> HostWaits:
    """A collective on the host leaves no trace of who waits for it: the host does if it runs no operator at its end."""
    rows = np.flatnonzero(work.on_host)
    if not len(rows):
        return HostWaits(*(np.empty(0, np.int64) for _ in HostWaits._fields))
    process = work.process[rows]
    ops = with_process(
        trace, trace.sql("SELECT file_id, rank, start_ns, start_ns + duration_ns AS end_ns FROM ops").columns()
    )
    starts, ends = (aligned(trace, ops["process"], ops[name]) for name in ("start_ns", "end_ns"))
    busy = union(starts, ends, ops["process"])
    idle_since = work.launch_end[rows]
    last = last_begun(busy, work.end[rows], process)
    idle_since[last >= 0] = busy.end[last[last >= 0]]
    waits = idle_since < work.end[rows]
    rows = rows[waits]
    no_call = np.full(len(rows), MISSING)
    return HostWaits(process[waits], work.tid[rows], no_call, idle_since[waits], work.end[rows], rows)


_STREAM_WAITS = f"""
WITH calls AS (
    SELECT file_id, rank, correlation, min(start_ns) AS start_ns FROM runtime_calls WHERE correlation > 0
    GROUP BY file_id, rank, correlation
)
SELECT s.file_id, s.rank, s.device, s.stream, s.wait_on_stream,
       coalesce(w.start_ns, s.start_ns) AS waited_ns, coalesce(r.start_ns, w.start_ns, s.start_ns) AS recorded_ns
FROM syncs AS s
LEFT JOIN calls AS w ON {same_process("w", "s")} AND w.correlation = s.correlation
LEFT JOIN calls AS r ON {same_process("r", "s")} AND r.correlation = s.wait_on_call
WHERE s.kind = 'stream-wait' AND s.stream >= 0 AND s.wait_on_stream >= 0
"""


def recorded_stream_waits(trace: Trace, work: Work) -> StreamWaits:
    """Work launched after its stream began to wait for an event waits for the work launched before that event."""
    events = with_process(trace, trace.sql(_STREAM_WAITS).columns())
    process = events["process"]
    waited, recorded = (aligned(trace, process, events[name]) for name in ("waited_ns", "recorded_ns"))
    first = _launched_first(work, _stream_rows(work, process, events["device"], events["stream"]), waited)
    awaited = _launched_last(work, _stream_rows(work, process, events["device"], events["wait_on_stream"]), recorded)
    is_wait = (first >= 0) & (awaited >= 0) & (work.end[awaited] <= work.start[first] + _CLOCK_SLACK_NS)
    return StreamWaits(first[is_wait], awaited[is_wait])


def _stream_rows(work: Work, process: Array, device: Array, stream_id: Array) -> Array:
    """The number of each recorded stream; MISSING for one on which nothing ran."""
    firsts = np.flatnonzero(np.diff(work.stream, prepend=-1))
    columns = (work.process[firsts], work.device[firsts], work.stream_id[firsts])
    keys = list(zip(*(column.tolist() for column in columns), strict=True))
    number = {(owner, MISSING, name): row for row, (owner, _, name) in reversed(list(enumerate(keys)))}
    number.update({key: row for row, key in enumerate(keys)})
    wanted = numbered(process, device, stream_id)
    _, firsts, position = np.unique(wanted, return_index=True, return_inverse=True)
    asked = zip(process[firsts].tolist(), device[firsts].tolist(), stream_id[firsts].tolist(), strict=True)
    return np.array([number.get(key, MISSING) for key in asked], np.int64)[position.ravel()]


def _launched_last(work: Work, stream: Array, time: Array) -> Array:
    """Per stream and moment: the last work launched there until then; MISSING where there is none."""
    rows = np.flatnonzero(work.launch >= 0)
    return Timeline(rows, work.stream[rows], work.launch[rows]).last(stream, time)


def _launched_first(work: Work, stream: Array, time: Array) -> Array:
    """Per stream and moment: the first work launched there after it; MISSING where there is none."""
    rows = np.flatnonzero(work.launch >= 0)
    return Timeline(rows, work.stream[rows], -work.launch[rows]).last(stream, -time - 1)


def _ended_last(work: Work, process: Array, launched_by: Array, ended_by: Array) -> Array:
    """Per process and pair of moments: of the work launched until the first, what ended last until the second."""
    ends = Timeline(np.arange(len(work.process)), work.process, work.end)
    position = ends.place(process, ended_by)
    last = np.full(len(process), MISSING)
    open_waits = np.flatnonzero(position >= 0)
    for _ in range(_MAX_LATER_LAUNCHES):
        candidate, owner = ends.at(position[open_waits])
        fits = (owner == process[open_waits]) & (work.launch[candidate] <= launched_by[open_waits])
        last[open_waits[fits]] = candidate[fits]
        open_waits = open_waits[~fits & (owner == process[open_waits])]
        position[open_waits] -= 1
        open_waits = open_waits[position[open_waits] >= 0]
    return last
