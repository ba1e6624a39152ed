"""Transfers without their other half, where ranks wait for each other in a cycle: who left the half out."""

from __future__ import annotations

from rankscope.analyze.hangs.cause import Cause, first_join
from rankscope.analyze.hangs.programs import Programs
from rankscope.analyze.hangs.schedules import ScheduleChange, change_of
from rankscope.analyze.hangs.view import JobView
from rankscope.analyze.hangs.waits import Cycle, WaitGraph
from rankscope.model.tables import MISSING

_MAX_RANKS = 64  # of a cycle that are compared with their earlier steps


def unmatched_transfer(view: JobView, graph: WaitGraph, programs: Programs, cycle: Cycle) -> Cause | None:
    """The rank that left a transfer of the cycle out; both ranks where the dumps cannot separate them."""
    if not any(call.is_p2p and "absent" in call.held_up_by.values() for call in cycle.calls):
        return None
    return _passed_by(view, cycle) or _left_schedule(view, graph, programs, cycle) or _both_halves(view, cycle)


def _passed_by(view: JobView, cycle: Cycle) -> Cause | None:
    """A transfer whose other rank went on to a collective without it, where there is only one such rank."""
    passed = [
        (call, rank)
        for call in cycle.calls
        for rank, reason in call.held_up_by.items()
        if call.is_p2p
        and reason == "absent"
        and not view.is_p2p[view.first_waiting.get(rank, call.match)]
        and rank in view.first_waiting
    ]
    if len({rank for _, rank in passed}) != 1:
        return None
    call, rank = passed[0]
    return Cause(
        rule="p2p-unmatched",
        ranks=(rank,),
        group=call.group,
        seq=call.seq,
        certainty="likely",
        time_ns=first_join(view, call),
        match=call.match,
        culprit_row=view.first_waiting[rank],
        peer_row=view.first_waiting[call.waiting[0]],
        calls=tuple(call for call, _ in passed),
    )


def _left_schedule(view: JobView, graph: WaitGraph, programs: Programs, cycle: Cycle) -> Cause | None:
    """The only rank of the cycle whose step differs from its earlier ones, by transfers that it left out or added.

    A single earlier step is enough here: that one of these ranks is wrong is known.
    """
    changes = [change for rank in cycle.ranks[:_MAX_RANKS] if (change := change_of(view, programs, rank)) is not None]
    if len(changes) != 1 or (changes[0].missing and changes[0].extra):
        return None
    return from_change(view, graph, changes[0])


def from_change(view: JobView, graph: WaitGraph, change: ScheduleChange) -> Cause:
    peers = {transfer.peer for transfer in (*change.missing, *change.extra)}
    calls = tuple(call for call in graph.calls.values() if change.rank in call.held_up_by)
    first = next((call for call in calls if call.is_p2p and peers & set(call.waiting)), None)
    peer = next((rank for rank in sorted(peers) if rank in view.first_waiting), None)
    return Cause(
        rule="p2p-unmatched",
        ranks=(change.rank,),
        group=int(view.group[change.expected_row]),
        seq=first.seq if first is not None else int(view.seq[change.row]),
        certainty="likely",
        time_ns=int(view.created[change.row]),
        match=first.match if first is not None else MISSING,
        culprit_row=change.row,
        peer_row=view.first_waiting[peer] if peer is not None else MISSING,
        schedule=change,
        calls=calls,
    )


def _both_halves(view: JobView, cycle: Cycle) -> Cause | None:
    """Two ranks that each wait for a transfer of the other, after others between them worked.

    Had they only been in another order, the other half of one would be there, or none would have worked before.
    """
    is_pair = len(cycle.ranks) == 2 and all(call.is_p2p for call in cycle.calls)
    if not is_pair or all(call.seq == 1 for call in cycle.calls):
        return None
    call = min(cycle.calls, key=lambda call: first_join(view, call))
    culprit, peer = (view.first_waiting[rank] for rank in cycle.ranks)
    return Cause(
        rule="p2p-unmatched",
        ranks=cycle.ranks,
        group=call.group,
        seq=call.seq,
        certainty="likely",
        time_ns=first_join(view, call),
        match=call.match,
        culprit_row=culprit,
        peer_row=peer,
        calls=cycle.calls,
        cycle=cycle,
    )
