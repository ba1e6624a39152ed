"""Ranks that left out, or made again, a run of calls of several groups, beside the ranks of their role.

The hang then shows anywhere: in a cycle of waits, in a transfer without counterpart, in a rank that never comes. What
the ranks of its role did in its place says more than where it shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from rankscope.analyze.hangs.cause import Cause
from rankscope.analyze.hangs.programs import Departure, Programs
from rankscope.analyze.hangs.view import JobView
from rankscope.analyze.hangs.waits import WaitGraph
from rankscope.model.tables import MISSING

_FEW = 4  # calls before which a rank may only have been early with another one


def left_out_runs(view: JobView, graph: WaitGraph, programs: Programs, known: Set[int]) -> Iterator[Cause]:
    """One cause per rank that others wait for and that left the path of its role; not those already `known`."""
    holders = {rank for call in graph.calls.values() for rank, why in call.held_up_by.items() if why == "absent"}
    for rank in sorted(holders - set(known)):
        departure = programs.departure_beside(rank)
        if departure is not None and _is_run(view, programs, departure):
            yield _cause(view, graph, programs, departure)


def wrong_calls(programs: Programs, departure: Departure) -> list[int]:
    """The calls that were left out, as the reference made them, or those that were made once more."""
    rows = departure.expected.rows
    if departure.shift.kind != "skipped":
        rows = tuple(programs.following(departure.row).tolist())
    return list(rows[: departure.shift.n_calls])


def _is_run(view: JobView, programs: Programs, departure: Departure) -> bool:
    """Several calls, at least one of them a collective; a single transfer is a matter of the schedule of transfers."""
    shift = departure.shift
    if shift.kind == "swapped" or shift.n_calls < 2 or view.is_p2p[wrong_calls(programs, departure)].all():
        return False
    # A rank that waits for every call shows one only: it may make those before it later.
    return shift.n_agreeing > 1 or shift.n_calls > _FEW


def _cause(view: JobView, graph: WaitGraph, programs: Programs, departure: Departure) -> Cause:
    rank = int(view.rank[departure.row])
    wrong = wrong_calls(programs, departure)
    first = next(row for row in wrong if not view.is_p2p[row])
    has_skipped = departure.shift.kind == "skipped"
    group = int(view.group[first])
    if has_skipped:  # the reference may be of another group of the same role
        own = [own for own in view.groups_of[rank] if programs.group_class[own] == programs.row_class[first]]
        group = own[0] if own else group
    seq = int(view.seq[first])
    match = view.collective_match.get((group, seq), MISSING) if has_skipped and view.rank[first] != rank else MISSING
    rows = view.rows_of_match(match).tolist() if match != MISSING else []
    calls = tuple(call for call in graph.calls.values() if rank in call.held_up_by or rank in call.waiting)
    return Cause(
        rule="call-skipped",
        ranks=(rank,),
        group=group,
        seq=seq,
        certainty="likely",
        time_ns=int(view.created[departure.row]),
        match=match,
        culprit_row=departure.row,
        peer_row=next((row for row in rows if int(view.rank[row]) != rank), wrong[0]),
        departure=departure,
        calls=calls,
    )
