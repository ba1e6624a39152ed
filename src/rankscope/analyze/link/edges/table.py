"""The table et_edges: what has to come before what in a linked trace.

Within a rank every edge goes forward in one order of time (see edges_graph), so that together they have no cycle.
"""

from __future__ import annotations

import numpy as np

from rankscope.analyze.derived import table
from rankscope.analyze.link.edges.device import launches, stream_order, synchronisation
from rankscope.analyze.link.edges.graph import Edges, Graph, load_graph
from rankscope.analyze.link.edges.host import backward, calls, handovers, runners_of, thread_order
from rankscope.analyze.link.edges.ranks import collective_edges
from rankscope.analyze.link.edges.tensors import data_edges
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
