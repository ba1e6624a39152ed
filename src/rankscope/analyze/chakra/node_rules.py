"""Rules about the attributes of nodes: where they run, what they communicate, with whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rankscope.analyze.chakra.catalogue import Breach
from rankscope.analyze.chakra.columns import INTEGER_KINDS, RankGraph
from rankscope.analyze.chakra.groups import WORLD, Groups, is_group_number
from rankscope.analyze.chakra.partners import collective_name
from rankscope.model.chakra import (
    COLLECTIVE_TYPES,
    COMM_COLL,
    COMM_RECV,
    COMM_SEND,
    MEM_LOAD,
    MEM_STORE,
    METADATA,
    NODE_TYPES,
)
from rankscope.model.tables import MISSING, Array

# What both feeders read. FeederV3 converts between integers of all kinds, the older feeder takes this kind alone.
_KINDS = {
    "is_cpu_op": "bool",
    "num_ops": "int64",
    "tensor_size": "uint64",
    "comm_type": "int64",
    "comm_priority": "int32",
    "comm_size": "int64",
    "comm_src": "int32",
    "comm_dst": "int32",
    "comm_tag": "int32",
    "pg_name": "string",
    "involved_dim": "bool_list",
}
_SIMULATED = tuple(
    COLLECTIVE_TYPES.index(name) for name in ("all_reduce", "all_to_all", "all_gather", "reduce_scatter", "broadcast")
)
_NUMBERS = INTEGER_KINDS | {"bool"}
_BARRIER = COLLECTIVE_TYPES.index("barrier")


def check_nodes(graph: RankGraph, groups: Groups, world_size: int) -> Iterator[Breach]:
    yield from _check_place(graph)
    yield from _check_kinds(graph)
    yield from _check_amounts(graph)
    yield from _check_groups(graph, groups)
    yield from _check_peers(graph, world_size)


def _check_place(graph: RankGraph) -> Iterator[Breach]:
    absent = [row for row, node in enumerate(graph.nodes) if "is_cpu_op" not in node.attributes]
    yield Breach("is-cpu-op-missing", graph, np.array(absent, np.int64), lambda _: "It has no is_cpu_op.")
    on_cpu = graph.comm_rows[graph.on_cpu[graph.comm_rows]]
    yield Breach("comm-on-cpu", graph, on_cpu, lambda _: "It communicates and has is_cpu_op=true.")


def _check_kinds(graph: RankGraph) -> Iterator[Breach]:
    unreadable: dict[int, str] = {}
    converted: dict[int, str] = {}
    wanted = _KINDS.get
    for row, node in enumerate(graph.nodes):
        for name, attribute in node.attributes.items():
            kind = wanted(name)
            if kind is not None and attribute.kind != kind:
                problems = converted if _is_converted(attribute.kind, kind) else unreadable
                problems[row] = f"Its {name} has the kind {attribute.kind}, not {kind}."
    yield Breach("attribute-unreadable", graph, np.array(list(unreadable), np.int64), unreadable.__getitem__)
    yield Breach("attribute-kind", graph, np.array(list(converted), np.int64), converted.__getitem__)


def _is_converted(kind: str, wanted: str) -> bool:
    return (kind in _NUMBERS and wanted in _NUMBERS) or (kind, wanted) == ("bytes", "string")


def _check_amounts(graph: RankGraph) -> Iterator[Breach]:
    collectives = np.flatnonzero(graph.type == COMM_COLL)
    types = graph.integers("comm_type", collectives)
    known = (types >= 0) & (types < len(COLLECTIVE_TYPES))
    yield Breach("comm-type", graph, collectives[~known], lambda row: _describe_amount(graph, row, "comm_type"))
    yield Breach(
        "comm-type-unsupported",
        graph,
        collectives[known & ~np.isin(types, _SIMULATED)],
        lambda row: f"It is a {collective_name(graph, row)}.",
    )
    rows = graph.comm_rows
    sizes = graph.integers("comm_size", rows)
    is_barrier = (graph.type[rows] == COMM_COLL) & (graph.integers("comm_type", rows) == _BARRIER)
    too_small = (sizes <= 0) & ~(is_barrier & (sizes == 0))
    yield Breach("comm-size", graph, rows[too_small], lambda row: _describe_amount(graph, row, "comm_size"))
    memory = np.flatnonzero(np.isin(graph.type, (MEM_LOAD, MEM_STORE)))
    unsized = memory[graph.integers("tensor_size", memory) == MISSING]
    yield Breach("mem-size", graph, unsized, lambda row: _describe_amount(graph, row, "tensor_size"))


def _describe_amount(graph: RankGraph, row: int, name: str) -> str:
    attribute = graph.attribute(row, name)
    return f"It has no {name}." if attribute is None else f"Its {name} is {attribute.value!r}."


def _check_groups(graph: RankGraph, groups: Groups) -> Iterator[Breach]:
    reasons = dict(groups.mistakes)
    yield Breach(
        "group-metadata",
        graph,
        np.array(list(reasons), np.int64),
        lambda row: f"As the feeder reads it, {reasons[row]}",
    )
    rows = graph.comm_rows
    names = dict(zip(rows.tolist(), groups.names, strict=True))
    verdicts = {name: _group_rule(name, groups, graph.rank) for name in set(groups.names)}
    by_row = np.array([verdicts[name] for name in groups.names], object)
    yield Breach(
        "pg-name",
        graph,
        rows[by_row == "pg-name"],
        lambda row: f"Its group is named {names[row]!r}, which is not a number.",
    )
    yield Breach(
        "group-undescribed",
        graph,
        rows[by_row == "group-undescribed"],
        lambda row: f"No METADATA node of the file describes its group {names[row]}.",
    )
    yield Breach(
        "not-a-member",
        graph,
        rows[by_row == "not-a-member"],
        lambda row: f"Rank {graph.rank} is not in its group {names[row]}: {_listed(groups.described[names[row]])}.",
    )
    yield from _check_group_order(graph, groups)


def _group_rule(name: str, groups: Groups, rank: int | None) -> str:
    if name != WORLD and not is_group_number(name):
        return "pg-name"
    members = groups.described.get(name)
    if members is None:
        return "group-undescribed"
    return "not-a-member" if name != WORLD and rank is not None and rank not in members else ""


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"{shown}, ... ({len(ranks)} ranks)" if len(ranks) > 8 else shown


def _check_group_order(graph: RankGraph, groups: Groups) -> Iterator[Breach]:
    if set(groups.names) <= {WORLD}:
        return
    metadata = np.flatnonzero(graph.type == METADATA)
    others = np.flatnonzero((graph.type != METADATA) & ~graph.has_dependencies)
    first_other = graph.id[others].min() if len(others) else np.uint64(2**64 - 1)
    late = metadata[graph.has_dependencies[metadata] | (graph.id[metadata] > first_other)]
    yield Breach("group-late", graph, late, lambda _: "It describes groups, but other nodes can be issued before it.")


def _check_peers(graph: RankGraph, world_size: int) -> Iterator[Breach]:
    for kind, peer_name, own_name in ((COMM_SEND, "comm_dst", "comm_src"), (COMM_RECV, "comm_src", "comm_dst")):
        rows = np.flatnonzero(graph.type == kind)
        absent = {
            row: missing
            for row in rows.tolist()
            if (missing := [name for name in (peer_name, "comm_tag") if graph.attribute(row, name) is None])
        }
        yield _missing_peers(graph, absent, NODE_TYPES[kind])
        yield _wrong_peers(graph, rows, (peer_name, own_name), world_size)


def _missing_peers(graph: RankGraph, absent: dict[int, list[str]], kind: str) -> Breach:
    return Breach(
        "peer-missing",
        graph,
        np.array(list(absent), np.int64),
        lambda row: f"This {kind} has no {' and no '.join(absent[row])}.",
    )


def _wrong_peers(graph: RankGraph, rows: Array, names: tuple[str, str], world_size: int) -> Breach:
    peer_name, own_name = names
    peers, own_ranks = graph.integers(peer_name, rows), graph.integers(own_name, rows)
    has_peer = np.array([graph.attribute(row, peer_name) is not None for row in rows.tolist()], bool)
    wrong = has_peer & (peers < 0)
    wrong |= peers >= world_size
    if graph.rank is not None:
        wrong |= peers == graph.rank
        wrong |= (own_ranks != MISSING) & (own_ranks != graph.rank)

    def sentence(row: int) -> str:
        attributes = {name: graph.attribute(row, name) for name in (peer_name, own_name)}
        said = " and ".join(
            f"{name} {attribute.value!r}" for name, attribute in attributes.items() if attribute is not None
        )
        return f"It belongs to rank {graph.rank} and has {said}."

    return Breach("peer", graph, rows[wrong], sentence)
