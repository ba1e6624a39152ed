"""H113: an exception ended a rank, and no recorder tells more about it."""

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

    What it means: the line raised, the process ended, and whoever waits for it fails or waits for ever. Of several
    ranks that raised, the first is named: what the others raised is mostly that their peer is gone.

    Why it happens: as many reasons as there are exceptions; only this rank has the data, the file, the memory or the
    device that it failed on, or all ranks fail alike.

    What to do: read the exception and the line. If only one rank raised, ask what is different there.

    What could fool it: which rank was first is told by the clocks of the hosts. An exception that the program caught
    is not seen; one that ended a helper thread alone is not either.
    """
    if is_decided(trace):
        yield Skipped("the recorders' dumps decide what happened, and their verdict tells the exception")
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
        code="H113",
        rule="rank-raised",
        severity="error",
        certainty="certain" if not later else "likely",
        title=f"{ranks_phrase(ranks)} raised {first.reason}",
        ranks=ranks,
        location=location_of_standing(trace, first),
        evidence=Evidence(
            certain=(f"nothing caught it in {standing_text(trace, first)}",),
            likely=("what other ranks raised later follows from it",) if later else (),
            notes=notes,
            stacks=standing_stacks(trace, alike),
        ),
        help=f"correct what raised in {standing_text(trace, first)}",
    )
