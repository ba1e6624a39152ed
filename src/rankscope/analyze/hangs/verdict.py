"""Why the job hangs: every candidate cause, the root first, what merely follows from it marked as effect.

Order of causes: the earliest call that does not fit its peers' (all that follows is its effect); then cycles of ranks
that wait for each other; then ranks that never came; then, by time, ranks without a dump and calls that none holds up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rankscope.analyze.derived import derived
from rankscope.analyze.hangs.cause import Cause, blocked_by, first_join, from_complete, from_unknown, silent_losses
from rankscope.analyze.hangs.divergence import find_divergences, from_divergence, left_out_runs, wrong_calls
from rankscope.analyze.hangs.orders import from_group_order, from_schedules, unmatched_transfer
from rankscope.analyze.hangs.programs import Programs, programs_of
from rankscope.analyze.hangs.view import JobView, ranks_stale
from rankscope.analyze.hangs.waits import Cycle, WaitGraph, WaitingCall, wait_graph
from rankscope.analyze.manifests import came_to_an_end, ended_well
from rankscope.model.tables import MISSING, Trace

_MAX_CALLS = 64  # of a cycle that are looked into
# A call that all have joined may just be running when the dumps are taken; after this long it is not.
_STALLED_NS = 5_000_000_000


def find_causes(trace: Trace) -> list[Cause]:
    """The root causes first; what only follows from them is marked as effect. None where the job ended well."""
    if ended_well(trace):
        return []
    view, graph, programs = derived(trace, JobView), wait_graph(trace), programs_of(trace)
    diverged = [from_divergence(view, divergence) for divergence in derived(trace, find_divergences)]
    cyclic = [cause for cycle in graph.cycles() for cause in _from_cycle(view, graph, programs, cycle)]
    departed = [cause for cause in cyclic if cause.departure is not None and cause.rule != "order-deadlock"]
    ends = list(_from_absent(view, graph, programs))
    departed += [cause for cause in ends if cause.departure is not None]
    runs = list(left_out_runs(view, graph, programs, {rank for cause in diverged for rank in cause.ranks}))
    explained = {cause.ranks for cause in diverged if cause.divergence and cause.divergence.departure}
    explained |= {run.ranks for run in runs}
    departed = [*runs, *(cause for cause in departed if cause.ranks not in explained)]
    # Ranks of the same role know better than the past; and a call that does not fit explains the transfers after it.
    by_siblings = bool(runs) or any(
        cause.departure and cause.departure.expected.basis == "siblings" for cause in departed
    )
    if not diverged and not by_siblings:
        departed = list(from_schedules(view, graph, trace)) or departed
    ordered = [
        *from_group_order(view, trace),
        *sorted([*diverged, *departed], key=lambda cause: cause.time_ns),
        *(cause for cause in cyclic if cause not in departed and cause.departure is None),
        *(cause for cause in ends if cause not in departed and cause.departure is None),
        *sorted(
            [*from_unknown(view, graph), *from_complete(view, graph, {cause.match for cause in diverged})],
            key=lambda cause: cause.time_ns,
        ),
        *_from_unpaired(view, graph),
    ]
    if came_to_an_end(trace):  # a call that all had joined was over when they left, whatever a counter says
        ordered = [cause for cause in ordered if cause.rule != "collective-stalled"]
    if not ordered:
        return list(silent_losses(view))
    ordered = [_as_far_as_recorded(view, cause) for cause in ordered]
    return _roots_first(view, [replace(cause, blocked=frozenset(blocked_by(graph, cause))) for cause in ordered])


def _as_far_as_recorded(view: JobView, cause: Cause) -> Cause:
    """That calls differ is certain; that ranks wait is not where their backend does not record how calls end."""
    is_recorded = cause.divergence is not None or cause.group not in view.blind_groups or cause.certainty != "certain"
    return cause if is_recorded else replace(cause, certainty="likely")


def _from_cycle(view: JobView, graph: WaitGraph, programs: Programs, cycle: Cycle) -> Iterator[Cause]:
    """A rank of the cycle that left out a call explains it; otherwise the order of calls does."""
    # In small groups few are suspected; of a call of the whole world a thousand might be.
    calls = sorted(cycle.calls, key=lambda call: (len(view.members[call.group]), call.match))[:_MAX_CALLS]
    causes = [_departed(view, programs, call, rank) for call in calls for rank in _suspects(call)]
    departures = sorted((cause for cause in causes if cause is not None), key=_by_kind_and_time)
    if departures:
        yield departures[0]
        return
    unmatched = unmatched_transfer(view, graph, programs, cycle)
    if unmatched is not None:
        yield unmatched
        return
    odd = _odd_ranks(view, programs, cycle)
    call = min(cycle.calls, key=lambda call: first_join(view, call))
    peer_rows = [view.first_waiting[rank] for rank in cycle.ranks if rank not in odd]
    culprit = view.first_waiting[odd[0]]
    yield Cause(
        rule="order-deadlock",
        ranks=odd,
        group=int(view.group[culprit]),
        seq=int(view.seq[culprit]),
        certainty="certain" if len(odd) == len(cycle.ranks) and _is_order_alone(cycle) else "likely",
        time_ns=first_join(view, call),
        match=graph.call_of_rank[odd[0]][0],
        culprit_row=culprit,
        peer_row=peer_rows[0] if peer_rows else view.first_waiting[cycle.ranks[-1]],
        calls=cycle.calls,
        cycle=cycle,
    )


def _by_kind_and_time(cause: Cause) -> tuple[bool, int]:
    """Of a transfer without counterpart, the half that was left out before the half that was made once too often."""
    is_extra = cause.departure is not None and cause.departure.shift.kind != "skipped"
    return cause.rule == "p2p-unmatched" and is_extra, cause.time_ns


def _is_order_alone(cycle: Cycle) -> bool:
    """False where a transfer lacks its other half, or has others before it: one left out shifts all later ones."""
    return not any(call.is_p2p and (call.seq > 1 or "absent" in call.held_up_by.values()) for call in cycle.calls)


def _suspects(call: WaitingCall) -> list[int]:
    """Ranks that have not made the call, then those that made it and should perhaps not have."""
    absent = [rank for rank, reason in call.held_up_by.items() if reason == "absent"]
    return [*absent, *call.waiting][:8]


def _departed(view: JobView, programs: Programs, call: WaitingCall, rank: int) -> Cause | None:
    """The rank left out the very call that others wait in, or made one that nobody answers."""
    departure = programs.departure(rank)
    if departure is None or departure.shift.kind == "swapped":
        return None
    has_skipped = departure.shift.kind == "skipped"
    wrong = wrong_calls(programs, departure)
    if has_skipped != (rank in call.held_up_by) or not any(bool(view.is_p2p[row]) == call.is_p2p for row in wrong):
        return None
    if not call.is_p2p:
        # It must be of the group that waits; and what only differs from the past may be a step that comes seldom.
        fits = [programs.group_class[call.group] == programs.row_class[row] for row in wrong]
        is_sure = has_skipped or departure.expected.basis == "siblings" or view.first_waiting[rank] in wrong
        if not any(fits) or not is_sure:
            return None
    # A synchronous rank shows one call only: whether it left the other out or makes it later cannot be seen.
    if not call.is_p2p and has_skipped and departure.shift.n_agreeing < 2:
        return None
    peer_row = next((view.first_waiting[other] for other in call.waiting if other != rank), MISSING)
    if not call.is_p2p:
        peer_row = peer_row if has_skipped else departure.expected.rows[0]
    return Cause(
        rule="p2p-unmatched" if call.is_p2p else "call-skipped",
        ranks=(rank,),
        group=call.group,
        seq=call.seq,
        certainty="likely",
        time_ns=int(view.created[departure.row]),
        match=call.match,
        culprit_row=departure.row,
        peer_row=peer_row,
        departure=departure,
        calls=(call,),
    )


def _odd_ranks(view: JobView, programs: Programs, cycle: Cycle) -> tuple[int, ...]:
    """Who is out of order: the smaller side of the cycle, else whoever left its usual order, else all of them."""
    sides: dict[int, set[int]] = defaultdict(set)
    for call in cycle.calls:
        sides[call.match].update(rank for rank in call.waiting if rank in cycle.ranks)
    shown = cycle.ranks[:64]
    for is_unusual in (_has_departed, _has_unusual_successor, _waits_unusually, _called_elsewhere):
        unusual = [rank for rank in shown if is_unusual(view, programs, rank)]
        if unusual and len(unusual) < len(shown):
            return tuple(unusual)
    smallest = min(sides.values(), key=len)
    if len(sides) == 2 and any(len(side) > len(smallest) for side in sides.values()):
        return tuple(sorted(smallest))
    return cycle.ranks


def _has_departed(view: JobView, programs: Programs, rank: int) -> bool:
    departure = programs.departure(rank)
    if departure is None:
        return False
    # A step that comes seldom differs from the past too, so that alone must point at the very call that waits.
    is_close = departure.row == view.first_waiting[rank]
    return is_close or (departure.expected.basis == "siblings" and departure.row < view.first_waiting[rank])


def _has_unusual_successor(view: JobView, programs: Programs, rank: int) -> bool:
    row = view.first_waiting[rank]
    expected = programs.usual_successor(row)
    return expected is not None and expected != programs.token[row]


def _waits_unusually(view: JobView, programs: Programs, rank: int) -> bool:
    row = view.first_waiting[rank]
    return bool(programs.precedents(row)) and not programs.is_usual(row)


def _called_elsewhere(view: JobView, programs: Programs, rank: int) -> bool:
    """The others in the call all came from one line, this rank from another: it may mean a call of another group."""
    row = view.first_waiting[rank]
    rows = view.rows_of_match(int(view.match[row])) if view.match[row] != MISSING else [row]
    others = [int(view.signatures.point[other]) for other in rows if other != row]
    return len(others) > 1 and len(set(others)) == 1 and int(view.signatures.point[row]) != others[0]


def _from_absent(view: JobView, graph: WaitGraph, programs: Programs) -> Iterator[Cause]:
    """Ranks with a dump that wait in nothing and never came: stuck outside of collectives, or gone on without."""
    together: dict[tuple[int, ...], list[int]] = defaultdict(list)
    calls_of: dict[int, list[WaitingCall]] = {}
    for rank, calls in graph.absent_ends().items():
        held = [call for call in calls if call.held_up_by[rank] == "absent"]
        if rank not in view.dumped or not held or not view.is_idle(rank):
            continue
        for call in held if any(call.is_p2p for call in held) else ():
            departed = _departed(view, programs, call, rank)
            if departed is not None:
                yield departed
                break
        else:
            calls_of[rank] = held
        if rank not in calls_of:
            continue
        rows = view.rows_of(rank)
        last = int(view.signatures.point[rows[-1]]) if len(rows) else MISSING
        together[(last, min(call.match for call in held))].append(rank)
    causes = [_stuck(view, programs, ranks, calls_of) for ranks in together.values()]
    yield from sorted(causes, key=lambda cause: (-len(blocked_by(graph, cause)), cause.time_ns))


def _stuck(view: JobView, programs: Programs, ranks: Sequence[int], calls_of: dict[int, list[WaitingCall]]) -> Cause:
    calls = tuple({call.match: call for rank in ranks for call in calls_of[rank]}.values())
    rows = view.rows_of(ranks[0])
    # Of several calls that wait for the rank, the one it would have made next; only then do times of hosts decide.
    expected = programs.next_class(int(rows[-1])) if len(rows) else None
    first = min(calls, key=lambda call: (int(programs.group_class[call.group]) != expected, first_join(view, call)))
    # Members of a group must join its collective. A transfer may have been left out, and all that followed made.
    is_owed = any(not call.is_p2p and not _may_be_extra(view, programs, call) for call in calls)
    return Cause(
        rule="rank-stuck",
        ranks=tuple(sorted(ranks)),
        group=first.group,
        seq=first.seq,
        certainty="certain" if is_owed else "likely",
        time_ns=first_join(view, first),
        match=first.match,
        culprit_row=int(rows[-1]) if len(rows) else MISSING,
        peer_row=view.first_waiting[first.waiting[0]],
        calls=calls,
    )


def _may_be_extra(view: JobView, programs: Programs, call: WaitingCall) -> bool:
    """Whether those that wait, no majority, may have made the call once too often: it repeats their last one."""
    if 2 * len(call.waiting) > len(view.members[call.group]):
        return False
    rows = [view.first_waiting[rank] for rank in call.waiting if rank in view.first_waiting]
    before = [programs.token[programs.preceding(row, limit=1)] for row in rows]
    return all(len(last) and last[0] == programs.token[row] for row, last in zip(rows, before, strict=True))


def _from_unpaired(view: JobView, graph: WaitGraph) -> Iterator[Cause]:
    """Transfers whose other side is not recorded (a receive from anyone): all that is known is that they wait."""
    rows = [row for rank, row in view.first_waiting.items() if rank not in graph.call_of_rank]
    for row in sorted(rows, key=lambda row: int(view.created[row])):
        yield Cause(
            rule="p2p-unmatched",
            ranks=(int(view.rank[row]),),
            group=int(view.group[row]),
            seq=int(view.seq[row]),
            certainty="possible",
            time_ns=int(view.created[row]),
            culprit_row=row,
        )


def causes_of(trace: Trace) -> list[Cause]:
    return derived(trace, find_causes)


def _roots_first(view: JobView, causes: Sequence[Cause]) -> list[Cause]:
    """The root causes, those that block most ranks first, then their effects."""
    roots: list[Cause] = []
    effects: list[Cause] = []
    for cause in causes:
        if roots and (_follows(view, cause, roots) or not _is_conclusive(view, cause)):
            effects.append(replace(cause, is_effect=True))
        else:
            roots.append(cause)
    return [*sorted(roots, key=lambda cause: -len(cause.blocked)), *effects]


def _follows(view: JobView, cause: Cause, roots: Sequence[Cause]) -> bool:
    """True if the cause's ranks wait for those of the roots, which explain all of it."""
    explained = set().union(*(root.blocked | set(root.ranks) for root in roots))
    if cause.rule == "rank-lost":
        # Nothing is known of such a rank; where all that wait for it also wait for others, it need not be a cause.
        # One that left a dump of another time may wait like the others: that calls differ is the better reason.
        is_stale = set(cause.ranks) <= ranks_stale(view.trace)
        return cause.blocked <= explained or (is_stale and any(root.divergence is not None for root in roots))
    if cause.divergence is not None:
        # No wait makes a rank call something else; but a rank that is out of step is so in all its groups.
        return any(set(root.ranks) & set(view.members[cause.group]) for root in roots)
    if set(cause.ranks) <= explained:
        return True
    # In a group that is out of step, ranks stay away from calls that only the culprit makes.
    out_of_step = {root.group for root in roots if root.divergence is not None or root.departure is not None}
    is_of_group = {call.group for call in cause.calls} <= out_of_step and bool(cause.calls)
    return is_of_group and cause.blocked <= explained


def _is_conclusive(view: JobView, cause: Cause) -> bool:
    """False if the call may just be running, or waits for an unknown rank."""
    if cause.match == MISSING:
        return cause.rule != "p2p-unmatched"
    if cause.rule != "collective-stalled":
        return True
    rows = view.rows_of_match(cause.match)
    is_aborted = view.calls.text("status").equals("aborted")[rows].any()
    return bool(is_aborted or view.last_activity_ns - int(view.created[rows].min()) >= _STALLED_NS)
