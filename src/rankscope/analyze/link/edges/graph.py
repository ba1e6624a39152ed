"""The vertices of the linked graph, nodes and kernels, in one order of time that all edges within a process follow.

Nodes are those of execution traces, those included that no profiler saw; kernels are the work of devices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.device.events import processes_of, with_process
from rankscope.analyze.host.call_tree import op_tree
from rankscope.analyze.link.nodes import NODE_ORDER, nodes_of
from rankscope.analyze.path.work import Timeline, Work, aligned, job_of, numbered
from rankscope.model.tables import MISSING, Array, Table, Trace


class Edges(NamedTuple):
    """Vertices by their numbers: nodes by row, then kernels by row."""

    source: Array
    target: Array

    def chosen(self, rows: Array) -> Edges:
        return Edges(self.source[rows], self.target[rows])


class Graph(NamedTuple):
    nodes: HostNodes
    kernels: Kernels
    start: Array
    """Per vertex: the place of its start among all starts and ends. No two are equal."""
    end: Array
    """Per node: the place of its end."""

    @property
    def n_nodes(self) -> int:
        return len(self.nodes.node_id)

    @property
    def is_vertex(self) -> Array:
        return np.concatenate((self.nodes.is_op, np.ones(len(self.kernels.work), bool)))

    @property
    def file_id(self) -> Array:
        return np.concatenate((self.nodes.file_id, self.kernels.file_id))

    @property
    def rank(self) -> Array:
        return np.concatenate((self.nodes.rank, self.kernels.rank))

    @property
    def time(self) -> Array:
        """When it began, on the common clock."""
        return np.concatenate((self.nodes.time, self.kernels.time))

    @property
    def number(self) -> Array:
        """node_id or kernel_id."""
        return np.concatenate((self.nodes.node_id, self.kernels.kernel_id))


def load_graph(trace: Trace) -> Graph:
    nodes = load_nodes(trace)
    kernels = load_kernels(trace, nodes)
    start, end, of_kernels = _places(nodes, kernels)
    return Graph(nodes, kernels, np.concatenate((start, of_kernels)), end)


def _places(nodes: HostNodes, kernels: Kernels) -> tuple[Array, Array, Array]:
    """Places of the starts and ends of nodes, and of the starts of kernels.

    What happened at the same time is ordered as the execution trace has it, where an end comes after the last start
    that is known to precede it; kernels come last: they were launched by then.
    """
    n_nodes = len(nodes.node_id)
    rows = np.arange(n_nodes)
    by_end = np.lexsort((nodes.position, nodes.file_id))
    last = nodes.last_row[by_end]
    # Sorted among themselves, both starts and ends; a stable sort keeps inner ends before outer ones.
    merged = np.argsort(np.concatenate((2 * rows, 2 * last + 1)), kind="stable")
    event = np.concatenate((rows, n_nodes + by_end))[merged]
    time = np.concatenate((nodes.time, nodes.end_time[by_end]))[merged]
    order = np.argsort(np.concatenate((time, kernels.time)), kind="stable")
    position = np.empty(len(order), np.int64)
    position[np.concatenate((event, 2 * n_nodes + np.arange(len(kernels.time))))[order]] = np.arange(len(order))
    return position[:n_nodes], position[n_nodes : 2 * n_nodes], position[2 * n_nodes :]


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
    by_begin = np.empty(len(thread), np.int64)
    by_begin[by_thread] = np.arange(len(thread))
    by_end = np.lexsort((position, thread))
    last_inside = np.empty(len(thread), np.int64)
    last_inside[by_end] = np.maximum.accumulate(by_begin[by_end]) if len(by_begin) else by_begin
    following = by_thread[np.minimum(last_inside + 1, len(thread) - 1)]
    is_last = (last_inside + 1 >= len(thread)) | (thread[following] != thread)
    latest = np.where(is_last, end, begin[following])
    return np.maximum(np.minimum(end, latest), begin[last_row])


class Kernels(NamedTuple):
    """Kernels, copies and fills of the processes that nodes were found in, by stream and start.

    Executions of whole graphs are left out: they enclose the work that counts.
    """

    work: Array
    """Row of the work of the whole capture (see job_of)."""
    file_id: Array
    rank: Array
    kernel_id: Array
    stream: Array
    launcher: Array
    """The node that launched it; MISSING where none is known."""
    time: Array
    """When it began, but never before its launcher or the work before it: clocks of devices are off by microseconds."""


def load_kernels(trace: Trace, nodes: HostNodes) -> Kernels:
    processes, work, _ = job_of(trace)
    with_nodes = np.zeros(len(processes.rank), bool)
    with_nodes[nodes.process[nodes.is_seen]] = True
    rows = np.flatnonzero(~work.on_host & with_nodes[work.process])
    # A kernel that does several transfers is there once for each, side by side.
    is_again = np.zeros(len(rows), bool)
    is_again[1:] = (np.diff(work.key[rows]) == 0) & (np.diff(work.stream[rows]) == 0)
    rows = rows[~is_again]
    launcher = _launchers(trace, nodes, work, rows)
    time = np.maximum(work.start[rows], np.where(launcher >= 0, nodes.time[launcher], MISSING))
    stream, process = work.stream[rows], work.process[rows]
    return Kernels(
        rows,
        processes.file_id[process],
        processes.rank[process],
        work.key[rows],
        stream,
        launcher,
        _never_before(stream, time),
    )


def same_threads(nodes: HostNodes, process: Array, tid: Array) -> tuple[Array, Array]:
    """Equal numbers for equal threads of profiled processes: of all nodes, and of what is asked for."""
    number = numbered(np.concatenate((nodes.process, process)), np.concatenate((nodes.tid, tid)))
    return number[: len(nodes.process)], number[len(nodes.process) :]


def _never_before(stream: Array, time: Array) -> Array:
    for on_stream in np.split(time, 1 + np.flatnonzero(np.diff(stream))):
        np.maximum.accumulate(on_stream, out=on_stream)  # a view of the times
    return time


def _launchers(trace: Trace, nodes: HostNodes, work: Work, rows: Array) -> Array:
    """The node of the operator that launched it, else of the nearest operator around that is a node.

    What was launched outside of all of them comes after the node that its thread had begun last.
    """
    ops = _NodeOps.of(nodes, trace.table("et_links").array("op_id"))
    op_id = _launching_ops(trace, work, rows)
    process = work.process[rows]
    launcher = ops.nodes(process, op_id)
    inner = np.flatnonzero((launcher < 0) & (op_id >= 0))
    if len(inner):
        launcher[inner] = _nodes_around(trace, ops, process[inner], op_id[inner])
    alone = np.flatnonzero((op_id < 0) & (work.launch[rows] >= 0))
    if len(alone):
        of_nodes, wanted = same_threads(nodes, process[alone], work.tid[rows[alone]])
        seen = np.flatnonzero(nodes.is_seen & nodes.is_op)
        begun = Timeline(seen, of_nodes[seen], nodes.time[seen])
        launcher[alone] = begun.last(wanted, work.launch[rows[alone]])
    return launcher


_LAUNCHING_OPS = """
SELECT file_id, rank, kernel_id, op_id FROM kernels WHERE type IS DISTINCT FROM 'other'
"""


def _launching_ops(trace: Trace, work: Work, rows: Array) -> Array:
    kernels = with_process(trace, trace.sql(_LAUNCHING_OPS).columns())
    n_kernels = int(kernels["kernel_id"].max(initial=0)) + 1
    key = kernels["process"] * n_kernels + kernels["kernel_id"]
    order = np.argsort(key, kind="stable")
    launched = order[np.searchsorted(key[order], work.process[rows] * n_kernels + work.key[rows])]
    op_id: Array = kernels["op_id"][launched]
    return op_id


class _NodeOps(NamedTuple):
    """Operators that are nodes, by process and number."""

    key: Array
    row: Array
    n_ops: int

    @classmethod
    def of(cls, nodes: HostNodes, op_id: Array) -> _NodeOps:
        row = np.flatnonzero(nodes.is_seen & nodes.is_op & (op_id >= 0))
        n_ops = int(op_id.max(initial=0)) + 1
        key = nodes.process[row] * n_ops + op_id[row]
        order = np.argsort(key, kind="stable")
        return cls(key[order], row[order], n_ops)

    def nodes(self, process: Array, op_id: Array) -> Array:
        if not len(self.key):
            return np.full(len(op_id), MISSING)
        key = process * self.n_ops + op_id
        position = np.minimum(np.searchsorted(self.key, key), len(self.key) - 1)
        is_found = (self.key[position] == key) & (op_id >= 0) & (op_id < self.n_ops)
        return np.where(is_found, self.row[position], MISSING)


def _nodes_around(trace: Trace, ops: _NodeOps, process: Array, op_id: Array) -> Array:
    tree = op_tree(trace)
    of_tree = ops.nodes(tree.columns["process"], tree.columns["op_id"])
    nearest = tree.nesting.nearest(of_tree >= 0)
    around = np.where(nearest >= 0, of_tree[nearest], MISSING)
    order = np.lexsort((tree.columns["op_id"], tree.columns["process"]))
    known = tree.columns["process"][order], tree.columns["op_id"][order]
    n_ops = max(int(known[1].max(initial=0)), int(op_id.max(initial=0))) + 1
    position = np.searchsorted(known[0] * n_ops + known[1], process * n_ops + op_id)
    position = np.minimum(position, len(order) - 1)
    is_found = (known[0][position] == process) & (known[1][position] == op_id)
    return np.where(is_found, around[order[position]], MISSING)
