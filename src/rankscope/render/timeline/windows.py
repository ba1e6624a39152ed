"""Which part of the capture an answer is in: the time of some steps, and what surrounds a finding."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rankscope.model.finding import Finding
from rankscope.model.tables import Trace
from rankscope.render.timeline.chrome import JOIN_CLOCK, common_clock

_DIRECT_PEERS = 4  # in the order of the group, to either side
_STEPS = f"""
SELECT min({common_clock("e.start_ns")}), max({common_clock("e.start_ns + e.duration_ns")}) FROM steps AS e
{JOIN_CLOCK}
WHERE list_contains($steps, e.step) AND ($all_ranks OR list_contains($ranks, e.rank))
"""


def window_of_steps(trace: Trace, steps: Sequence[int], ranks: Sequence[int] | None) -> tuple[int, int] | None:
    """From the first rank's beginning to the last rank's end of them; None where no rank has them."""
    answer = trace.sql(_STEPS, steps=list(steps), all_ranks=ranks is None, ranks=list(ranks or ()))
    [(since, until)] = answer.rows()
    return None if since is None else (since, until)


def ranks_around(finding: Finding, present: Collection[int]) -> tuple[int, ...]:
    """The culprits and their neighbors in their group, with whom they exchange data; all ranks without a culprit."""
    members = finding.group.ranks if finding.group else ()
    culprits = [rank for rank in finding.ranks if rank in present]
    places = [position for position, rank in enumerate(members) if rank in set(finding.ranks)]
    reach = range(-_DIRECT_PEERS, _DIRECT_PEERS + 1)
    peers = {members[(position + far) % len(members)] for position in places for far in reach}
    if not culprits and not places:
        peers = set(members or present)
    return tuple(sorted(({*culprits} | peers) & {*present}))
