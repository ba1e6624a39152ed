"""Whether all ranks mean the same group by its number: torch numbers groups in the order in which a rank makes them."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import msgspec
import numpy as np

from rankscope.model.numbers import is_number
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
    usual_name: str = ""  # where the others have another number for what these ranks mean: that number


def find_group_orders(trace: Trace) -> list[GroupOrder]:
    """The lowest number that ranks disagree about: what follows is shifted by it."""
    config = with_global_members(trace.table("group_config"))
    meant: dict[str, dict[int, tuple[str, frozenset[int]]]] = defaultdict(dict)
    decoded: dict[str, frozenset[int]] = {}
    for row in config.rows():
        if is_number(row["name"]) and row["description"] not in ("", "undefined"):
            if row["members"] not in decoded:
                decoded[row["members"]] = frozenset(msgspec.json.decode(row["members"], type=list[int]))
            meant[row["name"]][row["rank"]] = (row["description"], decoded[row["members"]])
    for name in sorted(meant, key=int):
        order = _disagreement(trace, name, meant[name])
        if order is not None:
            return [order]
    return _renumbered(trace, meant) or _by_calls(trace)


def _renumbered(trace: Trace, meant: dict[str, dict[int, tuple[str, frozenset[int]]]]) -> list[GroupOrder]:
    """One group by description and members that has another number on some of them; no rank has it twice."""
    names_of: dict[tuple[str, frozenset[int]], dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, by_rank in meant.items():
        for rank, described in by_rank.items():
            names_of[described][rank].append(name)
    for (description, _), by_member in names_of.items():
        if len(by_member) < 3 or any(len(names) > 1 for names in by_member.values()):
            continue
        votes = Counter(names[0] for names in by_member.values())
        (usual_name, n_usual), *others = votes.most_common()
        if not others or 2 * n_usual <= len(by_member):
            continue
        name = others[0][0]
        odd = tuple(sorted(rank for rank, names in by_member.items() if names == [name]))
        usual_ranks = tuple(sorted(rank for rank, names in by_member.items() if names == [usual_name]))
        group = trace.table("groups").text("name").tolist().index(name)
        return [GroupOrder(name, odd, description, "", usual_ranks, group, usual_name)]
    return []


def _by_calls(trace: Trace) -> list[GroupOrder]:
    """Where no dump has the members, as on gloo: ranks that wait in a group of one role under different numbers.

    Only where no call of that role ever ended under either number, every rank has a dump, and all of them make their
    first call: the groups of one role that a job has by design do not all hang in their first call.
    """
    calls, groups = trace.table("collectives"), trace.table("groups")
    by_role: dict[str, list[int]] = defaultdict(list)
    for row in groups.rows():
        if row["inferred"] and is_number(row["name"]) and row["description"] not in ("", "default_pg"):
            by_role[row["description"]].append(row["group_id"])
    known, names = set(trace.table("ranks").array("rank").tolist()), groups.text("name")
    for role in sorted(role for role, numbers in by_role.items() if len(numbers) == 2):
        rows = np.flatnonzero(np.isin(calls.array("group_id"), by_role[role]))
        is_first = calls.array("seq")[rows].max(initial=0) <= 1 and not calls.text("status").equals("done")[rows].any()
        pairs = set(zip(calls.array("group_id")[rows].tolist(), calls.array("rank")[rows].tolist(), strict=True))
        if is_first and {rank for _, rank in pairs} == known == _everyone(trace):
            users = {group: tuple(sorted(rank for each, rank in pairs if each == group)) for group in by_role[role]}
            odd, usual = sorted(users, key=lambda group: len(users[group]))
            if len(users[odd]) < len(users[usual]):
                return [GroupOrder(names[odd], users[odd], role, "", users[usual], usual, names[usual])]
    return []


def _everyone(trace: Trace) -> set[int]:
    return set(trace.table("group_members").array("rank").tolist())


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
