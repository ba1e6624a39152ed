"""What the host did on its parts of the critical path: its outermost operators, calls and waits for data."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.device.events import DATA_LOADER, processes_of, with_process
from rankscope.analyze.intervals import Intervals, last_begun
from rankscope.analyze.path.work import aligned, same_process
from rankscope.model.sql import quote_text
from rankscope.model.tables import Array, Trace

# Where the name of a piece is found.
NOWHERE, KERNELS, COMMS, OPS, CALLS, LOADERS = range(6)

_LOADERS = f"""
    SELECT file_id, rank, tid, row_number() OVER (ORDER BY file_id, tid, start_ns, name) AS id, name, start_ns,
           duration_ns
    FROM annotations WHERE kind = 'host' AND regexp_matches(name, {quote_text(DATA_LOADER)}, 'i')
"""
# The threads that launch, if there are any: others work for themselves. An event that begins inside another one of its
# thread is part of that.
_ACTIVITIES = f"""
WITH events AS (
    SELECT file_id, rank, tid, op_id AS id, {OPS} AS source, start_ns, duration_ns FROM ops
    UNION ALL SELECT file_id, rank, tid, call_id, {CALLS}, start_ns, duration_ns FROM runtime_calls
    UNION ALL SELECT file_id, rank, tid, id, {LOADERS}, start_ns, duration_ns FROM ({_LOADERS})
), launching AS (
    SELECT DISTINCT file_id, launch_tid AS tid FROM kernels WHERE launch_tid IS NOT NULL
), theirs AS (
    SELECT * FROM events SEMI JOIN launching USING (file_id, tid)
    UNION ALL SELECT * FROM events ANTI JOIN launching USING (file_id)
), nested AS (
    SELECT *, max(start_ns + duration_ns) OVER (
        PARTITION BY file_id, tid ORDER BY start_ns, duration_ns DESC, source DESC
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS busy_until
    FROM theirs
)
SELECT file_id, rank, tid, id, source, start_ns, start_ns + duration_ns AS end_ns
FROM nested WHERE busy_until IS NULL OR start_ns >= busy_until ORDER BY start_ns
"""


class Activities(NamedTuple):
    """Outermost events of the host by process and start, each cut short where the next one begins."""

    process: Array
    source: Array
    key: Array
    start: Array
    end: Array


class Stretches(NamedTuple):
    """Pieces of stretches on the host: activities, and NOWHERE where there was none."""

    stretch: Array
    """The row of the stretch that was given."""
    source: Array
    key: Array
    start: Array
    end: Array


def load_activities(trace: Trace) -> Activities:
    rows = with_process(trace, trace.sql(_ACTIVITIES).columns())
    process = rows["process"]
    start, end = (aligned(trace, process, rows[name]) for name in ("start_ns", "end_ns"))
    order = np.lexsort((start, process))
    process, start, end = process[order], start[order], end[order]
    follows = process[1:] == process[:-1]
    end[:-1][follows] = np.minimum(end[:-1], start[1:])[follows]
    return Activities(process, rows["source"][order], rows["id"][order], start, end)


def cut_stretches(activities: Activities, process: Array, start: Array, end: Array) -> Stretches:
    """Divides stretches of time on the host by what it did; in order of stretch and time."""
    known = Intervals(activities.process, activities.start, activities.end)
    first = last_begun(known, start, process)
    # Where none had begun before, the first one of the process may still begin inside.
    first = np.where(first >= 0, first, np.searchsorted(activities.process, process))
    last = last_begun(known, end - 1, process)
    counts = np.maximum(last - first + 1, 0)
    stretch = np.repeat(np.arange(len(start)), counts)
    row = np.arange(len(stretch)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    inside = Stretches(
        stretch,
        activities.source[row],
        activities.key[row],
        np.maximum(activities.start[row], start[stretch]),
        np.minimum(activities.end[row], end[stretch]),
    )
    inside = Stretches(*(column[inside.end > inside.start] for column in inside))
    return _with_pauses(inside, start, end)


def _with_pauses(inside: Stretches, start: Array, end: Array) -> Stretches:
    """Fills what the activities leave open."""
    edges = np.concatenate((np.arange(len(start)), inside.stretch))
    begins = np.concatenate((start, inside.end))
    order = np.lexsort((begins, edges))
    edges, begins = edges[order], begins[order]
    ends = np.concatenate((inside.start, end))
    ends = ends[np.lexsort((ends, np.concatenate((inside.stretch, np.arange(len(start))))))]
    is_open = ends > begins
    nothing = np.full(int(is_open.sum()), NOWHERE)
    pauses = Stretches(edges[is_open], nothing, nothing, begins[is_open], ends[is_open])
    both = [np.concatenate(columns) for columns in zip(inside, pauses, strict=True)]
    order = np.lexsort((both[3], both[0]))
    return Stretches(*(column[order] for column in both))


def find_names(trace: Trace, process: Array, source: Array, key: Array) -> list[str]:
    """The names of pieces, by where they are found."""
    processes = processes_of(trace)
    owner = {"file_id": processes.file_id[process], "rank": processes.rank[process]}
    wanted = {"place": np.arange(len(source)), "source": source, "key": key, **owner}
    names: list[str] = trace.sql(_NAMES, path_pieces=wanted).columns()["name"].tolist()
    return names


_NAMED = {
    KERNELS: ("kernels", "kernel_id"),
    COMMS: ("comms", "comm_id"),
    OPS: ("ops", "op_id"),
    CALLS: ("runtime_calls", "call_id"),
    LOADERS: (f"({_LOADERS})", "id"),
}
_NAMES = f"""
SELECT coalesce({", ".join(f"t{source}.name" for source in _NAMED)}) AS name FROM path_pieces AS p
{
    " ".join(
        f"LEFT JOIN {table} AS t{source}"
        f" ON p.source = {source} AND {same_process('p', f't{source}')} AND p.key = t{source}.{key}"
        for source, (table, key) in _NAMED.items()
    )
}
ORDER BY place
"""
