"""H107, H108: ranks that wait for each other in a cycle, and transfers without a counterpart."""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.analyze.hangs.cause import Cause
from rankscope.analyze.hangs.evidence import call_text, group_text, side_label, site_text, stack_groups
from rankscope.analyze.hangs.schedules import ScheduleChange, Transfer
from rankscope.analyze.hangs.view import JobView
from rankscope.analyze.hangs.waits import Cycle
from rankscope.analyze.hangs.wording import NEEDS, findings_of, make_evidence, make_finding, waits
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Comparison, Finding, Side, count_noun, ranks_phrase
from rankscope.model.tables import MISSING, Trace

_MAX_SIDES = 4


@rule("H107", "order-deadlock", needs=NEEDS)
def order_deadlock(trace: Trace) -> Iterator[Finding | Effect]:
    """Ranks wait for each other in a cycle: they made calls of different groups in different order.

    What it means: rank A is in a call of one group that rank B has yet to make, and B is in a call of another group
    that A has yet to make. None of them can go on.

    Why it happens: groups used in different order on different ranks (a branch, a set or dict iterated in different
    order, two threads that issue collectives, a send before a receive on both sides), or one rank that left out
    a call and went on to the next group.

    What to do: issue the collectives of all groups in the same order on all ranks; for transfers let one side receive
    first or use batch_isend_irecv.

    What could fool it: where a synchronous rank shows a single unfinished call it cannot be seen whether it left the
    other call out or would make it later; both are this finding.
    """
    yield from findings_of(trace, "H107", _describe_cycle)


def _describe_cycle(view: JobView, cause: Cause) -> Finding:
    cycle = cause.cycle
    assert cycle is not None
    is_known = len(cause.ranks) < len(cycle.ranks)
    n_groups = len({call.group for call in cycle.calls})
    title = (
        f"{ranks_phrase(cycle.ranks)} wait for each other in {count_noun(len(cycle.calls), 'call')} "
        f"of {count_noun(n_groups, 'group')}"
    )
    likely: tuple[str, ...] = ()
    if is_known:
        title = (
            f"{ranks_phrase(cause.ranks)} went to {_call_of_group(view, cause.culprit_row)} before "
            f"{_call_of_group(view, cause.peer_row)}, in which the others wait"
        )
        likely = (f"{ranks_phrase(cause.ranks)} left the order that the others, or its own earlier steps, keep",)
    evidence = make_evidence(
        view,
        cause,
        len(cycle.ranks) - len(cause.ranks),
        certain=("each of these calls is held up by a rank that waits in another of them",),
        likely=likely,
        comparison=_compare_cycle(view, cycle),
        stacks=stack_groups(view, [view.first_waiting[rank] for rank in cycle.ranks], "waiting"),
    )
    return make_finding(view, cause, title, evidence, "make these calls in the same order on all ranks")


def _call_of_group(view: JobView, row: int) -> str:
    return f"{call_text(view, row)} of {group_text(view, int(view.group[row]))}"


def _compare_cycle(view: JobView, cycle: Cycle) -> Comparison:
    """One column per call of the cycle: where it is made, and for whom its ranks wait."""
    sides = []
    for call in cycle.calls[:_MAX_SIDES]:
        row = view.first_waiting[call.waiting[0]]
        for_whom = ranks_phrase(tuple(call.held_up_by))
        cells = (group_text(view, call.group), call_text(view, row), site_text(view, row) or "-", for_whom)
        sides.append(Side(side_label(call.waiting), call.waiting, cells))
    return Comparison("", ("group", "waits in", "at", "for"), tuple(sides))


@rule("H108", "p2p-unmatched", needs=NEEDS)
def p2p_unmatched(trace: Trace) -> Iterator[Finding | Effect]:
    """A send or receive has no counterpart: the other rank left it out, or one was made too many.

    What it means: the k-th send from one rank to another meets the k-th receive there. One side made fewer, so from
    then on the transfers are shifted, and in the end one of them waits for ever.

    Why it happens: a pipeline schedule that differs between stages (number of micro-batches, an early exit, a warm-up
    step), a condition around a send, a tag or peer computed differently on both sides.

    What to do: compare the schedule of the two ranks at the call that is named.

    What could fool it: with wrapped rings transfers are counted from the newest completed one; gloo does not record
    sends and receives at all.
    """
    yield from findings_of(trace, "H108", _describe_transfer)


