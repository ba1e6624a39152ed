"""The desync report of a process group: where each rank is in its sequence of collectives, as in torch's tracker.

Nothing here raises: a store that is down or an unreadable value gives a partial report that says so.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from rankscope.collect.desync.values import decode_state, end_key, start_key

TITLE = "rankscope desync report"
LAST_LINE = "end of desync report"
_MAX_PLAIN_RANKS = 16  # more of them are written as ranges
_MAX_REASON = 160
_PLAIN_NAME = re.compile(r'[^\s"()]+')


class Store(Protocol):
    """What is needed of a store: any of torch's has it."""

    def check(self, keys: list[str]) -> bool: ...

    def get(self, key: str) -> bytes: ...


@dataclass(frozen=True)
class Group:
    """A process group. `key` is what its keys in the store begin with, where that is not its name."""

    name: str
    desc: str
    size: int
    ranks: tuple[int, ...] = ()  # global, in the order of the group; empty where they are not known
    key: str = ""


class MemberState(NamedTuple):
    """The latest state of one rank."""

    rank: int  # in the group
    seq: int
    op: str
    is_finished: bool
    last_finished: int  # sequence number of the newest collective that it finished; -1: none


class Unreadable(NamedTuple):
    rank: int
    why: str


@dataclass(frozen=True)
class GroupState:
    group: Group
    members: tuple[MemberState, ...]
    never_joined: tuple[int, ...]
    unreadable: tuple[Unreadable, ...]

    @property
    def lagging(self) -> tuple[MemberState, ...]:
        """Those whose latest state has the lowest sequence number; as in torch, missing ranks come first."""
        if self.never_joined or not self.members:
            return ()
        lowest = min(member.seq for member in self.members)
        return tuple(member for member in self.members if member.seq == lowest)

    @property
    def is_in_step(self) -> bool:
        latest = {(member.seq, member.is_finished) for member in self.members}
        return not (self.never_joined or self.unreadable) and len(latest) == 1 and next(iter(latest))[1]


def read_group(store: Store, group: Group) -> GroupState:
    """Asks the store about every rank of the group. A store that fails once is not asked again: it may be slow to."""
    members: list[MemberState] = []
    missing: list[int] = []
    unreadable: list[Unreadable] = []
    failure = ""
    for rank in range(group.size):
        if failure:
            unreadable.append(Unreadable(rank, failure))
            continue
        try:
            member = _read_member(store, group.key or group.name, rank)
        except ValueError as error:
            unreadable.append(Unreadable(rank, str(error)))
        except Exception as error:  # each kind of store has its own errors
            failure = f"the store does not answer: {_reason(error)}"
            unreadable.append(Unreadable(rank, failure))
        else:
            if member is None:
                missing.append(rank)
            else:
                members.append(member)
    return GroupState(group, tuple(members), tuple(missing), tuple(unreadable))


def _read_member(store: Store, name: str, rank: int) -> MemberState | None:
    start = start_key(name, rank)
    if not store.check([start]):
        return None
    latest = decode_state(store.get(start))
    end = end_key(name, rank)
    finished = decode_state(store.get(end)) if store.check([end]) else None
    # A send has the number of the collective before it: the name tells which of the two has finished.
    return MemberState(rank, latest.seq, latest.op, finished == latest, finished.seq if finished else -1)


def _reason(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_REASON]


