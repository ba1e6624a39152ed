"""Rules about the files of a job together: the ranks that there are, collectives and transfers that need each other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import count, islice

import numpy as np

from rankscope.analyze.chakra.catalogue import WHOLE_FILE, Breach
from rankscope.analyze.chakra.columns import RankGraph
from rankscope.analyze.chakra.groups import Groups
from rankscope.analyze.chakra.partners import (
    Calls,
    GroupKey,
    Transfer,
    collective_name,
    collectives_by_group,
    transfers,
)
from rankscope.model.chakra import COMM_RECV, COMM_SEND

_RANKS_SHOWN = 8


def known_world_size(graphs: Sequence[RankGraph], books: Sequence[Groups]) -> int:
    """As far as the last rank that a file or a group names."""
    named = [graph.rank for graph in graphs if graph.rank is not None]
    named += [max(ranks) for groups in books for ranks in groups.described.values() if ranks]
    return max(named, default=-1) + 1


def check_files(graphs: Sequence[RankGraph], world_size: int) -> Iterator[Breach]:
    by_rank: dict[int, RankGraph] = {}
    for graph in graphs:
        if graph.rank is not None and by_rank.setdefault(graph.rank, graph) is not graph:
            yield _twice(graph, by_rank[graph.rank])
    n_absent = world_size - len(by_rank)
    if len(graphs) > 1 and n_absent > 0:  # a file alone is looked at for itself
        absent = islice((rank for rank in count() if rank not in by_rank), min(n_absent, _RANKS_SHOWN))
        shown = ", ".join(map(str, absent)) + (", ..." if n_absent > _RANKS_SHOWN else "")
        are = "rank is" if n_absent == 1 else "ranks are"
        says = f"{n_absent:,} {are} named by files or groups but {'has' if n_absent == 1 else 'have'} no file: {shown}."
        yield Breach("ranks-missing", graphs[0], WHOLE_FILE, lambda _: says)


def _twice(graph: RankGraph, first: RankGraph) -> Breach:
    return Breach("rank-twice", graph, WHOLE_FILE, lambda _: f"Rank {graph.rank} has a second file: {first.path}.")


def check_collectives(graphs: Sequence[RankGraph], books: Sequence[Groups]) -> Iterator[Breach]:
    """Ranks are compared with what most of their group do; only the first difference is listed, the rest follow."""
    for key, calls in collectives_by_group(graphs, books).items():
        types = [call.graph.integers("comm_type", call.rows) for call in calls]
        sizes = [call.graph.integers("comm_size", call.rows) for call in calls]
        ways = [(op_types.tobytes(), amounts.tobytes()) for op_types, amounts in zip(types, sizes, strict=True)]
        usual = ways.index(Counter(ways).most_common(1)[0][0])
        for odd in (index for index, way in enumerate(ways) if way != ways[usual]):
            n_shared = min(len(types[odd]), len(types[usual]))
            parted = np.flatnonzero(types[odd][:n_shared] != types[usual][:n_shared])
            n_same = int(parted[0]) if len(parted) else n_shared
            if n_same < max(len(types[odd]), len(types[usual])):
                yield _mismatch(key, calls[odd], calls[usual], n_same)
            yield _unequal(key, (calls[odd], calls[usual]), n_same)


def _mismatch(key: GroupKey, odd: Calls, usual: Calls, n_same: int) -> Breach:
    has, others = (
        collective_name(call.graph, int(call.rows[n_same])) if n_same < len(call.rows) else "none"
        for call in (odd, usual)
    )
    says = f"Rank {odd.graph.rank} has {has} as collective {n_same + 1} of {key}, rank {usual.graph.rank} has {others}."
    rows = odd.rows[n_same : n_same + 1] if n_same < len(odd.rows) else WHOLE_FILE
    return Breach("collective-mismatch", odd.graph, rows, lambda _: says)


def _unequal(key: GroupKey, pair: tuple[Calls, Calls], n_same: int) -> Breach:
    actual, usual = (call.graph.integers("comm_size", call.rows[:n_same]) for call in pair)
    odd, other = pair
    places = np.flatnonzero(actual != usual)
    place_of = dict(zip(odd.rows[places].tolist(), places.tolist(), strict=True))

    def sentence(row: int) -> str:
        position = place_of[row]
        return (
            f"It is collective {position + 1} of {key}: rank {odd.graph.rank} gives it {actual[position]} bytes, "
            f"rank {other.graph.rank} {usual[position]}."
        )

    return Breach("collective-size", odd.graph, odd.rows[places], sentence)


def check_transfers(graphs: Sequence[RankGraph]) -> Iterator[Breach]:
    """Counted by source, target, tag and size; those with a rank that has no file are left out."""
    sends, receives = (_ends(graphs, kind) for kind in (COMM_SEND, COMM_RECV))
    for ends, others, partner in ((sends, receives, "receive"), (receives, sends, "send")):
        lonely: dict[int, list[int]] = defaultdict(list)
        for key, entries in ends.items():
            for number, row in entries[len(others.get(key, ())) :]:
                lonely[number].append(row)
        yield from (_unmatched(graphs[number], rows, partner) for number, rows in lonely.items())


def _ends(graphs: Sequence[RankGraph], kind: int) -> dict[tuple[Transfer, int], list[tuple[int, int]]]:
    """(place of the graph, row) of all sends, or receives, that are alike."""
    present = {graph.rank for graph in graphs}
    ends: dict[tuple[Transfer, int], list[tuple[int, int]]] = defaultdict(list)
    for index, graph in enumerate(graphs):
        known_ends = [(row, transfer) for row, transfer in transfers(graph, kind) if {*transfer[:2]} <= present]
        sizes = graph.integers("comm_size", np.array([row for row, _ in known_ends], np.int64)).tolist()
        for (row, transfer), size in zip(known_ends, sizes, strict=True):
            ends[transfer, size].append((index, row))
    return ends


def _unmatched(graph: RankGraph, rows: list[int], partner: str) -> Breach:
    names = ("comm_dst" if partner == "receive" else "comm_src", "comm_tag", "comm_size")

    def sentence(row: int) -> str:
        values = [graph.attribute(row, name) for name in names]
        peer, tag, size = (attribute.value if attribute is not None else None for attribute in values)
        return f"Rank {peer!r} has no {partner} for it (tag {tag!r}, {size!r} bytes)."

    return Breach("transfer-unmatched", graph, np.array(sorted(rows), np.int64), sentence)