def _describe_transfer(view: JobView, cause: Cause) -> Finding:
    if cause.schedule is not None:
        return _describe_schedule(view, cause, cause.schedule)
    departure = cause.departure
    if departure is None:
        return _describe_unpaired(view, cause)
    has_skipped = departure.shift.kind == "skipped"
    wrong = departure.expected.rows[0] if has_skipped else departure.row
    peers = [rank for call in cause.calls for rank in call.waiting if rank not in cause.ranks]
    noun = _wrong_half(view, wrong, cause.ranks[0])
    title = f"{ranks_phrase(cause.ranks)} " + (f"left out its {noun}" if has_skipped else f"made one more {noun}")
    title += f" in {site_text(view, wrong)}" if site_text(view, wrong) else ""
    if peers:
        title += f"; {ranks_phrase(peers)} {waits(len(peers))} for it"
    compared = "ranks of the same role" if departure.expected.basis == "siblings" else "its own earlier steps"
    waiting = [rank for rank in [*cause.ranks, *peers] if rank in view.first_waiting]
    evidence = make_evidence(
        view,
        cause,
        len(peers),
        certain=tuple(f"rank {rank} waits in {call_text(view, view.first_waiting[rank])}" for rank in waiting),
        likely=(
            f"beside {compared}, the calls of rank {cause.ranks[0]} fit when shifted by {departure.shift.n_calls}",
        ),
        stacks=(
            *stack_groups(view, [cause.culprit_row], "culprit"),
            *stack_groups(view, [view.first_waiting[rank] for rank in waiting], "waiting"),
        ),
    )
    return make_finding(
        view, cause, title, evidence, "compare the schedule of sends and receives of the two ranks at this point"
    )


def _describe_schedule(view: JobView, cause: Cause, change: ScheduleChange) -> Finding:
    """The missing half, by neighbor and place in the step, and the line that makes it in other steps."""
    rank = change.rank
    left_out = ", ".join(f"its {_half(transfer)}" for transfer in change.missing)
    added = ", ".join(f"one more {_half(transfer)}" for transfer in change.extra)
    did = " and ".join(part for part in (left_out and f"left out {left_out}", added and f"made {added}") if part)
    site = site_text(view, change.expected_row if change.missing else change.row)
    concerned = dict.fromkeys([rank, *(transfer.peer for transfer in (*change.missing, *change.extra))])
    waiting = [each for each in concerned if each in view.first_waiting]
    evidence = make_evidence(
        view,
        cause,
        len(cause.blocked),
        certain=tuple(f"rank {each} waits in {call_text(view, view.first_waiting[each])}" for each in waiting),
        likely=(
            f"call {change.number + 1} of the step is {call_text(view, change.expected_row)} in its earlier steps, "
            f"and {call_text(view, change.row)} in this one",
        ),
        stacks=(
            *stack_groups(view, [change.row], "culprit"),
            *stack_groups(view, [view.first_waiting[each] for each in waiting], "waiting"),
        ),
        facts={
            "missing": [transfer.as_fact() for transfer in change.missing],
            "extra": [transfer.as_fact() for transfer in change.extra],
            "call_of_step": change.number + 1,
        },
    )
    title = f"rank {rank} {did}" + (f" in {site}" if site else "")
    peers = sorted({other for call in cause.calls if call.is_p2p for other in call.waiting} - {rank})
    if peers:
        title += f"; {ranks_phrase(peers)} {waits(len(peers))} for it"
    return make_finding(view, cause, title, evidence, f"make the schedule of rank {rank} the same in every step")


def _wrong_half(view: JobView, row: int, rank: int) -> str:
    """The transfer that a rank of the same role, or of an earlier step, made: the neighbor is as far away."""
    op, peer = view.calls.text("op")[row], int(view.calls.array("peer")[row])
    if op not in ("send", "recv") or peer == MISSING:
        return "batch of sends and receives"
    return _half(Transfer(op == "send", peer - int(view.rank[row]) + rank))


def _half(transfer: Transfer) -> str:
    return f"send to rank {transfer.peer}" if transfer.is_send else f"receive from rank {transfer.peer}"


def _describe_unpaired(view: JobView, cause: Cause) -> Finding:
    row = cause.culprit_row
    site = site_text(view, row)
    title = f"rank {cause.ranks[0]} waits in {call_text(view, row)}" + (f" in {site}" if site else "")
    evidence = make_evidence(
        view,
        cause,
        0,
        certain=("its other side is not recorded",),
        likely=("nobody made the counterpart of this transfer",),
        stacks=stack_groups(view, [row], "waiting"),
    )
    return make_finding(view, cause, f"{title}, from or to an unknown rank", evidence, "find out who should answer it")
