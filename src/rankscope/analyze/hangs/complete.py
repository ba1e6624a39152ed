"""Calls that all their ranks have joined and that do not end: a device, the network, or calls that do not fit."""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.analyze.hangs.cause import Cause, first_join
from rankscope.analyze.hangs.view import JobView
from rankscope.analyze.hangs.waits import WaitGraph, WaitingCall
from rankscope.model.finding import Certainty

_SAME_ATTEMPT_NS = 10 * 10**9
# Ops that some ranks may leave before others have come. Which rank is the root is not recorded.
ROOTED = frozenset(("broadcast", "reduce", "gather", "scatter"))


def from_complete(view: JobView, graph: WaitGraph, diverged: set[int]) -> Iterator[Cause]:
    """All members have joined, their calls fit, and still it does not end: the device or the network."""
    calls = [call for call in graph.complete_calls() if call.match not in diverged]
    for call in sorted(calls, key=lambda call: (first_join(view, call), call.match)):
        row = view.first_waiting[call.waiting[0]]
        joined = {int(view.rank[row]) for row in view.rows_of_match(call.match)}
        members = set(view.members[call.group]) if not call.is_p2p else joined
        # Counters show that they joined, but what they called is lost: it may not have fitted.
        unseen = members - joined
        lagging = _not_completed(view, call)
        if lagging:
            row = view.first_waiting[min(lagging)]
        yield Cause(
            rule=_rule_of_complete(view, call),
            ranks=tuple(sorted(lagging or unseen or _not_started(view, call) or members)),
            group=call.group,
            seq=call.seq,
            certainty=_certainty(view, call, is_partial=bool(lagging), is_seen=not unseen),
            time_ns=first_join(view, call),
            match=call.match,
            culprit_row=row,
            peer_row=row,
            calls=(call,),
            has_completed=completed_by(view, call.match) if lagging else (),
        )


def _certainty(view: JobView, call: WaitingCall, *, is_partial: bool, is_seen: bool) -> Certainty:
    if is_partial or _is_paired_by_count(view, call):
        return "likely"
    if not is_seen:
        return "possible"
    # A clock that is this far off may as well be a dump of another attempt, which says nothing about this call.
    offsets = view.trace.table("ranks").array("clock_offset_ns")
    return "likely" if len(offsets) and int(offsets.max()) - int(offsets.min()) > _SAME_ATTEMPT_NS else "certain"


def _rule_of_complete(view: JobView, call: WaitingCall) -> str:
    if view.trace.table("matches").array("n_signatures")[call.match] > 1:
        return _uneven_rule(view, call)
    is_counted = _is_paired_by_count(view, call) and not completed_by(view, call.match)
    return "p2p-unmatched" if is_counted else "collective-stalled"


def _is_paired_by_count(view: JobView, call: WaitingCall) -> bool:
    """Whether a ring has dropped transfers of the pair: which send belongs to which receive is then only likely."""
    ranks = view.trace.table("ranks")
    wrapped = set(ranks.array("rank")[ranks.array("n_dropped") > 0].tolist())
    return call.is_p2p and bool(wrapped & {int(view.rank[row]) for row in view.rows_of_match(call.match)})


def _not_completed(view: JobView, call: WaitingCall) -> set[int]:
    """The ranks that wait in a call which others of its ranks have completed."""
    return set(call.waiting) if completed_by(view, call.match) else set()


def completed_by(view: JobView, match: int) -> tuple[int, ...]:
    """The ranks whose own records say that they completed the call.

    One that is only `retired` may have failed. But a rank that made another call after a rooted one has left it.
    """
    rows = view.rows_of_match(match)
    has_completed = view.calls.text("state").equals("completed")[rows]
    if len(rows) and view.calls.text("op")[int(rows[0])] in ROOTED:
        has_completed |= [int(view.rows_of(int(view.rank[row]))[-1]) != row for row in rows.tolist()]
    return tuple(sorted(view.rank[rows[view.is_done[rows] & has_completed]].tolist()))


def _uneven_rule(view: JobView, call: WaitingCall) -> str:
    rows = view.rows_of_match(call.match)
    if not call.is_p2p and len(set(view.signatures.op[rows].tolist())) > 1:
        return "op-mismatch"
    sizes = set(view.signatures.size[rows].tolist())
    return "size-mismatch" if len(sizes) > 1 else "dtype-mismatch"


def _not_started(view: JobView, call: WaitingCall) -> set[int]:
    """With timing on, the ranks whose kernel has not even begun while others' has."""
    rows = view.rows_of_match(call.match)
    started = view.calls.array("started_ns")[rows] > 0
    return {int(rank) for rank in view.rank[rows[~started]]} if started.any() and not started.all() else set()
