"""Which group of ranks each traced call belongs to: from what any source of the capture says, else unknown."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rankscope.analyze.collectives.host_calls import decoded_list
from rankscope.analyze.derived import derived
from rankscope.model.numbers import MAX_ID, MAX_RANKS, integer, rank_number
from rankscope.model.tables import MISSING, Table, Trace

UNKNOWN_GROUP = MISSING
_LISTED_ELSEWHERE = """
    SELECT name, '[' || string_agg(rank, ',') || ']' FROM groups JOIN group_members USING (group_id)
    WHERE NOT inferred GROUP BY group_id, name
    UNION SELECT name, ranks FROM et_groups
    UNION SELECT group_name, members FROM desync_states
"""
_NUMBER = re.compile(r"\d+")


class CommGroup(NamedTuple):
    name: str
    desc: str
    ranks: tuple[int, ...]
    size: int
    is_inferred: bool = False


class Mention(NamedTuple):
    """How one trace names a group: all its calls with the same words. `lane` separates calls without any."""

    file_id: int
    rank: int
    name: str
    desc: str
    ranks: str
    size: int
    is_on_host: bool
    lane: int  # stream or thread
    generation: int = MISSING  # how often a group of this name was made before, where that is recorded


class Listed(NamedTuple):
    """A group as the head of a trace lists it."""

    name: str
    desc: str
    ranks: tuple[int, ...]


def resolve_mentions(trace: Trace, mentions: Sequence[Mention]) -> tuple[list[CommGroup], list[int]]:
    """The groups, and for each mention the number of its group or UNKNOWN_GROUP."""
    listed = listed_groups(trace.table("profiles"))
    traced = sorted({mention.rank for mention in mentions})
    keys = [_identity(mention, listed.get(mention.file_id, {}), traced) for mention in mentions]
    keys = _joined_by_name(mentions, keys, derived(trace, members_by_name))
    keys = _named_by_lane(mentions, keys)
    numbers: dict[_Key, int] = {}
    for key in sorted({key for key in keys if key is not None}, key=_key_order):
        numbers[key] = len(numbers)
    speakers: dict[_Key | None, list[Mention]] = {}
    for mention, spoken in zip(mentions, keys, strict=True):
        speakers.setdefault(spoken, []).append(mention)
    groups = [_describe(key, speakers[key], listed) for key in numbers]
    return groups, [UNKNOWN_GROUP if key is None else numbers[key] for key in keys]


class _Key(NamedTuple):
    """Names are ordinals of the job, which local groups may use twice: the members are part of the identity."""

    name: str
    ranks: tuple[int, ...]  # empty when not known
    generation: int = MISSING


def _key_order(key: _Key) -> tuple[int, str, tuple[int, ...], int]:
    return (integer(key.name, default=MAX_ID), *key)


def members_by_name(trace: Trace) -> dict[str, set[tuple[int, ...]]]:
    """What Flight Recorder dumps, execution traces and desync reports list; several groups may share a name."""
    known: dict[str, set[tuple[int, ...]]] = {}
    for name, ranks in trace.sql(_LISTED_ELSEWHERE).rows():
        members = tuple(sorted(rank for rank in decoded_list(ranks) if _is_rank(rank)))
        if name and members:
            known.setdefault(name, set()).add(members)
    return known


def listed_groups(profiles: Table) -> dict[int, dict[str, Listed]]:
    """Per trace the groups in its head, by name."""
    parsed: dict[str, list[dict[str, Any]]] = {}
    listed: dict[int, dict[str, Listed]] = {}
    for row in zip(*(profiles.columns[name].tolist() for name in ("file_id", "world_size", "groups")), strict=True):
        file_id, world_size, text = row
        if text not in parsed:
            parsed[text] = [entry for entry in decoded_list(text) if isinstance(entry, dict)]
        groups = [_listed(entry, world_size) for entry in parsed[text]]
        listed[file_id] = {group.name: group for group in groups}
    return listed


def _listed(entry: Mapping[str, Any], world_size: int) -> Listed:
    ranks = entry.get("ranks")
    members = tuple(filter(_is_rank, ranks)) if isinstance(ranks, list) else ()
    size = entry.get("pg_size", entry.get("group_size", 0))
    if not members and size in (0, world_size) and world_size > 0:
        members = _all_ranks(world_size)  # torch leaves the members out where they are all ranks
    return Listed(str(entry.get("pg_name", "")), str(entry.get("pg_desc", "")), tuple(sorted(members)))


def _is_rank(value: object) -> bool:
    return type(value) is int and 0 <= value < MAX_RANKS


@functools.lru_cache(maxsize=4)
def _all_ranks(world_size: int) -> tuple[int, ...]:
    return tuple(range(min(world_size, MAX_RANKS)))


def _identity(mention: Mention, listed: Mapping[str, Listed], traced: Sequence[int]) -> _Key | None:
    if mention.name or mention.ranks.strip(" []"):
        return _Key(mention.name, _members(mention, listed), mention.generation)
    if len(listed) == 1:  # a job with one group has nothing else to talk over
        only = next(iter(listed.values()))
        return _Key(only.name, only.ranks)
    if mention.is_on_host and not listed:
        return _Key("", tuple(traced))
    return None


def _members(mention: Mention, listed: Mapping[str, Listed]) -> tuple[int, ...]:
    if "..." not in mention.ranks and (
        ranks := tuple(sorted(filter(_is_rank, map(rank_number, _NUMBER.findall(mention.ranks)))))
    ):
        return ranks
    known = listed.get(mention.name)
    return known.ranks if known is not None and mention.size in (MISSING, len(known.ranks)) else ()


def _joined_by_name(
    mentions: Sequence[Mention], keys: Sequence[_Key | None], elsewhere: Mapping[str, set[tuple[int, ...]]]
) -> list[_Key | None]:
    """A trace that does not list the members of a group means the one of that name which its rank belongs to."""
    known: dict[str, set[tuple[int, ...]]] = {name: set(members) for name, members in elsewhere.items()}
    for key in dict.fromkeys(keys):
        if key is not None and key.ranks:
            known.setdefault(key.name, set()).add(key.ranks)
    joined: list[_Key | None] = []
    for mention, key in zip(mentions, keys, strict=True):
        if key is not None and not key.ranks:
            candidates = [members for members in known.get(key.name, ()) if mention.rank in members]
            key = key._replace(ranks=candidates[0]) if len(candidates) == 1 else key
        joined.append(key)
    return joined


def _lane(mention: Mention) -> tuple[int, int, int]:
    return mention.file_id, mention.rank, mention.lane


def _named_by_lane(mentions: Sequence[Mention], keys: Sequence[_Key | None]) -> list[_Key | None]:
    """A process gives each group its own stream: calls without a name belong to the group of their stream."""
    on_lane: dict[tuple[int, int, int], set[_Key]] = {}
    for mention, key in zip(mentions, keys, strict=True):
        if key is not None and not mention.is_on_host:
            on_lane.setdefault(_lane(mention), set()).add(key)
    named: list[_Key | None] = []
    for mention, key in zip(mentions, keys, strict=True):
        if key is None and not mention.is_on_host:
            candidates = on_lane.get(_lane(mention), set())
            key = next(iter(candidates)) if len(candidates) == 1 else None
        named.append(key)
    return named


def _describe(key: _Key, mentions: Sequence[Mention], listed: Mapping[int, Mapping[str, Listed]]) -> CommGroup:
    seen = tuple(sorted({mention.rank for mention in mentions}))
    descs = (mention.desc or _listed_desc(listed, mention.file_id, key.name) for mention in mentions)
    desc = next(filter(None, descs), "")
    size = max((mention.size for mention in mentions), default=MISSING)
    is_inferred = not key.ranks or not key.name
    return CommGroup(key.name, desc, key.ranks or seen, max(size, len(key.ranks or seen)), is_inferred)


def _listed_desc(listed: Mapping[int, Mapping[str, Listed]], file_id: int, name: str) -> str:
    group = listed.get(file_id, {}).get(name)
    return group.desc if group else ""


def inferred_groups(members: Iterable[Iterable[int]]) -> Iterator[CommGroup]:
    """Groups that only the common ends of their calls show."""
    for ranks in members:
        ordered = tuple(sorted(set(ranks)))
        yield CommGroup("", "", ordered, len(ordered), is_inferred=True)
