"""What the watchdogs of all ranks say about one process group: who is behind, who differs, or that all came."""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple

from rankscope.analyze.logs.events import Attempt, Event
from rankscope.model.finding import Certainty
from rankscope.model.numbers import MAX_LONG, integer
from rankscope.model.tables import MISSING

_UNEVEN = ("GATHER", "SCATTER", "ALLTOALL", "ALLTOALL_BASE")  # sizes may differ between ranks
_P2P = ("SEND", "RECV")
_ONE_SIDED = ("BROADCAST", "REDUCE", "GATHER", "SCATTER")  # some ranks may be through while others still wait
_WAITED = ("watchdog-timeout", "watchdog-status", "watchdog-fired", "taken-down")  # its own watchdog speaks
_UNKNOWN_SIZE = 18446744073709551615


class Call(NamedTuple):
    seq: int
    op: str
    n_in: int
    n_out: int

    @property
    def text(self) -> str:
        if self.n_in == MISSING:
            return self.name or "operation unknown"
        return f"{self.name} of {self.n_in:,} element{'' if self.n_in == 1 else 's'}"

    @property
    def name(self) -> str:
        """As the Flight Recorder has it: _ALLGATHER_BASE is _all_gather_base."""
        return (
            self.op.lower()
            .replace("allreduce", "all_reduce")
            .replace("allgather", "all_gather")
            .replace("alltoall", "all_to_all")
        )


class Standoff(NamedTuple):
    """The earliest call of one group that timed out, and where its ranks are."""

    cause: Literal["behind", "mismatch", "stalled", "undecided"]
    certainty: Certainty
    ranks: tuple[int, ...]  # the culprits
    call: Call
    group: str
    desc: str
    waiting: tuple[int, ...]
    timeout_ms: int
    events: tuple[Event, ...]
    odd: Call | None = None
    is_tie: bool = False
    absent: tuple[int, ...] = ()  # ranks without any line
    is_merged: bool = False  # Ray left out lines that differ only in their numbers


class _Seen(NamedTuple):
    call: Call
    timeout: Event


def standoff_of(attempt: Attempt) -> Standoff | None:
    """None where no watchdog spoke."""
    groups = _by_group(attempt)
    if not groups:
        return None
    (group, desc), seen = min(groups.items(), key=lambda item: _started(item[1]))
    timeouts = tuple(each.timeout for each in seen.values())
    calls = {rank: each.call for rank, each in seen.items()}
    lowest = min(call.seq for call in calls.values())
    at_lowest = {rank: call for rank, call in calls.items() if call.seq == lowest}
    known = {rank: call for rank, call in at_lowest.items() if call.op}  # of others only the counters are left
    common = Counter(known.values()).most_common() or [(Call(lowest, "", MISSING, MISSING), 0)]
    call = common[0][0]
    timeout_ms = max(int(event.fields.get("timeout_ms", 0)) for event in timeouts)
    is_merged = any("n_merged" in event.fields for event in attempt.of("watchdog-timeout", "watchdog-status"))
    base = Standoff("undecided", "certain", (), call, group, desc, tuple(sorted(calls)), timeout_ms, timeouts)
    base = base._replace(is_merged=is_merged)
    if call.op in _P2P or is_merged:
        return base
    odd = [other for other, _ in common[1:] if _differs(call, other)]
    if odd:
        is_tie = common[0][1] == common[1][1]
        ranks = {rank for rank, its_call in known.items() if its_call != call} if not is_tie else set(known)
        certainty: Certainty = "likely" if is_tie else "certain"
        return base._replace(cause="mismatch", certainty=certainty, ranks=_sorted(ranks), odd=odd[0], is_tie=is_tie)
    ahead = {rank for rank, its_call in calls.items() if its_call.seq > lowest}
    is_unnamed = (group, desc) == ("", "")  # up to torch 2.1: calls of several groups look alike
    if ahead and (call.op in _ONE_SIDED or is_unnamed):
        return base
    if ahead:  # ranks wait in different calls of one group: some made more calls than others
        minority = min(ahead, set(at_lowest), key=len)
        is_tie = len(ahead) == len(at_lowest)
        ranks = set(calls) if is_tie else minority
        return base._replace(
            cause="mismatch", certainty="likely", ranks=_sorted(ranks), odd=calls[min(ahead)], is_tie=is_tie
        )
    return _who_is_missing(attempt, set(seen), base)


def _sorted(ranks: set[int]) -> tuple[int, ...]:
    return tuple(sorted(ranks))


