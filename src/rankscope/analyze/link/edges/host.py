"""What orders nodes among each other: calls, threads, the backward pass, and threads that wait for each other."""

from __future__ import annotations

import numpy as np

from rankscope.analyze.device.events import with_process
from rankscope.analyze.link.edges.graph import Edges, Graph
from rankscope.analyze.link.edges.kernels import same_threads
from rankscope.analyze.link.edges.nodes import HostNodes
from rankscope.analyze.path.work import Timeline, aligned, numbered
from rankscope.model.tables import MISSING, Array, Table, Trace

_BACKWARD_SCOPE = 1
_USER_SCOPE = 7


def calls(graph: Graph) -> Edges:
    """From the caller.

    What gloo does stays on the observer's stack until it is over, though its caller has long gone on: whatever the
    caller does then is recorded as a call of it. A real call is made on the same thread and ends first.
    """
    nodes = graph.nodes
    target = np.flatnonzero(nodes.is_op & (nodes.parent >= 0))
    target = target[nodes.is_op[nodes.parent[target]]]
    source = nodes.parent[target]
    is_inner = (nodes.thread[source] == nodes.thread[target]) & (nodes.position[target] < nodes.position[source])
    is_handed_over = nodes.is_gloo[target] & ~nodes.is_gloo[source]
    return Edges(source, target).chosen(is_inner | is_handed_over)


def thread_order(graph: Graph) -> Edges:
    """From the node that began before on the same thread."""
    ops = np.flatnonzero(graph.nodes.is_op)
    order = ops[np.lexsort((graph.start[ops], graph.nodes.thread[ops]))]
    thread = graph.nodes.thread[order]
    return Edges(order[:-1], order[1:]).chosen(thread[1:] == thread[:-1])


def backward(trace: Trace, graph: Graph) -> Edges:
    """From the forward operator: by the profiler's links where it made some, else by the sequence number."""
    return _together(_by_flows(trace, graph.nodes), _by_sequence(graph), graph.n_nodes)


_FLOWS = """
SELECT f.file_id, f.rank, f.tid AS from_tid, f.time_ns AS from_ns, b.tid, b.time_ns
FROM flows AS f
JOIN flows AS b ON f.file_id = b.file_id AND f.rank IS NOT DISTINCT FROM b.rank AND f.flow_id = b.flow_id
WHERE f.is_start AND NOT b.is_start AND f.tid IS NOT NULL AND b.tid IS NOT NULL
"""


def _by_flows(trace: Trace, nodes: HostNodes) -> Edges:
    flows = with_process(trace, trace.sql(_FLOWS).columns())
    process = flows["process"]
    ends = [
        begun_at(nodes, process, flows[tid], aligned(trace, process, flows[time]))
        for tid, time in (("from_tid", "from_ns"), ("tid", "time_ns"))
    ]
    return Edges(*ends).chosen((ends[0] >= 0) & (ends[1] >= 0))


def begun_at(nodes: HostNodes, process: Array, tid: Array, time: Array) -> Array:
    """The node that began at a time on a thread of a profiled process; MISSING where none did."""
    of_nodes, wanted = same_threads(nodes, process, tid)
    seen = np.flatnonzero(nodes.is_seen & nodes.is_op)
    node = Timeline(seen, of_nodes[seen], nodes.time[seen]).last(wanted, time)
    return np.where((node >= 0) & (nodes.time[node] == time), node, MISSING)


def _by_sequence(graph: Graph) -> Edges:
    """A backward function has the number of the operator that made it; of nested ones the innermost did, which has
    begun last."""
    nodes = graph.nodes
    has_number = nodes.is_op & (nodes.seq_id >= 0)
    is_backward = has_number & (nodes.scope == _BACKWARD_SCOPE) & (nodes.fw_thread >= 0)
    target = np.flatnonzero(is_backward)
    forward = np.flatnonzero(has_number & (nodes.scope != _BACKWARD_SCOPE))
    rows = np.concatenate((forward, target))
    thread = np.concatenate((nodes.recorded_thread[forward], nodes.fw_thread[target]))
    key = numbered(nodes.file_id[rows], nodes.rank[rows], thread, nodes.seq_id[rows])
    source = Timeline(forward, key[: len(forward)], graph.start[forward]).last(key[len(forward) :], graph.start[target])
    return Edges(source, target).chosen(source >= 0)


