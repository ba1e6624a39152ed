"""How processes ended, as launchers and schedulers report it: which end may be the cause of the others."""

from __future__ import annotations

from collections.abc import Sequence

from rankscope.analyze.logs.events import TOLERANCE_NS, Attempt, Event, exit_code, is_before
from rankscope.model.tables import MISSING

_FATAL = (-9, -11, -7, -4, -8, 137, 139, 135)  # no rank does this to itself because another one left
_ABORTED = (-6, 134)  # what waiting ranks do to themselves, too
_TOLD = (-15, 143)


def first_exits(attempt: Attempt) -> list[Event]:
    """How ranks ended on their own, without those that ended later than the first ones, where their times are known.

    A launcher ends the others after the first failure, at last with SIGKILL.
    """
    failed = [event for event in attempt.exits.values() if exit_code(event) != 0]
    times = [moment for event in failed if (moment := _moment(event)) != MISSING]
    return [event for event in failed if _moment(event) == MISSING or _moment(event) <= min(times) + TOLERANCE_NS]


def _moment(event: Event) -> int:
    """torchrun's table has whole seconds."""
    return int(event.fields.get("agent_ns", MISSING))


def fatal_exits(attempt: Attempt) -> list[Event]:
    """Of ranks that a signal ended which no victim gets."""
    return [event for event in first_exits(attempt) if exit_code(event) in _FATAL]


def fatal_exits_before(attempt: Attempt, timeouts: Sequence[Event]) -> list[Event]:
    """Ends before the timeouts of others, of ranks that did not time out themselves."""
    speakers = {event.rank for event in timeouts}
    return [
        event
        for event in fatal_exits(attempt)
        if timeouts and event.rank not in speakers and all(_ended_before(event, timeout) for timeout in timeouts)
    ]


def fatal_exits_not_after(attempt: Attempt, timeouts: Sequence[Event]) -> list[Event]:
    """Ranks that wait in vain are killed at the end, too."""
    return [
        event
        for event in fatal_exits(attempt)
        if not any(_ended_before(event, timeout) is False for timeout in timeouts)
    ]


def _ended_before(ended: Event, timeout: Event) -> bool | None:
    """By the time in the launcher's table, which it prints later than that."""
    moment = _moment(ended)
    if MISSING in (moment, timeout.time_ns):
        return is_before(ended, timeout)
    return moment < timeout.time_ns if abs(moment - timeout.time_ns) > TOLERANCE_NS else None


def lone_abort(attempt: Attempt) -> list[Event]:
    aborted = [event for event in first_exits(attempt) if exit_code(event) in _ABORTED]
    return aborted if len(aborted) == 1 else []


def mute_exits(attempt: Attempt) -> list[Event]:
    """Ranks that ended with an exit code of their own and printed no error, where nobody else's error may be theirs."""
    speakers = _speakers(attempt)
    if MISSING in speakers:
        return []
    mute = [event for event in first_exits(attempt) if event.rank not in speakers]
    return [event for event in mute if 0 < (exit_code(event) or 0) < 128]


def _speakers(attempt: Attempt) -> set[int]:
    """Ranks with an error in the log; one without its last line explains nothing."""
    errors = [event for event in attempt.of("traceback", "fatal") if not event.fields.get("is_launcher")]
    errors = [event for event in errors if "CalledProcessError" not in str(event.fields.get("type"))]
    return {event.rank for event in errors if event.fields.get("type")}


def unnamed_ends(attempt: Attempt) -> list[Event]:
    """Ends of processes whose rank is unknown; the launcher's own end says less than a signal does."""
    stopped = attempt.stopped_pids
    ends = [
        event
        for event in attempt.of("exit", "died", "killed", "segfault")
        if event.fields.get("exit_pid") not in stopped and exit_code(event) not in (0, *_TOLD)
    ]
    ends = [event for event in ends if event.rank == MISSING or event.kind != "exit"]
    signaled = [event for event in ends if event.kind != "exit" or exit_code(event) in (*_FATAL, *_ABORTED)]
    return signaled or ([] if _speakers(attempt) else ends)
