"""The work of devices as vertices of the linked graph: which node launched it, and when it ran."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.device.events import with_process
from rankscope.analyze.host.call_tree import op_tree
from rankscope.analyze.link.edges.nodes import HostNodes
from rankscope.analyze.path.work import Timeline, Work, job_of, numbered
from rankscope.model.tables import MISSING, Array, Trace


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
        place = np.minimum(np.searchsorted(self.key, key), len(self.key) - 1)
        is_found = (self.key[place] == key) & (op_id >= 0) & (op_id < self.n_ops)
        return np.where(is_found, self.row[place], MISSING)


def _nodes_around(trace: Trace, ops: _NodeOps, process: Array, op_id: Array) -> Array:
    tree = op_tree(trace)
    of_tree = ops.nodes(tree.columns["process"], tree.columns["op_id"])
    nearest = tree.nesting.nearest(of_tree >= 0)
    around = np.where(nearest >= 0, of_tree[nearest], MISSING)
    order = np.lexsort((tree.columns["op_id"], tree.columns["process"]))
    known = tree.columns["process"][order], tree.columns["op_id"][order]
    n_ops = max(int(known[1].max(initial=0)), int(op_id.max(initial=0))) + 1
    place = np.searchsorted(known[0] * n_ops + known[1], process * n_ops + op_id)
    place = np.minimum(place, len(order) - 1)
    is_found = (known[0][place] == process) & (known[1][place] == op_id)
    return np.where(is_found, around[order[place]], MISSING)
