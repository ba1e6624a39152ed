"""H112: one rank, or a few, stand elsewhere in the program than all the others."""

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
from rankscope.analyze.manifests import came_to_an_end, ended_well
from rankscope.analyze.registry import Effect, Skipped, rule
from rankscope.model.finding import Evidence, Finding, count_noun, ranks_phrase
from rankscope.model.tables import MISSING, Trace

_SAME_TIME_NS = 600 * 10**9  # stacks of one hang: watchdogs fire, and people press keys, some minutes apart
_MAX_ODD = 4  # at most a quarter of the ranks is odd; more are another part of the program
HANGS = re.compile(r"no collective|time.?out|watchdog|hang|stall", re.IGNORECASE)
_MAX_SAID = 4
NO_MAIN = "no stack is known to be that of a rank's main thread"


@rule("H112", "rank-elsewhere", needs=("thread_stacks",))
def rank_elsewhere(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """The main threads of a few ranks stand at another place of the program than those of all the others.

    What it means: nearly all ranks stand at one line, most often in a collective, and these do not: they are what the
    others wait for. Only stacks say so here: there are no dumps of a recorder, or they do not decide.

    Why it happens: a data loader that stopped, a lock, a checkpoint that hangs, a branch that only these ranks take,
    another collective than their peers', a compilation that does not end.

    What to do: look at the line at which they stand, and at what could keep it from ending. Record with
    `rankscope record --desync` to see the calls as well.

    What could fool it: stacks of a job that is in order show ranks at different lines too; only when they were written
    because nothing moved, or twice with the same result, do they prove a hang. Ranks of a pipeline have different
    programs: there a small stage may look odd.
    """
    if is_decided(trace):
        yield Skipped("the recorders' dumps decide what happened")
        return
    if endings_of(trace):
        yield Skipped("a rank ended with an exception, which says more than where it stood")
        return
    if ended_well(trace) or came_to_an_end(trace):
        yield Skipped("the job ended well")
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
    """The few and the many; none where the ranks do not divide so."""
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
    own, others = location_of_standing(trace, first), location_of_standing(trace, peer)
    ranks = tuple(sorted(standing.rank for standing in odd))
    where = place_text(own) if own else standing_text(trace, first)
    there = place_text(others) if others else standing_text(trace, peer)
    said = tuple(
        f"{ranks_phrase([standing.rank for standing in group])}: {standing_text(trace, group[0])}"
        for group in [*places(odd), *reversed(places(usual))][:_MAX_SAID]
    )
    waits = "which wait for it" if is_in_collective(trace, peer) else "which do not go on either"
    reasons = sorted({standing.reason for standing in odd if standing.reason})
    return Finding(
        code="H112",
        rule="rank-elsewhere",
        severity="error" if is_hang else "warning",
        certainty="likely" if is_hang else "possible",
        title=f"{ranks_phrase(ranks)} {'stands' if len(ranks) == 1 else 'stand'} in {where}, "
        f"{count_noun(len(usual), 'peer')} in {there}",
        ranks=ranks,
        location=own,
        peer_location=others,
        evidence=Evidence(
            certain=said,
            likely=(f"it holds up the others, {waits}",) if is_hang else (),
            notes=tuple(f"the stacks were written because: {reason}" for reason in reasons[:1])
            if is_hang
            else ("one look at a job cannot tell whether it moves: write the stacks again and compare",),
            stacks=(*standing_stacks(trace, odd), *standing_stacks(trace, usual)),
        ),
        help=f"find out why rank {first.rank} does not leave {where}",
    )
