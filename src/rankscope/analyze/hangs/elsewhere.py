"""H112: one rank, or a few, are at a different line of the program than all the others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rankscope.analyze.hangs.evidence import place_text
from rankscope.analyze.hangs.standing import (
    Standing,
    endings_of,
    is_in_collective,
    location_of_standing,
    places,
    standing_stacks,
    standing_text,
    standings_of,
)
from rankscope.analyze.hangs.verdict import causes_of
from rankscope.analyze.hangs.wording import peers_phrase
from rankscope.analyze.manifests import came_to_an_end, ended_well
from rankscope.analyze.registry import Effect, Skipped, rule
from rankscope.model.finding import Evidence, Finding, ranks_phrase
from rankscope.model.tables import MISSING, Trace

_SAME_TIME_NS = 600 * 10**9  # stacks of one hang: watchdogs fire, and people press keys, some minutes apart
_MAX_ODD = 4  # at most a quarter of the ranks is odd; more are another part of the program
HANGS = re.compile(r"no collective|time.?out|watchdog|hang|stall", re.IGNORECASE)
_MAX_SAID = 4
NO_MAIN = "no stack trace of a rank's main thread"


@rule("H112", "rank-elsewhere", needs=("thread_stacks",))
def rank_elsewhere(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """The main threads of a few ranks are at a different line of the program than those of all the others.

    What it means: nearly all ranks are at one line, usually in a collective, and these ranks are not. The others are
    waiting for them. Only stack traces show this: there are no recorder dumps, or they do not settle it.

    Why it happens: a data loader that stopped, a lock, a checkpoint that hangs, a branch that only these ranks take,
    a different collective than on their peers, a compilation that does not finish.

    What to do: check the line where they are, and what could keep it from finishing. Record with
    `rankscope record --desync` to see the calls as well.

    What could fool it: in a healthy job, too, ranks can be at different lines. Only stacks that were written because
    nothing moved, or twice with the same result, prove a hang. Pipeline stages run different programs: a small stage
    may look like the culprit.
    """
    if is_decided(trace):
        yield Skipped("the recorder dumps already show what happened")
        return
    if endings_of(trace):
        yield Skipped("a rank ended with an exception, which is reported instead")
        return
    if ended_well(trace) or came_to_an_end(trace):
        yield Skipped("the job ended normally")
        return
    if not standings_of(trace):
        yield Skipped(NO_MAIN)
        return
    standings = _of_one_time(list(standings_of(trace).values()))
    odd, usual = _split(trace, standings)
    if odd:
        yield _describe(trace, odd, usual, is_hang=_is_hang(standings))


def is_decided(trace: Trace) -> bool:
    if not (trace.has("collectives") and trace.has("groups")):
        return False
    return any(cause.certainty != "possible" for cause in causes_of(trace))


def _of_one_time(standings: Sequence[Standing]) -> list[Standing]:
    newest = max((standing.time_ns for standing in standings), default=MISSING)
    return [each for each in standings if each.time_ns == MISSING or newest - each.time_ns <= _SAME_TIME_NS]


def _split(trace: Trace, standings: Sequence[Standing]) -> tuple[list[Standing], list[Standing]]:
    """The few ranks that differ and the many others; both empty if the ranks do not split this way."""
    groups = places(standings)
    if len(groups) < 2:
        return [], []
    usual = groups[-1]
    odd = [standing for group in groups[:-1] for standing in group]
    if 2 * len(usual) <= len(standings):  # no line has most of them: those outside of collectives may be few
        usual = [standing for standing in standings if is_in_collective(trace, standing)]
        odd = [standing for standing in standings if standing not in usual]
    elif is_in_collective(trace, odd[0]) and not is_in_collective(trace, usual[0]):
        return [], []  # these wait for the many, who are merely late
    is_few = 0 < len(odd) <= max(1, len(standings) // _MAX_ODD)
    return (odd, usual) if is_few and usual else ([], [])


def _is_hang(standings: Sequence[Standing]) -> bool:
    return any(HANGS.search(each.reason) for each in standings) or all(each.has_stayed for each in standings)


def _describe(trace: Trace, odd: Sequence[Standing], usual: Sequence[Standing], *, is_hang: bool) -> Finding:
    first, peer = places(odd)[0][0], places(usual)[-1][0]
    location, peer_location = location_of_standing(trace, first), location_of_standing(trace, peer)
    ranks = tuple(sorted(standing.rank for standing in odd))
    where = place_text(location) if location else standing_text(trace, first)
    there = place_text(peer_location) if peer_location else standing_text(trace, peer)
    peers = peers_phrase([standing.rank for standing in usual])
    lines = tuple(
        f"{ranks_phrase([standing.rank for standing in group])}: {standing_text(trace, group[0])}"
        for group in [*places(odd), *reversed(places(usual))][:_MAX_SAID]
    )
    it = "it" if len(ranks) == 1 else "them"
    waits = f"the others are waiting for {it}" if is_in_collective(trace, peer) else f"the others are blocked by {it}"
    reasons = sorted({standing.reason for standing in odd if standing.reason})
    return Finding(
        severity="error" if is_hang else "warning",
        certainty="likely" if is_hang else "possible",
        title=f"{ranks_phrase(ranks)} {'is' if len(ranks) == 1 else 'are'} in {where} while {peers} "
        f"{'is' if len(usual) == 1 else 'are'} in {there}",
        ranks=ranks,
        location=location,
        peer_location=peer_location,
        evidence=Evidence(
            certain=lines,
            likely=(waits,) if is_hang else (),
            notes=tuple(f"the stacks were written because: {reason}" for reason in reasons[:1])
            if is_hang
            else ("one snapshot does not show whether the job moves: write the stacks again and compare",),
            stacks=(*standing_stacks(trace, odd), *standing_stacks(trace, usual)),
        ),
        help=f"find out why rank {first.rank} does not leave {where}",
    )
