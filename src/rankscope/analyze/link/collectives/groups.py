"""The process group of each collective of execution traces: its name, and its members as global ranks.

What the call, the profiler or a Flight Recorder says of it counts. A call that none of them names is of the only group
of its process, if it has one; else its group is unknown, and what all possible groups have in common is all that is
known of it.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from rankscope.analyze.collectives.groups import UNKNOWN_GROUP, Mention, listed_groups, resolve_mentions
from rankscope.analyze.collectives.resolved import IS_GUESS
from rankscope.analyze.collectives.twins import Twin, recorded_calls, recorded_twins, twins_by_order
from rankscope.analyze.link.collectives.calls import Calls
from rankscope.analyze.link.collectives.runs import Runners
from rankscope.analyze.path.work import numbered
from rankscope.model.tables import MISSING, Array, Text, Trace

_RECORDED_GROUPS = f"""
    SELECT group_id, name, CASE WHEN {IS_GUESS} THEN [] ELSE list(rank ORDER BY group_rank) END
    FROM groups AS g JOIN group_members USING (group_id) GROUP BY group_id, name, inferred
"""


class Group(NamedTuple):
    """As an execution trace lists it, or a Flight Recorder."""

    name: str
    backend: str
    ranks: tuple[int, ...]


class Memberships(NamedTuple):
    """One entry per call."""

    name: Text  # empty when unknown
    is_inferred: Array
    ranks: Text  # as JSON; an empty list when unknown
    size: Array
    partner: Array  # root or peer as a global rank
    twins: list[Twin]  # the same calls in the Flight Recorder


class _Words(NamedTuple):
    """All that the traces say about the group of a call."""

    file_id: int
    rank: int
    name: str
    size: int
    first_rank: int
    stride: int
    profile_id: int
    ranks: str
    group_ids: str  # those in the Flight Recorder's table that it may be, with commas between them


class _Members(NamedTuple):
    name: str
    size: int
    is_told: bool
    possible: tuple[tuple[int, ...], ...]  # the members of the group, or those of all groups that it may be

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.possible[0] if len(set(self.possible)) == 1 else ()


def memberships(trace: Trace, calls: Calls, runners: Runners) -> Memberships:
    twins = _twins(trace, calls)
    # The profiler's word first: the oldest execution traces have an address where later ones have a name.
    name = np.where(runners.seen.group_name == "", calls.group_name, runners.seen.group_name)
    size = np.where(calls.group_size == MISSING, runners.seen.group_size, calls.group_size)
    group_ids = np.array([",".join(map(str, twin.group_ids)) for twin in twins], object)
    by_call = (calls.file_id, calls.rank, name, size, calls.first_rank, calls.stride)
    columns = (*by_call, runners.seen.profile_id, runners.seen.group_ranks, group_ids)
    first, code = _distinct(columns)
    words = [_Words(*row) for row in zip(*(column[first].tolist() for column in columns), strict=True)]
    members = _members(trace, words)
    peers = np.array([twin.peer for twin in twins], np.int64)
    return Memberships(
        Text.encode(group.name for group in members).take(code),
        ~np.array([group.is_told for group in members], bool)[code],
        Text.encode(msgspec.json.encode(group.ranks).decode() for group in members).take(code),
        np.array([group.size for group in members], np.int32)[code],
        np.where(peers == MISSING, _global_ranks(members, code, calls.partner), peers),
        twins,
    )


def _twins(trace: Trace, calls: Calls) -> list[Twin]:
    """By the operator in the profiler's trace, else by the order of calls."""
    if not trace.has("collectives"):
        return [Twin()] * len(calls)
    links = trace.table("et_links")
    linked = zip(*(links.array(name)[calls.place].tolist() for name in ("profile_id", "rank", "op_id")), strict=True)
    by_operator = recorded_twins(trace)
    twins = [by_operator.get((profile_id, rank), {}).get(op_id, Twin()) for profile_id, rank, op_id in linked]
    is_linked = links.array("profile_id")[calls.place] != MISSING
    ranks = trace.table("ranks")
    dropped = dict(zip(ranks.array("rank").tolist(), ranks.array("n_dropped").tolist(), strict=True))
    for file_id in np.unique(calls.file_id[~is_linked]).tolist():
        rows = np.flatnonzero((calls.file_id == file_id) & ~is_linked)
        rows = rows[np.argsort(calls.turn[rows], kind="stable")]
        rank = int(calls.rank[rows[0]])
        if len(rows) == np.count_nonzero(calls.file_id == file_id) and dropped.get(rank, MISSING) == 0:
            in_order = twins_by_order(
                recorded_calls(trace).get(rank, []), calls.op[rows].tolist(), calls.n_in[rows].tolist()
            )
            for row, twin in zip(rows.tolist(), in_order, strict=True):
                twins[row] = twin
    return twins


