"""How long each item takes once all that it waits for is done, and the time of the host between operators.

A simulator starts a node when what it depends on is over. So a node may only take the time that is its own: what it
called are nodes, and what it waited for is a dependency. The time of Python between operators belongs to no node of an
execution trace; it becomes nodes of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.chakra.building.edges import ItemEdges
from rankscope.analyze.chakra.building.items import Items
from rankscope.analyze.device.events import processes_of
from rankscope.analyze.host.call_tree import nest
from rankscope.analyze.link.nodes import nearest_above
from rankscope.analyze.path.links import links_of
from rankscope.analyze.path.work import aligned, job_of
from rankscope.model.tables import MISSING, Array, Trace

MIN_GAP_NS = 1_000


class HostTime(NamedTuple):
    """Time of a thread before an item that no operator explains."""

    item: Array
    start: Array
    duration: Array


class _Marks(NamedTuple):
    """The outermost operators of each thread and the annotations around them, by thread and start."""

    item: Array
    thread: Array  # numbered from 0
    start: Array
    reach: Array  # until when the item itself accounts for the time of its thread


def times_of(trace: Trace, items: Items, edges: ItemEdges, comm_items: Array) -> tuple[Array, HostTime]:
    """The duration of each item in the graph, and the time in between. Communication takes its whole time: moving data
    and what it called at the same time (gloo copies) cannot be separated."""
    if not items.is_timed or not items.n_nodes:
        nothing = np.empty(0, np.int64)
        return np.zeros(len(items), np.int64), HostTime(nothing, nothing, nothing)
    busy_ns = np.maximum(items.nodes["own_ns"], 0) - _waited(trace, items)
    duration = np.concatenate((np.maximum(busy_ns, 0), items.kernels["duration_ns"]))
    on_host = comm_items[comm_items < items.n_nodes]
    duration[on_host] = items.nodes["duration_ns"][on_host]
    marks = _find_marks(items, edges, on_host)
    is_shorter = marks.reach < items.end[marks.item]
    shorter = marks.item[is_shorter]
    duration[shorter] = np.minimum(duration[shorter], (marks.reach - marks.start)[is_shorter])
    return duration, _between(items, edges, marks)


def _find_marks(items: Items, edges: ItemEdges, comm_items: Array) -> _Marks:
    nodes, n_nodes = items.nodes, items.n_nodes
    tid, caller = nodes["tid"], items.caller[:n_nodes]
    is_annotation = (nodes["annotation_id"] != MISSING) & (nodes["op_id"] == MISSING)
    is_annotation[comm_items] = False
    caller = np.where((caller != MISSING) & (tid[caller] == tid), caller, MISSING)
    item = np.flatnonzero(nearest_above(caller, ~is_annotation) == MISSING)
    thread = np.unique(tid[item], return_inverse=True)[1]
    order = np.lexsort((item, nodes["start_ns"][item], thread))
    item, thread = item[order], thread[order]
    start, end = items.start[item], items.end[item]
    holds_next = np.zeros(len(item), bool)
    holds_next[:-1] = (thread[1:] == thread[:-1]) & (start[1:] < end[:-1])
    is_whole = np.zeros(n_nodes, bool)
    is_whole[comm_items] = True
    is_whole[caller[caller != MISSING]] = True  # its own time lies between what it called: there is no place to cut
    # What an annotation spends around its operators is the time between operators; one without any is work by itself.
    reach = np.where(is_annotation[item] & holds_next, start, end)
    handed_over = _first_handover(items, edges)[item]
    is_cut = ~is_whole[item] & (handed_over < reach)
    return _Marks(item, thread, start, np.where(is_cut, handed_over, reach))


def _first_handover(items: Items, edges: ItemEdges) -> Array:
    """When an item first set another thread to work while it ran itself: from then on it may have waited for it."""
    first = np.full(len(items), np.iinfo(np.int64).max)
    rows = np.flatnonzero(edges.is_other_thread & (edges.after < items.n_nodes) & (edges.before < items.n_nodes))
    before, after = edges.before[rows], edges.after[rows]
    tid = items.nodes["tid"]
    is_during = (tid[before] != tid[after]) & (items.start[after] >= items.start[before])
    is_during &= items.start[after] < items.end[before]
    np.minimum.at(first, before[is_during], items.start[after[is_during]])
    return first


def _between(items: Items, edges: ItemEdges, marks: _Marks) -> HostTime:
    """The gap before each mark, from the moment at which the thread was free and all that it waits for was over."""
    earliest = int(items.start.min())
    # Threads laid end to end, so that one running maximum serves them all.
    span = int(items.end.max()) - earliest + 1
    shift = marks.thread * span - earliest
    reached = np.maximum.accumulate(marks.reach + shift)
    is_first = np.diff(marks.thread, prepend=-1) != 0
    free = np.where(is_first, earliest, np.roll(reached, 1) - shift)
    begin = np.maximum(free, _released(items, edges)[marks.item])
    gap = marks.start - begin
    rows = np.flatnonzero(gap > MIN_GAP_NS)
    return HostTime(marks.item[rows], begin[rows], gap[rows])


def _released(items: Items, edges: ItemEdges) -> Array:
    """Per item: when the last of what it waits for on other threads and streams was over, at most its own start."""
    released = np.full(len(items), MISSING)
    rows = np.flatnonzero(edges.is_other_thread & (items.start[edges.before] <= items.start[edges.after]))
    before, after = edges.before[rows], edges.after[rows]
    np.maximum.at(released, after, np.minimum(items.end[before], items.start[after]))
    # A thread that was set to work by a caller elsewhere, nobody knows when, did not wait on its own account.
    caller = items.caller[: items.n_nodes]
    tid = items.nodes["tid"]
    unknown = np.flatnonzero((released[: items.n_nodes] == MISSING) & (caller != MISSING) & (tid[caller] != tid))
    released[unknown] = items.start[unknown]
    return released


def _waited(trace: Trace, items: Items) -> Array:
    """Per node: how long it waited for the device by itself. The dependency says so: the time must not count twice."""
    waited = np.zeros(items.n_nodes, np.int64)
    if not len(items.kernels["kernel_id"]):
        return waited
    waits, work, processes = links_of(trace).host_waits, job_of(trace).work, processes_of(trace)
    is_own = np.isin(processes.file_id, items.source.profile_ids) & (processes.rank == items.source.rank)
    own_rows = np.flatnonzero(is_own)
    process = own_rows[np.searchsorted(processes.file_id[own_rows], items.nodes["profile_id"])]
    tids, thread = np.unique(items.nodes["tid"], return_inverse=True)
    ranges = nest(thread, aligned(trace, process, items.start[: items.n_nodes]), items.nodes["recorded_ns"])
    is_chosen = is_own[waits.process] & np.isin(waits.tid, tids) & ~work.on_host[waits.work]
    rows = np.flatnonzero(is_chosen & waits.is_blocking(work))
    around = ranges.enclosing(np.searchsorted(tids, waits.tid[rows]), waits.start[rows])
    rows, around = rows[around >= 0], ranges.order[around[around >= 0]]
    np.add.at(waited, around, waits.end[rows] - waits.start[rows])
    return waited
