"""The table et_edges: what has to come before what in a linked trace.

Nodes are ordered by calls, threads, the backward pass and threads that wait for each other; ranks by collectives: no
member finishes one before the last one has joined.
"""

from __future__ import annotations

import numpy as np

from rankscope.analyze.derived import table
from rankscope.analyze.device.events import with_process
from rankscope.analyze.link.edges.graph import Edges, Graph, HostNodes, load_graph, same_threads
from rankscope.analyze.link.edges.tensors import data_edges
from rankscope.analyze.path.links import links_of
from rankscope.analyze.path.work import Timeline, Work, aligned, job_of, numbered
from rankscope.model.tables import MISSING, Array, Table, Text, Trace

_COLLECTIVE = "collective"
_BACKWARD_SCOPE = 1
_USER_SCOPE = 7
# Calls that the profiler's traces could not tie together are tied by their place in the group. That holds where members
# made the same calls at all places and no call that was tied otherwise contradicts it; where calls are not numbered but
# counted from the first recorded one, all have to have made as many. Which member came last is then told by the clock.
_CALLS = f"""
WITH called AS (
    SELECT *, coalesce(rank, {MISSING}) AS own_rank, CASE WHEN is_p2p THEN 'transfer' ELSE coalesce(op, '') END AS what,
           concat_ws(' ', is_p2p, coalesce(group_name, ''), coalesce(group_ranks, ''),
                     CASE WHEN is_p2p THEN src END, CASE WHEN is_p2p THEN dst END,
                     CASE WHEN is_p2p THEN tag END) AS party,
           CASE WHEN is_p2p THEN src IS NOT NULL AND dst IS NOT NULL
                ELSE coalesce(group_ranks, '') <> '[]' END AS is_known
    FROM et_collectives
), same_place AS (
    SELECT party, place, bool_and(is_known) AS is_known, count(*) AS n_calls,
           count(DISTINCT own_rank) AS n_ranks, any_value(match_id) AS match_id,
           count(DISTINCT what) = 1 AND count(DISTINCT match_id) <= 1 AS fits,
           bool_and(seq IS NOT NULL AND NOT is_p2p) AS is_numbered
    FROM called GROUP BY ALL
), parties AS (
    SELECT party, bool_and(is_known) AND bool_and(fits) AND bool_and(n_calls = n_ranks)
           AND count(match_id) = count(DISTINCT match_id)
           AND (bool_and(is_numbered) OR min(n_ranks) = max(n_ranks)) AS fits
    FROM same_place GROUP BY ALL
)
SELECT c.runner = 'node' AS is_node, c.runner_file_id, c.own_rank, c.runner_id,
       m.last_rank, c.match_id,
       CASE WHEN c.match_id IS NULL AND p.fits THEN c.place END AS place,
       dense_rank() OVER (ORDER BY c.party) AS party
FROM called AS c JOIN parties AS p ON p.party = c.party LEFT JOIN comm_matches AS m USING (match_id)
"""


@table("et_edges", needs=("et_nodes",))
def et_edges(trace: Trace) -> Table:
    graph = load_graph(trace)
    collectives = trace.table("et_collectives")
    runners = runners_of(graph, collectives)
    kinds = {
        "call": calls(graph),
        "thread": thread_order(graph),
        "launch": launches(graph),
        "stream": stream_order(graph),
        "sync": synchronisation(trace, graph),
        "backward": backward(trace, graph),
        "data": data_edges(trace, graph, runners),
        "handover": handovers(graph, runners),
    }
    kinds = {kind: _forward(edges, graph.start) for kind, edges in kinds.items()}
    kinds[_COLLECTIVE] = _distinct(collective_edges(trace, graph), len(graph.start))
    return _table(graph, kinds)


def _forward(edges: Edges, start: Array) -> Edges:
    return _distinct(edges.chosen(start[edges.source] < start[edges.target]), len(start))