def _listed_groups(trace: Trace) -> dict[int, list[Group]]:
    """By execution trace, in the order in which they were made. Where all ranks are members, torch lists none."""
    listed: dict[int, dict[str, Group]] = {}
    for row in trace.table("et_groups").rows():
        ranks = tuple(msgspec.json.decode(row["ranks"] or "[]", type=list[int])) or tuple(range(max(row["size"], 0)))
        listed.setdefault(row["file_id"], {})[row["name"]] = Group(row["name"], row["backend"], ranks)
    # The profiler lists them at the end of its work, when there may be more.
    by_profile = listed_groups(trace.table("profiles"))
    links = trace.table("et_links")
    pairs = np.unique(np.stack((links.array("file_id"), links.array("profile_id"))), axis=1).T.tolist()
    for file_id, profile_id in pairs:
        for group in by_profile.get(profile_id, {}).values():
            listed.setdefault(file_id, {}).setdefault(group.name, Group(group.name, "", group.ranks))
    return {file_id: list(groups.values()) for file_id, groups in listed.items()}


def _distinct(columns: tuple[Array, ...]) -> tuple[Array, Array]:
    """The first row of each distinct combination of values, and per row the number of its combination."""
    numbers = (np.unique(column, return_inverse=True)[1] if column.dtype == object else column for column in columns)
    code = numbered(*numbers)
    return np.unique(code, return_index=True)[1], code


def _members(trace: Trace, words: list[_Words]) -> list[_Members]:
    """By what the Flight Recorder or the execution trace lists, by what the call says, by the profiler's trace."""
    listed = _listed_groups(trace)
    recorded = {row[0]: Group(row[1], "", tuple(row[2])) for row in trace.sql(_RECORDED_GROUPS).rows()}
    mentions = [
        Mention(word.profile_id, word.rank, word.name, "", word.ranks, word.size, is_on_host=False, lane=MISSING)
        for word in words
    ]
    known, group_of_mention = resolve_mentions(trace, mentions)
    members = []
    for word, number in zip(words, group_of_mention, strict=True):
        if word.group_ids:
            members.append(_one_of(word, [recorded[int(group_id)] for group_id in word.group_ids.split(",")]))
        elif not word.name:
            groups = listed.get(word.file_id, [])
            members.append(_one_of(word, [group for group in groups if "gloo" in group.backend] or groups))
        else:
            by_profile = known[number].ranks if number != UNKNOWN_GROUP and not known[number].is_inferred else ()
            ranks = _listed_ranks(word, listed) or _evenly_spaced(word) or by_profile
            size = word.size if word.size != MISSING else len(ranks) or MISSING
            members.append(_Members(word.name, size, bool(ranks), (ranks,)))
    return members


def _one_of(word: _Words, possible: list[Group]) -> _Members:
    """What the groups have in common that a call without a name may belong to."""
    names, sizes = {group.name for group in possible}, {len(group.ranks) or MISSING for group in possible}
    is_one = len(names) == 1
    size = word.size if word.size != MISSING else sizes.pop() if len(sizes) == 1 else MISSING
    return _Members(names.pop() if is_one else "", size, is_one, tuple(group.ranks for group in possible))


def _listed_ranks(word: _Words, listed: dict[int, list[Group]]) -> tuple[int, ...]:
    for group in listed.get(word.file_id, ()):
        if group.name == word.name and word.size in (MISSING, len(group.ranks)):
            return group.ranks
    return ()


def _evenly_spaced(word: _Words) -> tuple[int, ...]:
    if word.first_rank < 0 or word.stride < 1 or word.size < 1:
        return ()
    return tuple(range(word.first_rank, word.first_rank + word.size * word.stride, word.stride))


def _global_ranks(members: list[_Members], code: Array, position: Array) -> Array:
    """The ranks at places in groups; MISSING where the group has no such place, or the possible groups differ."""
    known: dict[tuple[int, int], int] = {}
    for group, at in set(zip(code.tolist(), position.tolist(), strict=True)):
        ranks = {ranks[at] for ranks in members[group].possible if 0 <= at < len(ranks)}
        known[group, at] = ranks.pop() if len(ranks) == 1 else MISSING
    pairs = zip(code.tolist(), position.tolist(), strict=True)
    return np.fromiter((known[pair] for pair in pairs), np.int64, len(code))
