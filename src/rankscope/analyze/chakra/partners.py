"""Which communication of which ranks belongs together: collectives by group and order, transfers by ends and tag."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rankscope.analyze.chakra.columns import RankGraph
from rankscope.analyze.chakra.groups import Groups
from rankscope.model.chakra import COLLECTIVE_TYPES, COMM_COLL, COMM_SEND
from rankscope.model.tables import MISSING, Array


class GroupKey(NamedTuple):
    """Groups of the same name but other ranks are different groups."""

    name: str
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        return f"group {self.name}" if self.name else "all ranks"


class Calls(NamedTuple):
    """The collectives of one rank in one group, in the order in which they are issued."""

    graph: RankGraph
    rows: Array


def collectives_by_group(graphs: Sequence[RankGraph], books: Sequence[Groups]) -> dict[GroupKey, list[Calls]]:
    """Groups with at least one collective. A member that never calls has no rows, as long as its file is there."""
    called: dict[GroupKey, dict[int, Calls]] = defaultdict(dict)
    for number, (graph, groups) in enumerate(zip(graphs, books, strict=True)):
        rows = graph.comm_rows
        is_collective = graph.type[rows] == COMM_COLL
        names = np.array(groups.names, object)
        for name in sorted(set(names[is_collective].tolist())):
            group_rows = rows[is_collective & (names == name)]
            ranks = groups.described.get(name)
            if ranks is not None and (graph.rank is None or graph.rank in ranks):
                called[GroupKey(name, ranks)][number] = Calls(graph, group_rows[np.argsort(graph.by_time[group_rows])])
    nothing = np.empty(0, np.int64)
    return {
        key: [
            calls.get(number, Calls(graph, nothing))
            for number, graph in enumerate(graphs)
            if number in calls or graph.rank in key.ranks
        ]
        for key, calls in called.items()
    }


def collective_name(graph: RankGraph, row: int) -> str:
    attribute = graph.attribute(row, "comm_type")
    number = attribute.value if attribute is not None else None
    if isinstance(number, int) and 0 <= number < len(COLLECTIVE_TYPES):
        return COLLECTIVE_TYPES[number]
    return f"collective of type {number!r}"


class Transfer(NamedTuple):
    source: int
    target: int
    tag: int


def transfers(graph: RankGraph, kind: int) -> list[tuple[int, Transfer]]:
    """(row, which transfer) of the sends or of the receives of a rank, in the order in which they are issued.

    Those of a rank with itself are left out: they have no partner, which is a matter of the rule about peers.
    """
    rows = np.flatnonzero(graph.type == kind)
    rows = rows[np.argsort(graph.by_time[rows])]
    peers = graph.integers("comm_dst" if kind == COMM_SEND else "comm_src", rows).tolist()
    tags = graph.integers("comm_tag", rows).tolist()
    rank = graph.rank if graph.rank is not None else MISSING
    return [
        (row, Transfer(rank, peer, tag) if kind == COMM_SEND else Transfer(peer, rank, tag))
        for row, peer, tag in zip(rows.tolist(), peers, tags, strict=True)
        if peer != graph.rank
    ]
