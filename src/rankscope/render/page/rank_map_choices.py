"""What can be shown on a map: the collectives or transfers of one group, or of several groups of one kind.

Groups of one kind (all tensor-parallel groups, say) share a map where no rank is in two of them: one row per rank shows
at a glance which of hundreds of small groups came to a halt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from rankscope.model.finding import Finding, GroupRef, count_noun
from rankscope.model.tables import Array, Table, Trace
from rankscope.render.page.rank_map_calls import clipped

Kind = Literal["collectives", "transfers", "profiled", "profiled transfers"]
MAX_CELLS = 80_000_000  # a byte each, in four layers
_MAX_TRIED = 8


class Group(NamedTuple):
    """`key` is the group's number in groups, or in comm_groups."""

    key: int
    name: str
    desc: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Choice:
    number: int
    kind: Kind
    groups: tuple[Group, ...]
    n_columns: int  # of the group with the most
    n_unwell: int  # logical calls that did not end well

    @property
    def block(self) -> str:
        return f"map-{self.number}"

    @property
    def is_profiled(self) -> bool:
        return self.kind in ("profiled", "profiled transfers")

    @property
    def n_ranks(self) -> int:
        return sum(len(group.ranks) for group in self.groups)

    @property
    def noun(self) -> str:
        return "transfer" if "transfers" in self.kind else "collective"

    @property
    def title(self) -> str:
        first = self.groups[0]
        if len(self.groups) > 1:
            said = f"{clipped(first.desc) or 'unnamed'}: {len(self.groups):,} groups of {len(first.ranks):,}"
        else:
            desc = f' "{clipped(first.desc)}"' if first.desc else ""
            said = f"group {clipped(first.name) or first.key}{desc} ({count_noun(len(first.ranks), 'rank')})"
        said += ", transfers" if self.noun == "transfer" else ""
        return said + (", profiled" if self.is_profiled else "")

    @property
    def row_ranks(self) -> tuple[Array, Array]:
        """The ranks in order, and the position of each one's group."""
        ranks = np.array([rank for group in self.groups for rank in group.ranks], np.int32)
        groups = np.repeat(np.arange(len(self.groups), dtype=np.int32), [len(group.ranks) for group in self.groups])
        order = np.argsort(ranks, kind="stable")
        return ranks[order], groups[order]

    def has(self, named: GroupRef) -> bool:
        ranks = tuple(sorted(named.ranks))
        return any(group.name == named.name and group.ranks == ranks for group in self.groups)

    def about(self) -> dict[str, Any]:
        groups = [[self.key_of(group), clipped(group.name), clipped(group.desc)] for group in self.groups]
        return {"noun": self.noun, "profiled": self.is_profiled, "groups": groups}

    def key_of(self, group: Group) -> str:
        """As a deep link names it."""
        return f"p{group.key}" if self.is_profiled else str(group.key)


def choices(trace: Trace) -> list[Choice]:
    all_choices: list[Choice] = []
    for kind, groups, counts, unwell in (*_recorded(trace), *_profiled(trace)):
        for family in _families(groups):
            used = [group for group in family if counts[group.key] and group.ranks]
            for together in _together(used, counts):
                n_columns = max(int(counts[group.key]) for group in together)
                n_unwell = sum(int(unwell[group.key]) for group in together)
                all_choices.append(Choice(len(all_choices), kind, tuple(together), n_columns, n_unwell))
    return all_choices


_Source = tuple[Kind, list[Group], Array, Array]  # logical calls per group, and those that did not end well


def _recorded(trace: Trace) -> Iterator[_Source]:
    table, matches = trace.table("groups"), trace.table("matches")
    members = _members(trace.table("group_members"), len(table))
    groups = [Group(row["group_id"], row["name"], row["description"], members[row["group_id"]]) for row in table.rows()]
    is_unwell = ~matches.text("state").equals("done")
    for kind, is_p2p in (("collectives", False), ("transfers", True)):
        chosen = matches.array("is_p2p") == is_p2p
        ids = matches.array("group_id")
        counts, unwell = (np.bincount(ids[which], minlength=len(table)) for which in (chosen, chosen & is_unwell))
        yield kind, groups, counts, unwell  # type: ignore[misc]


def _members(table: Table, n_groups: int) -> list[tuple[int, ...]]:
    members: list[list[int]] = [[] for _ in range(n_groups)]
    for group, rank in zip(table.array("group_id").tolist(), table.array("rank").tolist(), strict=True):
        members[group].append(rank)
    return [tuple(sorted(ranks)) for ranks in members]


def _profiled(trace: Trace) -> Iterator[_Source]:
    if not trace.has("comms"):
        return
    table, matches = trace.table("comm_groups"), trace.table("comm_matches")
    groups = [
        Group(row["group_key"], row["name"], row["desc"], tuple(sorted(msgspec.json.decode(row["ranks"]))))
        for row in table.rows()
    ]
    n_groups = int(table.array("group_key").max(initial=-1)) + 1
    keys, is_p2p = matches.array("group_key"), matches.array("is_p2p")
    for kind, chosen in (("profiled", ~is_p2p), ("profiled transfers", is_p2p)):
        counts = np.bincount(keys[chosen & (keys >= 0)], minlength=n_groups)
        yield kind, groups, counts, np.zeros_like(counts)  # type: ignore[misc]


def _families(groups: Iterable[Group]) -> list[list[Group]]:
    """Grouped by purpose and size. A rank in two groups of one family would need two rows: those stay apart."""
    families: list[list[Group]] = []
    by_kind: dict[tuple[str, int], list[tuple[list[Group], set[int]]]] = {}
    for group in groups:
        alike = by_kind.setdefault((group.desc, len(group.ranks)), [])
        for family, seen in alike[:_MAX_TRIED]:
            if seen.isdisjoint(group.ranks):
                family.append(group)
                seen.update(group.ranks)
                break
        else:
            families.append([group])
            alike.append((families[-1], set(group.ranks)))
    return families


def _together(groups: list[Group], counts: Array) -> Iterator[list[Group]]:
    """Those that have too many cells in all are shown one by one."""
    if not groups:
        return
    n_calls = [int(counts[group.key]) for group in groups]
    n_cells = sum(len(group.ranks) for group in groups) * max(n_calls)
    if n_cells <= MAX_CELLS:
        yield groups
    else:
        yield from ([group] for group in groups)


def first_choice(all_choices: list[Choice], findings: Sequence[Finding]) -> Choice:
    """That of the first finding that names a group, else the largest with something wrong, else the largest."""
    for finding in findings:
        named = [choice for choice in all_choices if finding.group and choice.has(finding.group)]
        is_transfer = finding.collective is not None and finding.collective.p2p
        named.sort(key=lambda choice: (choice.noun == "transfer") != is_transfer)
        if named:
            return named[0]
    return max(
        all_choices,
        key=lambda choice: (choice.n_unwell > 0, choice.n_ranks, choice.noun == "collective", -choice.number),
    )
