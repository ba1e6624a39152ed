"""The process group of each collective: its name, and its members as global ranks."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from rankscope.analyze.comm.groups import UNKNOWN_GROUP, Mention, listed_groups, resolve_mentions
from rankscope.analyze.link.collectives.calls import Calls
from rankscope.analyze.link.collectives.runs import Runners
from rankscope.analyze.link.collectives.threads import Group, groups_of_threads
from rankscope.analyze.path.work import numbered
from rankscope.model.tables import MISSING, Array, Text, Trace


class Memberships(NamedTuple):
    """One entry per call."""

    name: Text
    is_inferred: Array
    ranks: Text  # as JSON
    size: Array
    partner: Array  # root or peer as a global rank


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


class _Members(NamedTuple):
    ranks: tuple[int, ...]
    size: int
    is_told: bool


def memberships(trace: Trace, calls: Calls, runners: Runners) -> Memberships:
    listed = _listed_groups(trace)
    # The profiler's word first: the oldest execution traces have an address where later ones have a name.
    name = np.where(runners.seen.group_name == "", calls.group_name, runners.seen.group_name)
    name, is_concluded = groups_of_threads(trace, calls, runners, name, listed)
    size = np.where(calls.group_size == MISSING, runners.seen.group_size, calls.group_size)
    by_call = (calls.file_id, calls.rank, name, size, calls.first_rank, calls.stride)
    columns = (*by_call, runners.seen.profile_id, runners.seen.group_ranks)
    first, code = _distinct(columns)
    words = [_Words(*row) for row in zip(*(column[first].tolist() for column in columns), strict=True)]
    members = _members(trace, words, listed)
    is_told = np.array([group.is_told for group in members], bool)[code]
    return Memberships(
        Text.encode(word.name for word in words).take(code),
        is_concluded | ~is_told,
        Text.encode(msgspec.json.encode(group.ranks).decode() for group in members).take(code),
        np.array([group.size for group in members], np.int32)[code],
        _global_ranks(members, code, calls.partner),
    )


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


def _members(trace: Trace, words: list[_Words], listed: dict[int, list[Group]]) -> list[_Members]:
    """By what the execution trace lists, else by what the call says, else by what the profiler's trace does."""
    mentions = [
        Mention(word.profile_id, word.rank, word.name, "", word.ranks, word.size, is_on_host=False, lane=MISSING)
        for word in words
    ]
    known, group_of_mention = resolve_mentions(mentions, trace.table("profiles"))
    everyone = tuple(range(int(trace.table("et_traces").array("rank").max(initial=MISSING)) + 1))
    members = []
    for word, number in zip(words, group_of_mention, strict=True):
        by_profile = known[number].ranks if number != UNKNOWN_GROUP and not known[number].is_inferred else ()
        ranks = _listed_ranks(word, listed) or _evenly_spaced(word) or by_profile
        size = word.size if word.size != MISSING else len(ranks or everyone)
        members.append(_Members(ranks or everyone, size, bool(ranks)))
    return members


def _listed_ranks(word: _Words, listed: dict[int, list[Group]]) -> tuple[int, ...]:
    for group in listed.get(word.file_id, ()):
        if group.name == word.name and word.size in (MISSING, len(group.ranks)):
            return group.ranks
    return ()


def _evenly_spaced(word: _Words) -> tuple[int, ...]:
    if word.first_rank < 0 or word.stride < 1 or word.size < 1:
        return ()
    return tuple(range(word.first_rank, word.first_rank + word.size * word.stride, word.stride))


def _global_ranks(members: list[_Members], code: Array, place: Array) -> Array:
    """The ranks at places in groups; MISSING where the group has no such place."""
    sizes = np.array([len(group.ranks) for group in members], np.int64)
    starts = np.cumsum(sizes) - sizes
    ranks = np.array([rank for group in members for rank in group.ranks] + [MISSING], np.int64)
    is_member = (place >= 0) & (place < sizes[code])
    return ranks[np.where(is_member, starts[code] + place, MISSING)]
