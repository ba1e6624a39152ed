"""The table et_edges: what has to come before what in a linked trace.

Within a rank every edge goes forward in one order of time (see edges_graph), so that together they have no cycle.
"""

from __future__ import annotations

import numpy as np

from rankscope.analyze.derived import table
from rankscope.analyze.link.edges.graph import Edges, Graph, load_graph
from rankscope.analyze.link.edges.host import backward, begun_at, calls, handovers, runners_of, thread_order
from rankscope.analyze.link.edges.kernels import same_threads
from rankscope.analyze.link.edges.ranks import collective_edges
from rankscope.analyze.link.edges.tensors import data_edges
from rankscope.analyze.path.links import links_of
from rankscope.analyze.path.work import Timeline, Work, job_of
from rankscope.model.tables import MISSING, Array, Table, Text, Trace

_COLLECTIVE = "collective"


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
    vertex = _vertices(graph, work)
    links = links_of(trace)
    streams = Edges(vertex[links.stream_waits.awaited], vertex[links.stream_waits.work])
    waits = links.host_waits
    awaited = vertex[waits.work]
    hosts = Edges(awaited, _next_nodes(graph, waits.process, waits.tid, waits.end, awaited))
    edges = Edges(*(np.concatenate(pair) for pair in zip(streams, hosts, strict=True)))
    return edges.chosen((edges.source >= 0) & (edges.target >= 0))


def _vertices(graph: Graph, work: Work) -> Array:
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
