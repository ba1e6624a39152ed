"""Ranks that ended on their own before the others: by a signal, with an exit code, or silently."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from typing import NamedTuple

from rankscope.analyze.derived import derived
from rankscope.analyze.hangs.standing import (
    Standing,
    endings_of,
    gave_up,
    give_up_times,
    standings_of,
)
from rankscope.analyze.logs.events import attempts_of, exit_code
from rankscope.analyze.manifests import ended_well
from rankscope.model.tables import MISSING, Trace

_SIGNALLED = 128  # exit codes above it are signals, as a shell tells them
_BY_OTHERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # what launchers and people end processes with
_FATAL = re.compile(r"Fatal Python error: (?P<what>.*)")
_SIGNAL_OF = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating point exception": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
}


class Death(NamedTuple):
    """One rank that was not ended by others."""

    rank: int
    code: int  # as a shell tells it; MISSING where only the end is known
    standing: Standing | None  # where it was, if its last stack is here
    is_known: bool  # its own code or stack shows it; else it follows from what the others say

    @property
    def signal(self) -> signal.Signals | None:
        try:
            return signal.Signals(self.code - _SIGNALLED) if self.code > _SIGNALLED else None
        except ValueError:
            return None


def deaths_of(trace: Trace) -> list[Death]:
    """Crashes first, then exit codes, then ranks that disappeared silently."""
    return derived(trace, _find_deaths)


def _find_deaths(trace: Trace) -> list[Death]:
    if ended_well(trace):
        return []
    crashed = list(_crashed(trace))
    if crashed:
        return crashed
    alone = list(_ended_alone(trace))
    if alone:
        return alone
    codes = rank_codes(trace)
    victims = {rank for rank, each in standings_of(trace).items() if gave_up(trace, each)}
    raised = set(endings_of(trace))
    if raised:
        return []  # an exception says more, and its rule reports it
    unprompted = [rank for rank, code in codes.items() if _is_own(code) and rank not in victims]
    ended = [rank for rank in unprompted if codes[rank] != _SIGNALLED + signal.SIGKILL]
    # A launcher kills what does not end when it is asked to: after another rank has ended, SIGKILL says nothing.
    chosen = ended or [rank for rank in unprompted if rank not in _asked_to_end(trace)]
    if chosen:
        return [Death(rank, codes[rank], None, True) for rank in sorted(chosen)]
    return list(_gone(trace, victims))


def _crashed(trace: Trace) -> Iterator[Death]:
    for rank, standing in sorted(standings_of(trace).items()):
        fatal = _FATAL.match(standing.reason)
        if fatal:
            number = _SIGNAL_OF.get(fatal["what"].strip())
            yield Death(rank, _SIGNALLED + number if number else MISSING, standing, True)


def _ended_alone(trace: Trace) -> Iterator[Death]:
    """Ranks that were sent SIGTERM while no other rank had failed or been told to end."""
    table = trace.table("thread_stacks")
    asked_at: dict[int, int] = {}
    for rank, time_ns, reason in zip(
        table.array("rank").tolist(), table.array("time_ns").tolist(), table.text("reason").tolist(), strict=True
    ):
        if "SIG" in reason:
            asked_at[rank] = min(time_ns, asked_at.get(rank, time_ns))
    gave_up_at, standings = give_up_times(trace), standings_of(trace)
    first = min(gave_up_at.values(), default=MISSING)
    alone = [rank for rank, time_ns in asked_at.items() if time_ns < first and rank not in gave_up_at]
    others = set(standings) - set(alone)
    if not others or any(rank not in gave_up_at or asked_at.get(rank, first) < gave_up_at[rank] for rank in others):
        return
    for rank in sorted(alone):
        if standings[rank].reason == signal.SIGTERM.name:
            yield Death(rank, _SIGNALLED + signal.SIGTERM, standings[rank], True)


def rank_codes(trace: Trace) -> dict[int, int]:
    """Exit codes of the ranks' own processes, as their launcher noted or printed them."""
    codes: dict[int, int] = {}
    for attempt in attempts_of(trace)[-1:] if trace.has("log_events") else ():
        for rank, event in attempt.exits.items():
            code = exit_code(event)
            if code is not None:
                codes[rank] = _SIGNALLED - code if code < 0 else code
    manifests = trace.table("manifests")
    noted = zip(manifests.array("rank").tolist(), manifests.array("rank_exit_code").tolist(), strict=True)
    return {**codes, **{rank: code for rank, code in noted if code != MISSING}}


def _is_own(code: int) -> bool:
    return code not in (0, MISSING) and code - _SIGNALLED not in _BY_OTHERS


def _asked_to_end(trace: Trace) -> set[int]:
    """Ranks that wrote stacks because they were asked to end."""
    table = trace.table("thread_stacks")
    reasons = [reason in ("SIGTERM", "SIGINT") or "SIG" in reason for reason in table.text("reason").tolist()]
    return {rank for rank, is_end in zip(table.array("rank").tolist(), reasons, strict=True) if is_end}


def _gone(trace: Trace, victims: set[int]) -> Iterator[Death]:
    """Ranks without an exit code that wrote nothing at their end, where others lost the connection to a peer."""
    manifests = trace.table("manifests")
    job_code = int(manifests.array("exit_code").max(initial=MISSING))
    if job_code in (0, MISSING):
        return
    silent = set(manifests.array("rank")[manifests.text("ending").equals("")].tolist())
    asked = _asked_to_end(trace)
    silent -= victims | asked
    is_own = _is_own(job_code) and job_code != 1  # 1 is what launchers end with themselves
    # On a busy machine the others are told to end before they notice that their peer is gone.
    if len(silent) == 1 and (victims or (is_own and asked)):
        yield Death(silent.pop(), job_code if is_own else MISSING, None, False)
