"""Runs through a graph of moments, under many assumptions at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.whatif.graph import Graph
from rankscope.model.tables import Array

_MAX_SCENARIOS_AT_ONCE = 64  # bounds the memory: one number per node and scenario


class _Level(NamedTuple):
    """Edges into nodes whose sources are all known once the levels before are done."""

    edges: Array
    sources: Array
    owners: Array
    firsts: Array
    """The first edge of each node."""
    nodes: Array


class Replay:
    """A graph that can be run through; `is_possible` is False when it has a circle, as wrong matches may make one."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        depth = _depths(graph)
        self.is_possible = depth is not None
        self._levels = _levels(graph, depth) if depth is not None else []

    def mean_step_ns(self, variants: Array) -> Array:
        """By scenario: the mean step. `variants` says for each scenario and owner of edges which lengths hold."""
        chunks = np.array_split(variants, max(1, -(-len(variants) // _MAX_SCENARIOS_AT_ONCE)))
        times = np.concatenate([self._run(chunk) for chunk in chunks])
        mean: Array = (times[:, -1] - times[:, 0]) / (times.shape[1] - 1)
        return mean

    def _run(self, variants: Array) -> Array:
        """By scenario: when the last process started, and when the last one was done with each step."""
        graph = self._graph
        lengths, by_owner = graph.length, np.ascontiguousarray(variants.T)
        times = np.zeros((graph.n_nodes, len(variants)))
        times[graph.starts] = graph.start_times[:, None]
        for edges, sources, owners, firsts, nodes in self._levels:
            reached = lengths[edges, by_owner[owners]]
            reached += times[sources]
            times[nodes] = np.maximum.reduceat(reached, firsts)
        return np.concatenate((times[graph.starts].max(axis=0)[None], times[graph.step_ends])).T


def _depths(graph: Graph) -> Array | None:
    """Per node: the most edges on a way to it. None when the graph has a circle.

    A node may come after very many others, each alone on its level: plain numbers are faster here than columns.
    """
    by_source = np.argsort(graph.source, kind="stable")
    targets = graph.target[by_source].tolist()
    bounds = np.searchsorted(graph.source[by_source], np.arange(graph.n_nodes + 1)).tolist()
    n_open = np.bincount(graph.target, minlength=graph.n_nodes).tolist()
    depth = [0] * graph.n_nodes
    ready = [node for node, count in enumerate(n_open) if count == 0]
    for node in ready:
        below = depth[node] + 1
        for target in targets[bounds[node] : bounds[node + 1]]:
            if depth[target] < below:
                depth[target] = below
            n_open[target] -= 1
            if n_open[target] == 0:
                ready.append(target)
    return np.array(depth) if len(ready) == graph.n_nodes else None


def _levels(graph: Graph, depth: Array) -> list[_Level]:
    order = np.lexsort((graph.target, depth[graph.target]))
    source, target, owner = graph.source[order], graph.target[order], graph.owner[order]
    is_first = np.concatenate(([True], target[1:] != target[:-1]))[: len(order)]
    level = depth[target]
    bounds = np.flatnonzero(np.concatenate(([True], level[1:] != level[:-1], [True])))
    levels = []
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        firsts = np.flatnonzero(is_first[low:high])
        edges = order[low:high, None]
        levels.append(_Level(edges, source[low:high], owner[low:high], firsts, target[low:high][firsts]))
    return levels
