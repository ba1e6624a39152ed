"""The sentences of findings from logs: titles, evidence and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypedDict

from rankscope.analyze.logs.events import Event, exit_code
from rankscope.analyze.logs.verdicts import Cause, Verdict, verdicts_of
from rankscope.model.finding import Action, CollectiveRef, Evidence, Finding, GroupRef, Location, Severity, ranks_phrase
from rankscope.model.tables import MISSING, Trace

if TYPE_CHECKING:
    from typing import Required, Unpack

_MAX_QUOTED = 160
_MAX_SHOWN = 4
SIGNALS = {6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV", 4: "SIGILL", 8: "SIGFPE", 15: "SIGTERM"}


def quoted(text: str) -> str:
    """One line of the log, shortened."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_QUOTED else f"{line[: _MAX_QUOTED - 3]}..."


def who(ranks: Sequence[int], nobody: str = "a process") -> str:
    return ranks_phrase(tuple(ranks)) if ranks else nobody


def signal_name(event: Event) -> str:
    code = exit_code(event) or 0
    number = -code if code < 0 else code - 128
    return SIGNALS.get(number, f"signal {number}")


def in_attempt(verdict: Verdict) -> str:
    return "" if verdict.attempt.is_only else f" (attempt {verdict.attempt.number})"


def place_line(event: Event) -> str:
    return f"line {event.line:,} of the log"


class Words(TypedDict, total=False):
    """What a rule adds to the verdict's own evidence."""

    certain: Sequence[str]
    likely: Sequence[str]
    notes: Sequence[str]
    advice: Required[str]
    action: Required[Action]
    hosts: Sequence[str]  # to leave out
    severity: Severity


def of_cause(trace: Trace, cause: Cause) -> Iterator[Verdict]:
    return (verdict for verdict in verdicts_of(trace) if verdict.cause == cause)


def finding(verdict: Verdict, title: str, **words: Unpack[Words]) -> Finding:
    decisive = verdict.events[0] if verdict.events else None
    standoff = verdict.standoff
    shown = verdict.events[: 1 if standoff else _MAX_SHOWN]  # all watchdogs say the same
    quotes = [f"{place_line(event)}: {quoted(event.text)}" for event in shown if event.text]
    repeated = ("an earlier attempt failed in the same way: it will fail again",) if verdict.is_repeated else ()
    wrong_root = _wrong_root(verdict)
    location = decisive.place if decisive and verdict.cause in ("failed", "device", "mismatch") else None
    return Finding(
        severity=words.get("severity", "error"),
        certainty=verdict.certainty,
        title=title + in_attempt(verdict),
        ranks=verdict.ranks,
        group=GroupRef(standoff.group, standoff.desc, standoff.waiting, True) if standoff and standoff.group else None,
        collective=CollectiveRef(standoff.call.seq, standoff.call.name) if standoff else None,
        location=location,
        peer_location=_waiting_at(verdict),
        evidence=Evidence(
            certain=(*words.get("certain", ()), *repeated),
            likely=tuple(words.get("likely", ())),
            notes=(*quotes, *wrong_root, *words.get("notes", ())),
            n_blocked=len(standoff.waiting) if standoff else None,
            facts={"attempt": verdict.attempt.number, "log_lines": [event.line for event in verdict.events[:16]]},
        ),
        help=words["advice"],
        action="fix-first" if verdict.is_repeated and words["action"] == "restart" else words["action"],
        action_hosts=tuple(sorted(set(words.get("hosts", ())))),
    )


def _waiting_at(verdict: Verdict) -> Location | None:
    places = [event.place for event in verdict.attempt.of("waiting-at") if event.place]
    return places[0] if places else None


def _wrong_root(verdict: Verdict) -> tuple[str, ...]:
    """torchrun names the first exit that it saw, which may be a victim."""
    roots = [event for event in verdict.attempt.of("exit") if event.fields.get("is_root")]
    named = sorted({event.rank for event in roots if event.rank != MISSING} - set(verdict.ranks))
    if not named or not verdict.ranks:
        return ()
    return (f'torchrun names {ranks_phrase(tuple(named))} as "root cause", but that rank only ended first',)


def last_lines(verdict: Verdict) -> tuple[str, ...]:
    """What the culprits printed last: where they were."""
    last = [event for event in verdict.attempt.of("last-output") if event.rank in verdict.ranks]
    return tuple(f"last line of rank {event.rank}: {quoted(event.text)}" for event in last[:_MAX_SHOWN])


def hosts_of(verdict: Verdict) -> list[str]:
    known = verdict.attempt.hosts
    named = [known[rank] for rank in verdict.ranks if rank in known]
    direct = [event.host for event in verdict.events if event.host]
    return sorted({host for host in (named or direct) if host not in ("localhost", "")})
