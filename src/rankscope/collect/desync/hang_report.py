"""The report of a rank whose job hangs or fails: read from the store, printed on stderr by one rank, kept in a file."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rankscope.collect.desync import layout
from rankscope.collect.desync.calls import Call, Calls, Frames, is_timeout
from rankscope.collect.desync.connections import Connections
from rankscope.collect.desync.groups import Group
from rankscope.collect.desync.prefetch import Prefetched
from rankscope.collect.desync.report import Group as ReportedGroup
from rankscope.collect.desync.report import GroupState, Unreadable, read_group, report_lines
from rankscope.collect.desync.values import end_key, start_key
from rankscope.collect.stores import ANSWER_SECONDS

_READ_SECONDS = 3.0
_MAX_GROUPS = 8
_MAX_STACKS = 4
# When thousands of ranks give up at once, each reading the states of all would bury the store.
_FEW_RANKS = 64
_MAX_READERS = 4


class Told(NamedTuple):
    text: str
    is_first: bool  # of the ranks that tell of the same event: the one to speak up


class Captured(NamedTuple):
    """A call that timed out, and the stack of the thread that it failed in: in Python, and in C++ if torch can."""

    call: Call
    stack: Frames
    native: Any


def hang_report(calls: Calls, connections: Connections, speaker: layout.Rank, reason: str) -> Told:
    """What the store knows about the groups of this rank, those it waits in first, and where it waits."""
    waiting = calls.waiting()
    groups = _worth_telling(calls, waiting)
    event = "time-out" if is_timeout(reason) else "dump"
    # Who waits in nothing has nothing to say on stderr, and must not take the turn of one who has.
    event += "" if waiting else "_idle"
    turn, states = _ask(groups, connections, speaker.world_size, event)
    who = f"rank {speaker.rank} of {speaker.world_size} on host {speaker.host}"
    lines: list[str] = []
    if states is not None:
        own_rank = speaker.rank if waiting else -1
        lines += report_lines(_telling(states, waiting), who, own_rank, time.time_ns())
    else:
        lines.append(f"{who}: other ranks have reported on this rank's groups: see their desync_<rank>.txt")
    lines += [f"rank {speaker.rank}: {reason}", *_stacks(waiting, speaker.rank)]
    is_first = turn == 1 or (turn == 0 and speaker.world_size <= _FEW_RANKS)
    return Told("\n".join(lines) + "\n", is_first)


def _ask(
    groups: Sequence[Group], connections: Connections, world_size: int, kind: str
) -> tuple[int, list[GroupState] | None]:
    """The turn of this rank and the states of its groups; None: enough others have read them.

    A store whose process is frozen blocks its clients in C++ without limit, so another thread asks.
    """
    answers: list[tuple[int, list[GroupState] | None]] = []

    def ask() -> None:
        turn = _turn(groups, connections, kind)
        is_reader = world_size <= _FEW_RANKS or 0 < turn <= _MAX_READERS
        answers.append((turn, [_read(group, connections) for group in groups] if is_reader else None))

    asking = threading.Thread(target=ask, name="rankscope desync report", daemon=True)
    asking.start()
    asking.join(ANSWER_SECONDS)
    why = f"the store did not answer within {ANSWER_SECONDS:g} s"
    return answers[0] if answers else (0, [_unreadable(group, why) for group in groups])


def _unreadable(group: Group, why: str) -> GroupState:
    asked = ReportedGroup(group.name, group.desc, group.size, group.ranks)
    return GroupState(asked, (), (), tuple(Unreadable(rank, why) for rank in range(group.size)))


def failed_stack(captured: Captured, rank: int) -> str:
    """The stack that a call failed in, if any of it is in C++. To find the names may take a second."""
    try:
        native = layout.native_frames(captured.native) if captured.native is not None else []
    except Exception:  # torch cannot do it everywhere; the frames in Python are told anyway
        return ""
    if not native:
        return ""
    title = f"rank {rank} failed in {_where(captured.call)}, called from (Python frames first, then C++):"
    return "\n".join([title, *layout.stack_lines([*layout.frames(captured.stack), *native])]) + "\n"


def _worth_telling(calls: Calls, waiting: Sequence[Call]) -> list[Group]:
    first = dict.fromkeys(call.group for call in waiting)
    others = dict.fromkeys(group for group in calls.groups if group.pg() is not None)
    return [group for group in {**first, **others} if group.size > 1][:_MAX_GROUPS]


def _turn(groups: Sequence[Group], connections: Connections, kind: str) -> int:
    """How many ranks, including this one, have reported the event so far; 0: the store does not answer."""
    try:
        store = connections.store_of(groups[0]) if groups else None
        key = f"{groups[0].name}_rankscope_told_{kind}_{int(time.time() // 60)}" if groups else ""
        return int(store.add(key, 1)) if store is not None else 0
    except Exception:
        connections.drop()
        return 0


def _read(group: Group, connections: Connections) -> GroupState:
    try:
        store = connections.store_of(group)
    except Exception as error:
        return _unreadable(group, f"the store does not answer: {type(error).__name__}: {error}")
    if store is None:
        return _unreadable(group, "its process group was destroyed")
    keys = [key(group.name, rank) for key in (start_key, end_key) for rank in range(group.size)]
    prefetched = Prefetched(store, keys, _READ_SECONDS)
    if prefetched.failure is not None:
        connections.drop()
    return read_group(prefetched, ReportedGroup(group.name, group.desc, group.size, group.ranks))


def _telling(states: Sequence[GroupState], waiting: Sequence[Call]) -> list[GroupState]:
    """Leaves out groups that are in step, unless this rank waits in them."""
    names = {call.group.name for call in waiting}
    return [state for state in states if state.group.name in names or not state.is_in_step] or list(states[:1])


def _stacks(waiting: Sequence[Call], rank: int) -> Iterator[str]:
    for call in waiting[:_MAX_STACKS]:
        seconds = (time.time_ns() - call.created_ns) // 1_000_000_000
        origin = "called from:" if call.frames else "called from C++; the main thread is now at:"
        yield f"rank {rank} has been waiting in {_where(call)} for {seconds} s, {origin}"
        yield from layout.stack_lines(layout.frames(call.frames) if call.frames else layout.main_thread_frames())


def _where(call: Call) -> str:
    return f"{layout.op_name(call)} #{call.seq} of group {call.group.name}"