def _who_is_missing(attempt: Attempt, waiting: set[int], base: Standoff) -> Standoff:
    """All watchdogs name the same call. Counters of ranks without a time-out are those of the default group."""
    world = set(range(attempt.world_size))
    if base.desc not in ("default_pg", "") or base.group not in ("0", "default_pg", ""):
        return base._replace(cause="stalled", certainty="likely") if len(world) > 1 and world <= waiting else base
    waiting = waiting | _own_watchdogs(attempt) | _said_to_wait(attempt)
    silent = attempt.ranks - waiting
    counted = {event.rank: int(event.fields["enqueued"]) for event in attempt.of("dump-signal") if event.rank in silent}
    behind = {rank for rank, enqueued in counted.items() if enqueued < base.call.seq}
    if behind:
        return base._replace(cause="behind", certainty="likely", ranks=_sorted(behind))
    absent = world - waiting - set(counted)
    mute = absent & attempt.ranks  # their log is here: they were silent while their peers timed out
    suspects = mute or absent
    unseen = _sorted(absent - mute)
    if absent and not mute and _have_their_start(attempt, waiting):
        return base._replace(absent=unseen)
    if suspects and len(absent) * 2 < len(world):
        certainty: Certainty = "likely" if mute else "possible"
        return base._replace(cause="behind", certainty=certainty, ranks=_sorted(suspects), absent=unseen)
    if not absent and not counted and len(waiting) > 1:
        return base._replace(cause="stalled", certainty="likely")
    return base


def _have_their_start(attempt: Attempt, waiting: set[int]) -> bool:
    """All who wait printed something before that: a rank without even this is one whose log is not here."""
    firsts: dict[int, list[Event]] = {}
    for event in attempt.of("last-output"):
        firsts.setdefault(event.rank, []).append(event)
    timeouts = [event for event in attempt.of("watchdog-timeout") if event.rank in waiting]
    begun = {
        timeout.rank
        for timeout in timeouts
        for first in firsts.get(timeout.rank, ())
        if first.file_id == timeout.file_id and int(first.fields.get("first_line", first.line)) < timeout.line
    }
    return len(begun) > 1 and begun == {event.rank for event in timeouts}


def _own_watchdogs(attempt: Attempt) -> set[int]:
    """Ranks that waited themselves, by any line of their watchdog: not every line of a log survives."""
    waiting = {event.rank for event in attempt.of(*_WAITED)}
    waiting |= {event.rank for event in attempt.of("dump-signal") if event.fields.get("by") == "this local rank"}
    return waiting - {MISSING}


def _said_to_wait(attempt: Attempt) -> set[int]:
    """Ranks whose prefix is lost: their own number is one inside a group, good enough not to accuse them."""
    lost = [event for event in attempt.of("watchdog-timeout") if event.rank == MISSING]
    return {int(event.fields["said_rank"]) for event in lost if "said_rank" in event.fields}


def _by_group(attempt: Attempt) -> dict[tuple[str, str], dict[int, _Seen]]:
    """The first time-out of each rank in each group; repeats of one message count once."""
    status = attempt.of("watchdog-status")
    groups: dict[tuple[str, str], dict[int, _Seen]] = {}
    timeouts = attempt.of("watchdog-timeout")
    for event in (*timeouts, *status):
        if event.rank == MISSING:
            continue
        seq = int(event.fields["seq"])
        counters = next((each for each in status if each.rank == event.rank and each.fields.get("seq") == seq), None)
        named = counters.fields if counters is not None and "group" in counters.fields else event.fields
        key = (str(named.get("group", "")), str(named.get("desc", "")))
        if event.kind == "watchdog-status" and any(event.rank in seen for seen in groups.values()):
            continue  # said already, by the line before it
        call = Call(seq, str(event.fields.get("op", "")), _size(event, "n_in"), _size(event, "n_out"))
        own_calls = groups.setdefault(key, {})
        if event.rank not in own_calls or seq < own_calls[event.rank].call.seq:
            own_calls[event.rank] = _Seen(call, event)
    if ("", "") in groups and len(groups) == 2:  # a rank whose status line is lost waits in the only group there is
        unnamed = groups.pop(("", ""))
        [seen_by_rank] = groups.values()
        for rank, seen in unnamed.items():
            seen_by_rank.setdefault(rank, seen)
    return groups


def _size(event: Event, name: str) -> int:
    value = event.fields.get(name, MISSING)
    return MISSING if str(value) == str(_UNKNOWN_SIZE) else integer(str(value), MAX_LONG)


def _started(seen: dict[int, _Seen]) -> tuple[bool, int, int]:
    """When the first of the group's waiting calls began: groups have different time-outs."""
    starts = [
        each.timeout.time_ns - int(each.timeout.fields.get("ran_ms", each.timeout.fields.get("timeout_ms", 0))) * 10**6
        for each in seen.values()
        if each.timeout.time_ns != MISSING
    ]
    return (not starts, min(starts, default=0), min(each.timeout.line for each in seen.values()))


def _differs(call: Call, other: Call) -> bool:
    if call.op != other.op:
        return True
    sizes_known = MISSING not in (call.n_in, other.n_in)
    return sizes_known and call.op not in _UNEVEN and (call.n_in, call.n_out) != (other.n_in, other.n_out)