def report_lines(states: Sequence[GroupState], speaker: str, own_rank: int = -1, time_ns: int = 0) -> list[str]:
    """The whole report. `speaker`: `rank 0 of 4 on host gpu-1`. `own_rank`: the rank (of the job) that timed out."""
    moment = time.gmtime((time_ns or time.time_ns()) // 1_000_000_000)
    lines = [f"{TITLE}, {time.strftime('%Y-%m-%d %H:%M:%S', moment)} UTC, {speaker}"]
    for state in states:
        lines += _group_lines(state, own_rank)
    return [*lines, LAST_LINE]


def _group_lines(state: GroupState, own_rank: int) -> Iterable[str]:
    group = state.group
    described = f" {json.dumps(group.desc)}" if group.desc else ""
    listed = f": {numbers(group.ranks)}" if group.ranks else ""
    size = f"{group.size} rank{'' if group.size == 1 else 's'}"
    name = group.name if _PLAIN_NAME.fullmatch(group.name) else json.dumps(group.name)
    yield f"group {name}{described} ({size}{listed}), collective state from the job's store"
    own_position = group.ranks.index(own_rank) if own_rank in group.ranks else -1
    for member in state.members:
        if member.rank == own_position and not member.is_finished:
            yield f" - [{member.rank}] Timeout at collective: {member.op}, #{member.seq}"
    if state.never_joined:
        yield f" - Ranks that never joined any collective: [{numbers(state.never_joined)}]"
    elif state.members:
        yield from _lagging_lines(state)
    if state.members:
        yield " - Latest state of each rank:"
        yield from _snapshot_lines(state.members)
    for why in dict.fromkeys(each.why for each in state.unreadable):
        ranks = [each.rank for each in state.unreadable if each.why == why]
        which = f"rank{'' if len(ranks) == 1 else 's'} {numbers(ranks)}"
        yield f" - Partial report: the store gave nothing readable for {which} ({why})"


def _lagging_lines(state: GroupState) -> Iterable[str]:
    lagging = state.lagging
    seq = lagging[0].seq
    if state.is_in_step:
        yield f" - No rank lags: all finished collective #{seq} (counted from 1)"
        return
    joined = [member.rank for member in lagging if not member.is_finished]
    finished = [member.rank for member in lagging if member.is_finished]
    yield " - Lagging ranks:"
    if joined:
        yield f"   - [{numbers(joined)}] joined but did not finish collective #{seq} (counted from 1)"
    if finished:
        ending = f"finished collective #{seq} but did not join collective #{seq + 1} (counted from 1)"
        yield f"   - [{numbers(finished)}] {ending}"


def _snapshot_lines(members: Sequence[MemberState]) -> Iterable[str]:
    alike: dict[tuple[int, bool], dict[str, list[int]]] = {}
    for member in members:
        alike.setdefault((member.seq, member.is_finished), {}).setdefault(member.op, []).append(member.rank)
    for (seq, is_finished), by_op in sorted(alike.items()):
        word = "finished" if is_finished else "started"
        yield f"   #{seq} {word}:"
        for op, ranks in sorted(by_op.items(), key=lambda item: item[1]):
            yield f"     [{numbers(ranks)}] {word} {op}"


def numbers(ranks: Sequence[int]) -> str:
    """`0, 1, 5`; many of them as `0-511, 513-1023`, the order kept."""
    if len(ranks) <= _MAX_PLAIN_RANKS:
        return ", ".join(map(str, ranks))
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def report_record(state: GroupState) -> dict[str, Any]:
    """The same as a plain dict, for JSON."""
    group, lagging = state.group, state.lagging
    return {
        "group": {"name": group.name, "desc": group.desc, "size": group.size, "ranks": list(group.ranks)},
        "in_step": state.is_in_step,
        "never_joined": list(state.never_joined),
        "lagging": None
        if not lagging or state.is_in_step
        else {
            "seq": lagging[0].seq,
            "joined": [member.rank for member in lagging if not member.is_finished],
            "finished": [member.rank for member in lagging if member.is_finished],
        },
        "latest": [
            {
                "rank": member.rank,
                "global_rank": group.ranks[member.rank] if member.rank < len(group.ranks) else None,
                "seq": member.seq,
                "op": member.op,
                "state": "finished" if member.is_finished else "started",
                "last_finished": member.last_finished if member.last_finished >= 0 else None,
            }
            for member in state.members
        ],
        "unreadable": [{"rank": each.rank, "why": each.why} for each in state.unreadable],
    }