def _distinct(edges: Edges, n_vertices: int) -> Edges:
    key = np.sort(edges.target * n_vertices + edges.source)
    key = key[np.diff(key, prepend=MISSING) > 0]
    return Edges(key % n_vertices, key // n_vertices) if len(key) else edges.chosen(key)


def _table(graph: Graph, kinds: dict[str, Edges]) -> Table:
    source, target = (np.concatenate(columns) for columns in zip(*kinds.values(), strict=True))
    kind = np.repeat(np.arange(len(kinds), dtype=np.int8), [len(edges.source) for edges in kinds.values()])
    file_id, rank, number = graph.file_id.astype(np.int32), graph.rank.astype(np.int32), graph.number
    what = ["node", "kernel"]
    return Table(
        "et_edges",
        {
            "kind": Text(kind, list(kinds)),
            "rank": rank[target],
            "file_id": file_id[target],
            "target": Text((target >= graph.n_nodes).astype(np.int8), what),
            "target_id": number[target],
            "from_rank": rank[source],
            "from_file_id": file_id[source],
            "source": Text((source >= graph.n_nodes).astype(np.int8), what),
            "source_id": number[source],
        },
    )


# Edges on the device


def launches(graph: Graph) -> Edges:
    """From the node that put it on the device."""
    target = np.flatnonzero(graph.kernels.launcher >= 0)
    return Edges(graph.kernels.launcher[target], graph.n_nodes + target)


def stream_order(graph: Graph) -> Edges:
    """From the work before on the same stream."""
    stream = graph.kernels.stream
    target = 1 + np.flatnonzero(stream[1:] == stream[:-1])
    return Edges(graph.n_nodes + target - 1, graph.n_nodes + target)


def synchronisation(trace: Trace, graph: Graph) -> Edges:
    """From work that a stream or the host waited for.

    A host that waits goes on when the work is done: with the next node on its thread. The node that it waited in had
    begun before, and may have launched that very work.
    """
    work = job_of(trace).work
    if not len(work.process):
        return Edges(np.empty(0, np.int64), np.empty(0, np.int64))
    vertex = _work_vertices(graph, work)
    links = links_of(trace)
    streams = Edges(vertex[links.stream_waits.awaited], vertex[links.stream_waits.work])
    waits = links.host_waits
    awaited = vertex[waits.work]
    hosts = Edges(awaited, _next_nodes(graph, waits.process, waits.tid, waits.end, awaited))
    edges = Edges(*(np.concatenate(pair) for pair in zip(streams, hosts, strict=True)))
    return edges.chosen((edges.source >= 0) & (edges.target >= 0))


def _work_vertices(graph: Graph, work: Work) -> Array:
    """Per work: its kernel, or the node of what gloo did; MISSING where no node was found in the process."""
    vertex = np.full(len(work.process), MISSING)
    vertex[graph.kernels.work] = graph.n_nodes + np.arange(len(graph.kernels.work))
    host = np.flatnonzero(work.on_host)
    vertex[host] = begun_at(graph.nodes, work.process[host], work.stream_id[host], work.start[host])
    return vertex


def _next_nodes(graph: Graph, process: Array, tid: Array, time: Array, after: Array) -> Array:
    """The first node on a thread that begins at a time or later, and after a vertex."""
    nodes = graph.nodes
    earliest = np.where(after >= 0, np.maximum(time, graph.time[after] + 1), time)
    of_nodes, wanted = same_threads(nodes, process, tid)
    # Backwards in time, and of those that begin together the outermost last.
    seen = np.flatnonzero(nodes.is_seen & nodes.is_op)[::-1]
    return Timeline(seen, of_nodes[seen], -nodes.time[seen]).last(wanted, -earliest)


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
    moment = np.concatenate((graph.start[ops], graph.end[ops]))
    order = np.lexsort((moment, nodes.file_id[node]))
    event, thread, moment = node[order], nodes.thread[node[order]], moment[order]
    is_start = order < len(ops)
    changes = np.zeros(len(event), bool)
    changes[1:] = (thread[1:] != thread[:-1]) & (nodes.file_id[event[1:]] == nodes.file_id[event[:-1]])
    later = np.flatnonzero(changes & is_start & is_idle[event])
    source, target = event[later - 1], event[later]
    idle_since = Timeline(moment, thread, moment).last(thread[later], moment[later] - 1)
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


def collective_edges(trace: Trace, graph: Graph) -> Edges:
    """From the member that joined last to all others."""
    calls = trace.sql(_CALLS).columns()
    runner = _vertices(graph, *(calls[name] for name in ("is_node", "runner_file_id", "own_rank", "runner_id")))
    rank, match, place = calls["own_rank"], calls["match_id"], calls["place"]
    is_matched = (runner >= 0) & (match >= 0)
    is_placed = (runner >= 0) & (place >= 0) & _is_timed(graph)[runner]
    matched = _from_last(runner, rank, match, rank == calls["last_rank"], is_matched)
    logical = numbered(calls["party"], place)
    joined = graph.time[runner]
    latest = np.full(int(logical.max(initial=0)) + 1, np.iinfo(np.int64).min)
    np.maximum.at(latest, logical[is_placed], joined[is_placed])
    placed = _from_last(runner, rank, logical, joined == latest[logical], is_placed)
    return Edges(*(np.concatenate(pair) for pair in zip(matched, placed, strict=True)))


def _is_timed(graph: Graph) -> Array:
    return np.concatenate((graph.nodes.is_seen, np.ones(len(graph.kernels.work), bool)))


def _from_last(runner: Array, rank: Array, logical: Array, is_last: Array, is_tied: Array) -> Edges:
    """Per logical call: from the runner that came last, or the first of those that did, to the ones of other ranks."""
    targets, lasts = np.flatnonzero(is_tied), np.flatnonzero(is_tied & is_last)
    if not len(lasts):
        return Edges(lasts, lasts)
    numbers, firsts = np.unique(logical[lasts], return_index=True)
    at = np.minimum(np.searchsorted(numbers, logical[targets]), len(numbers) - 1)
    source = lasts[firsts[at]]
    is_other = (numbers[at] == logical[targets]) & (rank[source] != rank[targets])
    return Edges(runner[source], runner[targets]).chosen(is_other)


def _vertices(graph: Graph, is_node: Array, file_id: Array, rank: Array, number: Array) -> Array:
    """MISSING for what is no vertex."""
    known = np.flatnonzero(graph.is_vertex)
    vertices = (known < graph.n_nodes, graph.file_id[known], graph.rank[known], graph.number[known])
    combined = numbered(
        *(np.concatenate(pair) for pair in zip(vertices, (is_node, file_id, rank, number), strict=True))
    )
    vertex = np.full(int(combined.max(initial=0)) + 1, MISSING)
    vertex[combined[: len(known)]] = known
    return vertex[combined[len(known) :]]
