"""H113: an exception ended a rank, and no recorder shows more about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankscope.analyze.hangs.elsewhere import NO_MAIN, is_decided
from rankscope.analyze.hangs.standing import (
    Standing,
    endings_of,
    location_of_standing,
    standing_stacks,
    standing_text,
    standings_of,
)
from rankscope.analyze.registry import Effect, Skipped, rule
from rankscope.model.finding import Evidence, Finding, count_noun, ranks_phrase
from rankscope.model.tables import Trace

_MAX_LATER = 3


@rule("H113", "rank-raised", needs=("thread_stacks",))
def rank_raised(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """A rank ended with an exception that nothing caught.

    What it means: the process ended, and all ranks that wait for it fail or wait forever. If several ranks raised, the
    first one is named: the others usually raise because their peer is gone.

    Why it happens: bad data, a missing file, too little memory or a failing device on this rank, or a bug that all
    ranks run into.

    What to do: read the exception and the line. If only one rank raised, find out what is different there.

    What could fool it: which rank raised first depends on the clocks of the hosts. Exceptions that the program caught,
    and exceptions that ended only a helper thread, are not seen.
    """
    if is_decided(trace):
        yield Skipped("the dumps show what happened, and that finding includes the exception")
        return
    if not standings_of(trace):
        yield Skipped(NO_MAIN)
        return
    ended = sorted(endings_of(trace).values(), key=lambda standing: (standing.time_ns, standing.rank))
    if ended:
        yield _describe(trace, ended)


def _describe(trace: Trace, ended: Sequence[Standing]) -> Finding:
    first = ended[0]
    alike = [standing for standing in ended if (standing.reason, standing.point) == (first.reason, first.point)]
    later = [standing for standing in ended if standing not in alike]
    ranks = tuple(sorted(standing.rank for standing in alike))
    notes = tuple(f"rank {each.rank} raised later: {each.reason}" for each in later[:_MAX_LATER])
    if len(later) > _MAX_LATER:
        notes += (f"{count_noun(len(later) - _MAX_LATER, 'more rank')} raised later",)
    return Finding(
        severity="error",
        certainty="certain" if not later else "likely",
        title=f"{ranks_phrase(ranks)} raised {first.reason}",
        ranks=ranks,
        location=location_of_standing(trace, first),
        evidence=Evidence(
            certain=(f"it was raised in {standing_text(trace, first)} and not caught",),
            likely=("the exceptions that other ranks raised later follow from it",) if later else (),
            notes=notes,
            stacks=standing_stacks(trace, alike),
        ),
        help=f"fix the exception in {standing_text(trace, first)}",
    )
