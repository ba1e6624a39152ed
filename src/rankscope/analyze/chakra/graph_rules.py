"""Rules about one file and its graph: ids, dependencies, types, times."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankscope.analyze.chakra.catalogue import WHOLE_FILE, Breach
from rankscope.analyze.chakra.columns import Dependencies, RankGraph
from rankscope.analyze.chakra.cycles import find_cycle
from rankscope.model.chakra import INVALID, METADATA, NODE_TYPES
from rankscope.model.tables import MISSING, Array

_LONGEST_US = 24 * 3600 * 1_000_000
_CYCLE_SHOWN = 20


def check_graph(graph: RankGraph) -> Iterator[Breach]:
    if not graph.path.endswith(".et") or graph.rank is None:
        yield Breach("file-name", graph, WHOLE_FILE, lambda _: "The file is not named <prefix>.<rank>.et.")
    if not len(graph):
        yield Breach("no-nodes", graph, WHOLE_FILE, lambda _: "The file has no nodes.")
        return
    yield from _check_ids(graph)
    yield from _check_dependencies(graph)
    yield from _check_types_and_durations(graph)
    yield from _check_start_times(graph)


def ids_are_unique(graph: RankGraph) -> bool:
    return len(np.unique(graph.id)) == len(graph)


def _check_ids(graph: RankGraph) -> Iterator[Breach]:
    _, first, counts = np.unique(graph.id, return_index=True, return_counts=True)
    repeated = np.setdiff1d(np.arange(len(graph)), first)
    # With repeated ids the range is broken too, which would say the same thing twice.
    beyond = np.flatnonzero(graph.id >= len(graph)) if not len(repeated) else repeated[:0]
    yield Breach("duplicate-id", graph, repeated, lambda row: f"Another node has the id {graph.id[row]} too.")
    yield Breach(
        "id-range", graph, beyond, lambda row: f"The file has {len(counts)} nodes, but one has the id {graph.id[row]}."
    )


def _check_dependencies(graph: RankGraph) -> Iterator[Breach]:
    yield _dangling(graph, "dangling-data-dep", "data", graph.data)
    yield _dangling(graph, "dangling-ctrl-dep", "control", graph.ctrl)
    cycle = find_cycle(len(graph), *graph.edges)
    if len(cycle):
        yield Breach("cycle", graph, cycle[:1], lambda _: _describe_cycle(graph, cycle))
    untimed = np.isin(graph.type, (METADATA, INVALID))
    can_start = ~graph.has_dependencies & ~untimed
    # Without any free node there is a cycle or a dangling dependency, which is said already.
    if not can_start.any() and not graph.has_dependencies.all():
        yield Breach("start-node", graph, WHOLE_FILE, lambda _: "Only METADATA nodes have no dependencies.")


def _dangling(graph: RankGraph, rule: str, kind: str, dependencies: Dependencies) -> Breach:
    edges = np.flatnonzero(dependencies.before == MISSING)
    wanted = dict(zip(dependencies.after[edges][::-1].tolist(), dependencies.wanted[edges][::-1].tolist(), strict=True))
    return Breach(
        rule,
        graph,
        dependencies.after[edges],
        lambda row: f"Its {kind} dependency {wanted[row]} is not a node of the file.",
    )


def _describe_cycle(graph: RankGraph, cycle: Array) -> str:
    names = [graph.label(row) for row in cycle.tolist()]
    shown = names[:_CYCLE_SHOWN]
    rest = [f"... {len(names) - len(shown)} more ..."] if len(names) > len(shown) else []
    return f"Each of these nodes waits for the next: {' -> '.join([*shown, *rest, names[0]])}."


def _check_types_and_durations(graph: RankGraph) -> Iterator[Breach]:
    wrong = np.flatnonzero((graph.type == INVALID) | (graph.type < 0) | (graph.type >= len(NODE_TYPES)))
    yield Breach("node-type", graph, wrong, lambda row: f"Its type is {_type_name(int(graph.type[row]))}.")
    insane = np.flatnonzero((graph.duration_us < 0) | (graph.duration_us > _LONGEST_US))
    yield Breach("duration", graph, insane, lambda row: f"Its duration is {graph.nodes[row].duration_us} microseconds.")


def _type_name(number: int) -> str:
    return NODE_TYPES[number] if 0 <= number < len(NODE_TYPES) else f"{number}, which the schema does not have"


def _check_start_times(graph: RankGraph) -> Iterator[Breach]:
    if len(graph) > 1 and not graph.start_ns.any():
        yield Breach("start-times", graph, WHOLE_FILE, lambda _: "No node has a start time.")
        return
    before, after = graph.edges
    start_us = graph.start_ns // 1000  # files hold microseconds: less is no order
    early = np.flatnonzero((start_us[after] < start_us[before]) & (graph.type[before] != METADATA))
    _, first = np.unique(after[early], return_index=True)
    cause = dict(zip(after[early[first]].tolist(), before[early[first]].tolist(), strict=True))

    def sentence(row: int) -> str:
        other = cause[row]
        by = int(start_us[other] - start_us[row])
        return f"It started {by} us before node {graph.label(other)}, which it depends on."

    yield Breach("start-order", graph, np.array(list(cause), np.int64), sentence)