def handovers(graph: Graph, runners: Edges) -> Edges:
    """From what released a thread that had nothing to do: the call of the collective that it runs, where that is known,
    else the last thing that another thread did before."""
    return _together(runners, _releases(graph), graph.n_nodes)


def _together(first: Edges, second: Edges, n_nodes: int) -> Edges:
    """The first, and of the second those to nodes that the first do not lead to."""
    is_open = np.ones(n_nodes, bool)
    is_open[first.target] = False
    second = second.chosen(is_open[second.target])
    return Edges(*(np.concatenate(pair) for pair in zip(first, second, strict=True)))


def _releases(graph: Graph) -> Edges:
    """A thread waits for another one if it does nothing all the time while that runs an operator, and then goes on."""
    nodes = graph.nodes
    ops = np.flatnonzero(nodes.is_op)
    is_idle, since = _idle_and_running(graph, ops)
    # All starts and ends of a file, in order.
    node = np.concatenate((ops, ops))
    place = np.concatenate((graph.start[ops], graph.end[ops]))
    order = np.lexsort((place, nodes.file_id[node]))
    event, thread, place = node[order], nodes.thread[node[order]], place[order]
    is_start = order < len(ops)
    changes = np.zeros(len(event), bool)
    changes[1:] = (thread[1:] != thread[:-1]) & (nodes.file_id[event[1:]] == nodes.file_id[event[:-1]])
    later = np.flatnonzero(changes & is_start & is_idle[event])
    source, target = event[later - 1], event[later]
    idle_since = Timeline(place, thread, place).last(thread[later], place[later] - 1)
    return Edges(source, target).chosen(idle_since < since[source])


def _idle_and_running(graph: Graph, ops: Array) -> tuple[Array, Array]:
    """Per node: whether its thread ran no operator when it began, and where the operator begins that its thread ran
    then, outermost; annotations last while nothing happens and count as operators only where they hold none."""
    nodes = graph.nodes
    is_running = (nodes.scope != _USER_SCOPE) | nodes.is_gloo
    order = ops[np.lexsort((graph.start[ops], nodes.thread[ops]))]
    # Threads one after the other on one axis: no end of one reaches into the next.
    begin = nodes.thread[order] * len(graph.start) * 2 + graph.start[order]
    end = np.where(is_running[order], begin + graph.end[order] - graph.start[order], MISSING)
    open_until = np.full(len(order), MISSING)
    if len(order):
        open_until[1:] = np.maximum.accumulate(end)[:-1]
    idle = open_until < begin
    outermost = np.maximum.accumulate(np.where(idle, np.arange(len(order)), 0)) if len(order) else idle
    is_idle, since = np.zeros(graph.n_nodes, bool), np.zeros(graph.n_nodes, np.int64)
    is_idle[order] = idle
    since[order] = graph.start[order][outermost]
    return is_idle, since


def runners_of(graph: Graph, collectives: Table) -> Edges:
    """From calls of collectives to the nodes that did them on other threads."""
    is_node = collectives.text("runner").equals("node") & (
        collectives.array("runner_file_id") == collectives.array("file_id")
    )
    called = collectives.take(np.flatnonzero(is_node))
    source, target = (
        node_rows(graph.nodes, called.array("file_id"), called.array("rank"), called.array(name))
        for name in ("node_id", "runner_id")
    )
    return Edges(source, target).chosen((source >= 0) & (target >= 0) & (source != target))


def node_rows(nodes: HostNodes, file_id: Array, rank: Array, node_id: Array) -> Array:
    """Where nodes are; MISSING for those that are not there."""
    n_nodes = len(nodes.node_id)
    columns = ((nodes.file_id, file_id), (nodes.rank, rank), (nodes.node_id, node_id))
    number = numbered(*(np.concatenate(pair) for pair in columns))
    row = np.full(int(number.max(initial=0)) + 1, MISSING)
    is_op = np.flatnonzero(nodes.is_op)
    row[number[:n_nodes][is_op]] = is_op
    return row[number[n_nodes:]]
