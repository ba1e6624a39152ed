"""The nodes of execution traces in the order of time, those included that no profiler saw.

Nodes are numbered when they begin and stand in the file in the order in which they ended: that alone orders the starts
and ends of all threads. The profiler's times place them among the work of devices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.device.events import processes_of
from rankscope.analyze.link.nodes import NODE_ORDER, nodes_of
from rankscope.analyze.path.work import aligned, numbered
from rankscope.model.tables import MISSING, Array, Table, Trace


class HostNodes(NamedTuple):
    """One row per node, by file and number: a smaller row began earlier. What is not known is MISSING."""

    file_id: Array
    rank: Array
    node_id: Array
    is_op: Array
    """False for what holds a file together, and for what a damaged file has twice."""
    parent: Array
    position: Array
    """The order of the ends in a file."""
    seq_id: Array
    scope: Array
    recorded_thread: Array
    """As the execution trace numbers threads, in which what gloo does is on the thread of its caller."""
    fw_thread: Array
    is_gloo: Array
    """What gloo does on a separate thread, even if the caller continues meanwhile."""
    process: Array
    """Of the profiler, as processes_of numbers them; MISSING where it did not see the node."""
    tid: Array
    thread: Array
    """The thread that ran it, numbered over all files."""
    time: Array
    """When it began, on the common clock; where no profiler saw it: when the nearest one on its thread did."""
    end_time: Array
    last_row: Array
    """The last node, itself included, that had begun and ended when it ended."""

    @property
    def is_seen(self) -> Array:
        return np.greater_equal(self.process, 0)


_NODES = f"""
SELECT file_id, rank, node_id, kind = 'op' AS is_op, position,
       seq_id, scope,
       thread, fw_thread,
       starts_with(name, 'gloo:') AS is_gloo
FROM et_nodes ORDER BY {NODE_ORDER}
"""


def load_nodes(trace: Trace) -> HostNodes:
    columns = trace.sql(_NODES).columns()
    links = trace.table("et_links")
    process = _profiles(trace, links)
    is_seen = process >= 0
    time = links.array("start_ns").copy()
    time[is_seen] = aligned(trace, process[is_seen], time[is_seen])
    file_id, node_id, thread, is_gloo = (columns[name] for name in ("file_id", "node_id", "thread", "is_gloo"))
    nearest = _nearest_seen(numbered(file_id, thread, is_gloo), is_seen)
    is_again = np.zeros(len(node_id), bool)
    is_again[1:] = (node_id[1:] == node_id[:-1]) & (file_id[1:] == file_id[:-1])
    tid = np.where(is_seen, links.array("tid"), MISSING)
    # A thread that no profiler saw is one of its own; what gloo does is never on the thread of its caller.
    is_alone = nearest < 0
    unseen = np.where(is_alone, 2 * thread + is_gloo, MISSING)
    ran_on = numbered(file_id, np.where(is_alone, MISSING, tid[nearest]), unseen)
    begin = _begin(file_id, time, nearest)
    last_row = _last_begun_at_end(file_id, columns["position"])
    duration = np.where(is_seen, links.array("duration_ns"), 0)
    return HostNodes(
        file_id,
        columns["rank"],
        node_id,
        columns["is_op"] & ~is_again,
        nodes_of(trace).parent,
        columns["position"],
        columns["seq_id"],
        columns["scope"],
        thread,
        columns["fw_thread"],
        is_gloo,
        process,
        tid,
        ran_on,
        begin,
        _ends(ran_on, columns["position"], begin, begin + duration, last_row),
        last_row,
    )


def _profiles(trace: Trace, links: Table) -> Array:
    """The profiled process of each node; MISSING for those that were not found."""
    known = processes_of(trace)
    places = {key: row for row, key in enumerate(zip(known.file_id.tolist(), known.rank.tolist(), strict=True))}
    profile_id, rank = links.array("profile_id"), links.array("rank")
    number = numbered(profile_id, rank)
    _, firsts = np.unique(number, return_index=True)
    keys = zip(profile_id[firsts].tolist(), rank[firsts].tolist(), strict=True)
    processes = np.array([places.get(key, MISSING) if key[0] >= 0 else MISSING for key in keys], np.int64)
    return processes[number] if len(processes) else number


def _nearest_seen(thread: Array, is_seen: Array) -> Array:
    """Per node: itself, else the last node before on its thread that the profiler saw, else the first one after."""
    by_thread = np.argsort(thread, kind="stable")
    before = _carried(thread[by_thread], np.where(is_seen, np.arange(len(thread)), MISSING)[by_thread])
    after = _carried(thread[by_thread][::-1], before[::-1])[::-1]
    nearest = np.empty(len(thread), np.int64)
    nearest[by_thread] = after
    return nearest


def _carried(group: Array, rows: Array) -> Array:
    """Fills what is MISSING with the last row before in its group."""
    last = np.maximum.accumulate(np.where(rows >= 0, np.arange(len(rows)), 0)) if len(rows) else rows
    return np.where(group[last] == group, rows[last], MISSING)


def _begin(file_id: Array, time: Array, nearest: Array) -> Array:
    # Threads of which the profiler saw nothing: by what began before, or after, on any thread of the file.
    known = _carried(file_id, nearest)
    known = _carried(file_id[::-1], known[::-1])[::-1]
    return np.where(known >= 0, time[known], 0)


def _last_begun_at_end(file_id: Array, position: Array) -> Array:
    """Whatever ended before a node did, on whichever thread, had begun before that end."""
    by_end = np.lexsort((position, file_id))
    last = np.empty(len(by_end), np.int64)
    last[by_end] = np.maximum.accumulate(by_end) if len(by_end) else by_end
    return last


def _ends(thread: Array, position: Array, begin: Array, end: Array, last_row: Array) -> Array:
    """When nodes ended: after all that had ended by then had begun, and before what came next on the thread began.

    Durations may have been taken from other steps.
    """
    by_thread = np.lexsort((np.arange(len(thread)), thread))
    place = np.empty(len(thread), np.int64)
    place[by_thread] = np.arange(len(thread))
    by_end = np.lexsort((position, thread))
    last_inside = np.empty(len(thread), np.int64)
    last_inside[by_end] = np.maximum.accumulate(place[by_end]) if len(place) else place
    following = by_thread[np.minimum(last_inside + 1, len(thread) - 1)]
    is_last = (last_inside + 1 >= len(thread)) | (thread[following] != thread)
    latest = np.where(is_last, end, begin[following])
    return np.maximum(np.minimum(end, latest), begin[last_row])
