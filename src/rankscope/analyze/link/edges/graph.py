"""The vertices of the linked graph, nodes and kernels, in one order of time that all edges within a process follow."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.link.edges.kernels import Kernels, load_kernels
from rankscope.analyze.link.edges.nodes import HostNodes, load_nodes
from rankscope.model.tables import Array, Trace


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
    place = np.empty(len(order), np.int64)
    place[np.concatenate((event, 2 * n_nodes + np.arange(len(kernels.time))))[order]] = np.arange(len(order))
    return place[:n_nodes], place[n_nodes : 2 * n_nodes], place[2 * n_nodes :]
