"""H121: a rank reached a collective after the others had given up."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankscope.analyze.hangs.evidence import call_text, group_ref, location_of, site_text, stack_groups
from rankscope.analyze.hangs.standing import (
    STALLS,
    give_up_times,
    is_in_collective,
    location_of_standing,
    standing_stacks,
    standing_text,
    standings_of,
)
from rankscope.analyze.hangs.view import JobView, job_view
from rankscope.analyze.manifests import ended_well
from rankscope.analyze.registry import Effect, Skipped, rule
from rankscope.model.finding import Evidence, Finding, format_duration
from rankscope.model.tables import MISSING, Trace


@rule("H121", "late-joiner", needs=("thread_stacks", "collectives", "groups"))
def late_joiner(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """A rank made a call only after its peers had given up waiting for it.

    What it means: the dumps show that all ranks made the call, but one of them was so late that the others had timed
    out. Their timeout is the effect. The late rank then fails too, because its peers are gone.

    Why it happens: something on this rank took longer than the timeout of the process group: a checkpoint, a data
    loader, an evaluation, a compilation, a file lock.

    What to do: look at what the rank did before the call. Give the process group a longer timeout if that is expected.

    What could fool it: host clocks that differ by more than the timeout. A rank whose connection broke did not give up
    waiting: one that reaches the call after that is another victim.
    """
    if ended_well(trace):
        yield Skipped("the job ended normally")
        return
    view = job_view(trace)
    for rank, gave_up_ns in sorted(give_up_times(trace, only_waiting=True).items(), key=lambda item: item[1]):
        rows = view.rows_of(rank) if rank in view.ranks else np.zeros(0, np.int64)
        late = _latest(view, int(rows[-1]), gave_up_ns) if len(rows) else MISSING
        if late != MISSING:
            yield _describe(trace, view, int(rows[-1]), late)
            return


def _latest(view: JobView, row: int, gave_up_ns: int) -> int:
    """The call of the peer that came last, if that was after this rank had given up."""
    same = (view.group == view.group[row]) & (view.seq == view.seq[row]) & (view.is_p2p == view.is_p2p[row])
    after = np.flatnonzero(same & (view.created > gave_up_ns))
    return int(after[np.argmax(view.created[after])]) if len(after) else MISSING


def _describe(trace: Trace, view: JobView, row: int, late: int) -> Finding:
    victim, culprit = int(view.rank[row]), int(view.rank[late])
    behind = format_duration(int(view.created[late] - view.created[row]))
    standing = standings_of(trace).get(culprit)
    is_shown = standing is not None and STALLS.search(standing.reason) and not is_in_collective(trace, standing)
    where = standing_text(trace, standing) if standing is not None and is_shown else ""
    call = call_text(view, late)
    return Finding(
        severity="error",
        certainty="likely",
        title=f"rank {culprit} reached {call} {behind} after rank {victim}, which had given up"
        + (f": it was in {where}" if where else ""),
        ranks=(culprit,),
        group=group_ref(view, int(view.group[row])),
        location=(location_of_standing(trace, standing) if standing is not None and is_shown else None)
        or location_of(view, late),
        peer_location=location_of(view, row),
        evidence=Evidence(
            certain=(f"both ranks made the call, in {site_text(view, late)}", f"rank {culprit} made it {behind} later"),
            likely=(
                f"rank {victim} timed out because rank {culprit} was late",
                f"rank {culprit} then failed because rank {victim} was gone",
            ),
            stacks=standing_stacks(trace, [standing])
            if standing is not None and is_shown
            else stack_groups(view, [late], f"the late call of rank {culprit}"),
            waiting_ns=int(view.created[late] - view.created[row]),
            n_blocked=1,
        ),
        help=f"find out what rank {culprit} did before this call, or give the process group a longer timeout"
        + (f": it was in {where}" if where else ""),
    )
