"""Desync records of a job's key-value store, for programs: keys, values, and the report of which ranks are behind.

The same bytes and, with style="torch", the same text as torch's own tracker (TraceUtils.h). Standard library only:
neither torch nor numpy is needed. A store is anything with check(keys), get(key) and, to write, set(key, value): every
store of torch is one.

>>> desync.report({0: (5, "ALLREDUCE", False), 1: (4, "ALLREDUCE", True)}, own_rank=0)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol

from rankscope.collect.desync.report import (
    Group,
    GroupState,
    MemberState,
    Store,
    read_group,
    report_lines,
    report_record,
)
from rankscope.collect.desync.torch_report import (
    bracket_ranks,
    join_ranks,
    lagging_text,
    missing_text,
    snapshot_text,
    torch_report,
)
from rankscope.collect.desync.values import (
    State,
    StateKey,
    decode_state,
    encode_state,
    end_key,
    op_type,
    parse_key,
    start_key,
)

__all__ = [
    "Group",
    "GroupState",
    "MemberState",
    "RankState",
    "State",
    "StateKey",
    "Store",
    "Style",
    "bracket_ranks",
    "decode_state",
    "encode_state",
    "end_key",
    "join_ranks",
    "lagging",
    "missing",
    "op_type",
    "parse_key",
    "python_cpp_trace",
    "read_group",
    "read_state",
    "record",
    "report",
    "report_from_store",
    "snapshot",
    "start_key",
    "write_state",
]

Style = Literal["rankscope", "torch"]
_log = logging.getLogger("rankscope.desync")
_NOTHING = State(-1, "")


class RankState(NamedTuple):
    """The latest collective of a rank. A plain tuple does as well."""

    seq: int
    op: str  # in torch's terms: ALLREDUCE
    is_finished: bool


class WritableStore(Protocol):
    def set(self, key: str, value: bytes) -> object: ...


States = Mapping[int, tuple[int, str, bool] | None]  # by rank in the group; None: it never joined


def write_state(store: WritableStore, key: str, seq: int, op: str) -> bool:
    """Records in the store what a rank has started or finished. False if the store is down, which is logged."""
    value = encode_state(seq, op)
    try:
        store.set(key, value)
    except Exception:  # each kind of store has its own
        _log.error("Store is down while updating #%d with key %s", seq, key)
        return False
    return True


def read_state(store: Store, key: str) -> State | None:
    """The state under an existing key. None if the store is down or the value is not a state, which is logged."""
    try:
        return decode_state(store.get(key))
    except ValueError as error:
        _log.error("Key %s: %s", key, error)
    except Exception:
        _log.error("Store is down while getting key %s", key)
    return None


def report(states: States, *, size: int = 0, own_rank: int = -1, group: str = "0", style: Style = "rankscope") -> str:
    """The text that says which ranks are behind. `own_rank`: the rank that timed out.

    `size` is how many ranks the group has: the last ones may be missing in `states`.
    ValueError with style="torch": `own_rank` is in no collective that has started, as torch itself insists.
    """
    return _text(_group_state(states, size, group), own_rank, style)


def report_from_store(store: Store, group: str, own_rank: int, world_size: int, style: Style = "torch") -> str:
    """The report of a group of `world_size` ranks, read from its store.

    With style="torch" it is empty where the store is down, as with torch; the other style says so in the report.
    """
    if style == "torch":
        states = _read_as_torch(store, group, world_size)
        return _text(_group_state(states, world_size, group), own_rank, style) if states is not None else ""
    return _text(read_group(store, Group(group, "", world_size, tuple(range(world_size)))), own_rank, style)


def missing(ranks: list[int]) -> str:
    """torch's sentence about ranks that never joined any collective."""
    return missing_text(ranks)


def lagging(states: States) -> str:
    """torch's sentences about the ranks whose latest collective has the lowest number."""
    return lagging_text(_members(states))


def snapshot(states: States) -> str:
    """torch's list of the ranks' latest states."""
    return snapshot_text(_members(states))


def record(states: States, *, size: int = 0, group: str = "0") -> dict[str, Any]:
    """The report as a plain dict, as `rankscope desync --json` prints it."""
    return report_record(_group_state(states, size, group))


def python_cpp_trace() -> str:
    """The stack of the calling thread, Python and C++ frames together: `#0 func from file:line`. Needs torch."""
    from rankscope.collect.desync.layout import combined_frames, stack_lines

    return "".join(f"{line}\n" for line in stack_lines(combined_frames()))


def _text(state: GroupState, own_rank: int, style: Style) -> str:
    if style == "torch":
        return torch_report(state.members, state.never_joined, own_rank)
    if style != "rankscope":
        raise ValueError(f'style is "rankscope" or "torch", not {style!r}')
    return "\n".join(report_lines([state], "from states", own_rank)) + "\n"


def _group_state(states: States, size: int, group: str) -> GroupState:
    size = max(size, *(rank + 1 for rank in states), 0) if states else size
    members = _members(states)
    known = {member.rank for member in members}
    never = tuple(rank for rank in range(size) if rank not in known)
    return GroupState(Group(group, "", size, tuple(range(size))), tuple(members), never, ())


def _members(states: States) -> list[MemberState]:
    return [
        MemberState(rank, *state, last_finished=state[0] - (not state[2]))
        for rank, state in sorted(states.items())
        if state is not None
    ]


def _read_as_torch(store: Store, group: str, world_size: int) -> dict[int, RankState] | None:
    """None where the store is down. As with torch the number alone decides whether the latest one has finished."""
    states: dict[int, RankState] = {}
    for rank in range(world_size):
        start, end = start_key(group, rank), end_key(group, rank)
        try:
            is_there, has_ended = store.check([start]), store.check([end])
        except Exception:
            _log.error("Store is down while looking for key %s", start)
            return None
        if not is_there:
            continue
        started = read_state(store, start)
        ended = read_state(store, end) if has_ended else _NOTHING
        if started is None or ended is None:
            return None
        states[rank] = RankState(*started, is_finished=ended.seq == started.seq)
    return states
