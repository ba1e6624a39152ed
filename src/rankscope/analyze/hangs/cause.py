"""A candidate for why the job hangs, and whom it holds up."""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.analyze.hangs.divergence import Divergence
from rankscope.analyze.hangs.group_names import GroupOrder
from rankscope.analyze.hangs.programs import Departure
from rankscope.analyze.hangs.schedules import ScheduleChange
from rankscope.analyze.hangs.view import JobView
from rankscope.analyze.hangs.waits import Cycle, WaitGraph, WaitingCall
from rankscope.model.finding import Certainty
from rankscope.model.tables import MISSING


@dataclass(frozen=True)
class Cause:
    """One candidate: which rule it falls under, who did it and where."""

    rule: str
    ranks: tuple[int, ...]
    group: int
    seq: int
    certainty: Certainty
    time_ns: int
    match: int = MISSING
    culprit_row: int = MISSING
    peer_row: int = MISSING
    divergence: Divergence | None = None
    departure: Departure | None = None
    schedule: ScheduleChange | None = None
    order: GroupOrder | None = None
    calls: tuple[WaitingCall, ...] = ()
    cycle: Cycle | None = None
    blocked: frozenset[int] = frozenset()
    is_effect: bool = False
    also_possible: tuple[int, ...] = ()  # ranks without a dump that the data cannot tell from the culprit
    has_completed: tuple[int, ...] = ()  # members that the call ended for, while it does not end for the culprits


def blocked_by(graph: WaitGraph, cause: Cause) -> set[int]:
    matches = {call.match for call in cause.calls}
    if cause.match != MISSING:
        matches.add(cause.match)
    if cause.divergence is not None:  # from there on the group is out of step, wherever it then hangs
        matches.update(call.match for call in graph.calls.values() if call.group == cause.group and not call.is_p2p)
    return graph.blocked_by(set(cause.ranks), matches)


def first_join(view: JobView, call: WaitingCall) -> int:
    return int(view.created[view.rows_of_match(call.match)].min())
