"""Whether all ranks mean the same group by its number: torch numbers groups in the order in which a rank makes them."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import msgspec

from rankscope.model.replicas import with_global_members
from rankscope.model.tables import Trace


@dataclass(frozen=True)
class GroupOrder:
    """One number that stands for different groups."""

    name: str
    ranks: tuple[int, ...]  # those that are alone with what they mean
    meant: str
    usual: str
    usual_ranks: tuple[int, ...]
    group: int  # of that name, as most ranks mean it


def find_group_orders(trace: Trace) -> list[GroupOrder]:
    """The lowest number that ranks disagree about: what follows is shifted by it."""
    config = with_global_members(trace.table("group_config"))
    meant: dict[str, dict[int, tuple[str, frozenset[int]]]] = defaultdict(dict)
    decoded: dict[str, frozenset[int]] = {}
    for row in config.rows():
        if row["name"].isdigit() and row["description"] not in ("", "undefined"):
            if row["members"] not in decoded:
                decoded[row["members"]] = frozenset(msgspec.json.decode(row["members"], type=list[int]))
            meant[row["name"]][row["rank"]] = (row["description"], decoded[row["members"]])
    for name in sorted(meant, key=int):
        order = _disagreement(trace, name, meant[name])
        if order is not None:
            return [order]
    return []


def _disagreement(trace: Trace, name: str, meant: dict[int, tuple[str, frozenset[int]]]) -> GroupOrder | None:
    """Ranks that take each other for members, and call the group by different descriptions."""
    votes = Counter(description for description, _ in meant.values())
    if len(votes) < 2:
        return None
    usual = votes.most_common(1)[0][0]
    usual_ranks = [rank for rank, (description, _) in meant.items() if description == usual]
    odd = [
        rank
        for rank, (description, members) in meant.items()
        if description != usual and any(other in members and rank in meant[other][1] for other in usual_ranks)
    ]
    if not odd or 2 * len(odd) >= len(odd) + len(usual_ranks):
        return None
    same = [rank for rank in odd if meant[rank][0] == meant[odd[0]][0]]
    names = trace.table("groups").text("name").tolist()
    group = names.index(name) if name in names else 0
    return GroupOrder(name, tuple(sorted(same)), meant[odd[0]][0], usual, tuple(sorted(usual_ranks)), group)
