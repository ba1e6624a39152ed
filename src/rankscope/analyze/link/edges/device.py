"""What orders the work of devices: who launched it, its stream, and who waited for what."""

from __future__ import annotations

import numpy as np

from rankscope.analyze.link.edges.graph import Edges, Graph
from rankscope.analyze.link.edges.host import begun_at
from rankscope.analyze.link.edges.kernels import same_threads
from rankscope.analyze.path.links import links_of
from rankscope.analyze.path.work import Timeline, Work, job_of
from rankscope.model.tables import MISSING, Array, Trace


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
    found = Edges(*(np.concatenate(pair) for pair in zip(streams, hosts, strict=True)))
    return found.chosen((found.source >= 0) & (found.target >= 0))


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
