"""H107, H108: ranks that wait for each other in a cycle, and sends or receives without a counterpart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from rankscope.analyze.hangs.cause import Cause, ScheduleChange, Transfer
from rankscope.analyze.hangs.evidence import call_text, group_text, side_label, site_text, stack_groups
from rankscope.analyze.hangs.view import JobView
from rankscope.analyze.hangs.waits import Cycle
from rankscope.analyze.hangs.wording import are_waiting, findings_of, make_evidence, make_finding
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Comparison, Finding, Side, count_noun, ranks_phrase
from rankscope.model.tables import MISSING, Trace

_MAX_SIDES = 4


@rule("H107", "order-deadlock", needs=("collectives", "groups"))
def order_deadlock(trace: Trace) -> Iterator[Finding | Effect]:
    """Ranks are deadlocked: they made calls of different groups in different orders and wait for each other.

    What it means: rank A is in a call of one group that rank B has yet to make, and B is in a call of another group
    that A has yet to make. Neither can continue.

    Why it happens: ranks use their groups in different orders (a branch, a set or dict iterated in a different order,
    two threads that issue collectives, a send before a receive on both sides), or one rank skipped a call and continued
    with the next group.

    What to do: issue the collectives of all groups in the same order on all ranks. For sends and receives, let one side
    receive first, or use batch_isend_irecv.

    What could fool it: if a rank waits for each call before it makes the next one, the data does not show whether it
    skipped the other call or would make it later. Both are reported as this finding.
    """
    yield from findings_of(trace, "order-deadlock", _describe_cycle)


def _describe_cycle(view: JobView, cause: Cause) -> Finding:
    cycle = cause.cycle
    assert cycle is not None
    is_known = len(cause.ranks) < len(cycle.ranks)
    n_groups = len({call.group for call in cycle.calls})
    calls = f"{count_noun(len(cycle.calls), 'call')} of {count_noun(n_groups, 'group')}"
    title = f"{ranks_phrase(cycle.ranks)} are deadlocked: they wait for each other in {calls}"
    likely: tuple[str, ...] = ()
    if is_known:
        title = (
            f"{ranks_phrase(cause.ranks)} called {_call_of_group(view, cause.culprit_row)} before "
            f"{_call_of_group(view, cause.peer_row)}, where the others are waiting"
        )
        is_one = len(cause.ranks) == 1
        its = "its" if is_one else "their"
        order = f"made these calls in a different order than the others, or than in {its} earlier steps"
        likely = (f"{ranks_phrase(cause.ranks)} {order}",)
        if n_groups > 1:
            likely += (f"if the order is right, check which group {'it passes' if is_one else 'they pass'}",)
    evidence = make_evidence(
        view,
        cause,
        len(cycle.ranks) - len(cause.ranks),
        certain=("each of these calls is blocked by a rank that is waiting in another of them",),
        likely=likely,
        comparison=_compare_cycle(view, cycle),
        stacks=stack_groups(view, [view.first_waiting[rank] for rank in cycle.ranks], "waiting"),
    )
    return make_finding(view, cause, title, evidence, "make these calls in the same order on all ranks")


def _call_of_group(view: JobView, row: int) -> str:
    return f"{call_text(view, row)} of {group_text(view, int(view.group[row]))}"


def _compare_cycle(view: JobView, cycle: Cycle) -> Comparison:
    """One column per call of the cycle: where it is made, and which ranks it waits for."""
    sides = []
    for call in cycle.calls[:_MAX_SIDES]:
        row = view.first_waiting[call.waiting[0]]
        waits_for = ranks_phrase(tuple(call.held_up_by))
        cells = (group_text(view, call.group), call_text(view, row), _sites(view, call.waiting), waits_for)
        sides.append(Side(side_label(call.waiting), call.waiting, cells))
    return Comparison("", ("group", "waits in", "at", "for"), tuple(sides))


def _sites(view: JobView, ranks: Sequence[int]) -> str:
    """`forward (model.py:42)`; where ranks came from several lines, the ranks of each."""
    by_site: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        by_site[site_text(view, view.first_waiting[rank]) or "-"].append(rank)
    if len(by_site) == 1:
        return next(iter(by_site))
    return ", ".join(f"{site} on {ranks_phrase(members)}" for site, members in by_site.items())


@rule("H108", "p2p-unmatched", needs=("collectives", "groups"))
def p2p_unmatched(trace: Trace) -> Iterator[Finding | Effect]:
    """A send or receive has no counterpart: the other rank skipped it, or one side made an extra one.

    What it means: the n-th send from one rank to another is paired with the n-th receive there. One side made fewer, so
    the later transfers are paired wrongly, and in the end one of them waits forever.

    Why it happens: a pipeline schedule that differs between stages (number of micro-batches, an early exit, a warm-up
    step), a condition around a send, a tag or peer that the two sides compute differently.

    What to do: compare the schedules of the two ranks at the call in the finding.

    What could fool it: if a ring buffer has dropped calls, transfers are counted from the newest completed one. The
    gloo backend does not record sends and receives at all.
    """
    yield from findings_of(trace, "p2p-unmatched", _describe_transfer)


def _describe_transfer(view: JobView, cause: Cause) -> Finding:
    if cause.schedule is not None:
        return _describe_schedule(view, cause, cause.schedule)
    departure = cause.departure
    if departure is None:
        if len(cause.ranks) > 1:
            return _describe_halves(view, cause) if cause.cycle is not None else _describe_pair(view, cause)
        return _describe_unanswered(view, cause) if cause.calls else _describe_unpaired(view, cause)
    has_skipped = departure.shift.kind == "skipped"
    wrong = departure.expected.rows[0] if has_skipped else departure.row
    peers = [rank for call in cause.calls for rank in call.waiting if rank not in cause.ranks]
    noun = _wrong_half(view, wrong, cause.ranks[0])
    title = f"{ranks_phrase(cause.ranks)} " + (f"skipped its {noun}" if has_skipped else f"made an extra {noun}")
    title += f" in {site_text(view, wrong)}" if site_text(view, wrong) else ""
    if peers:
        title += f"; {ranks_phrase(peers)} {are_waiting(len(peers))} for it"
    compared = "ranks with the same role" if departure.expected.basis == "siblings" else "its earlier steps"
    waiting = [rank for rank in [*cause.ranks, *peers] if rank in view.first_waiting]
    evidence = make_evidence(
        view,
        cause,
        len(peers),
        certain=tuple(f"rank {rank} is waiting in {call_text(view, view.first_waiting[rank])}" for rank in waiting),
        likely=(f"the calls of rank {cause.ranks[0]} match {compared} when shifted by {departure.shift.n_calls}",),
        stacks=(
            *stack_groups(view, [cause.culprit_row], "culprit"),
            *stack_groups(view, [view.first_waiting[rank] for rank in waiting], "waiting"),
        ),
    )
    return make_finding(
        view, cause, title, evidence, "compare the send and receive schedules of the two ranks at this point"
    )


def _describe_pair(view: JobView, cause: Cause) -> Finding:
    """Two ranks whose send and receive seem to match, counted from the middle of the job, and still wait."""
    rows = view.rows_of_match(cause.match).tolist()
    waiting = tuple(f"rank {int(view.rank[row])} is waiting in {call_text(view, row)}" for row in rows)
    evidence = make_evidence(
        view,
        cause,
        len(cause.ranks),
        certain=waiting,
        likely=("one of them skipped a send or receive in this step, or a device or link hangs",),
        notes=("the ring buffers dropped older calls, so sends and receives are paired by counting back",),
        stacks=stack_groups(view, rows, "waiting"),
    )
    title = f"{' and '.join(waiting)}, but the transfer does not complete"
    advice = "compare the sends and receives of the two ranks; TORCH_FR_BUFFER_SIZE=2000 keeps more of them"
    return make_finding(view, cause, title, evidence, advice)


def _describe_halves(view: JobView, cause: Cause) -> Finding:
    """Two ranks that each wait for a send or receive that the other did not make."""
    one, other = cause.ranks
    rows = [view.first_waiting[rank] for rank in cause.ranks]
    missing = {rank: _missing_half(view, cause, row) for rank, row in zip((other, one), rows, strict=True)}
    evidence = make_evidence(
        view,
        cause,
        len(cause.blocked),
        certain=tuple(
            f"rank {rank} is waiting in {call_text(view, row)}" for rank, row in zip(cause.ranks, rows, strict=True)
        ),
        likely=tuple(f"rank {rank} skipped its {_half(half)}" for rank, half in missing.items()),
        notes=("one of the two explains the hang; the earlier calls do not show which",),
        stacks=stack_groups(view, rows, "waiting"),
        facts={"missing": [{"rank": rank, **half.as_fact()} for rank, half in missing.items()]},
    )
    title = f"rank {one} did not make its {_half(missing[one])}, or rank {other} its {_half(missing[other])}"
    advice = f"compare the sends and receives of ranks {one} and {other} in this step"
    return make_finding(view, cause, f"{title}: both are waiting", evidence, advice)


def _missing_half(view: JobView, cause: Cause, row: int) -> Transfer:
    """The other half of the transfer that a call waits for, as its peer should have made it."""
    matches = {call.match for call in cause.calls}
    part = next((part for part in view.parts_of(row) if int(view.match[part]) in matches), row)
    return Transfer(view.calls.text("op")[part] != "send", int(view.rank[row]))


def _describe_unanswered(view: JobView, cause: Cause) -> Finding:
    """A rank that continued with a collective while its peer still waits for its send or receive."""
    rank, peer = cause.ranks[0], int(view.rank[cause.peer_row])
    ops, peers = view.calls.text("op"), view.calls.array("peer")
    waiting = [part for part in view.parts_of(cause.peer_row) if int(peers[part]) == rank and not view.is_done[part]]
    halves = [Transfer(ops[part] != "send", peer) for part in waiting]
    halves = [
        half for half, part in zip(halves, waiting, strict=True) if int(view.match[part]) == cause.match
    ] or halves
    missing = " and its ".join(_half(half) for half in halves[:1])
    next_call, waits_in = call_text(view, cause.culprit_row), call_text(view, cause.peer_row)
    title = f"rank {rank} moved on to {next_call} without its {missing}; rank {peer} is waiting for it"
    evidence = make_evidence(
        view,
        cause,
        1,
        certain=(f"rank {rank} is waiting in {next_call}", f"rank {peer} is waiting in {waits_in}"),
        likely=(f"rank {rank} skipped its {missing}, or rank {peer} made an extra transfer",),
        stacks=stack_groups(view, [cause.culprit_row, cause.peer_row], "waiting"),
        facts={"missing": [half.as_fact() for half in halves[:1]]},
    )
    advice = f"compare the sends and receives of ranks {rank} and {peer} in this step"
    return make_finding(view, cause, title, evidence, advice)


def _describe_schedule(view: JobView, cause: Cause, change: ScheduleChange) -> Finding:
    """The missing or extra transfers of a step, and the line that makes them in other steps."""
    rank = change.rank
    skipped = ", ".join(f"its {_half(transfer)}" for transfer in change.missing)
    added = ", ".join(f"an extra {_half(transfer)}" for transfer in change.extra)
    did = " and ".join(part for part in (skipped and f"skipped {skipped}", added and f"made {added}") if part)
    site = site_text(view, change.expected_row if change.missing else change.row)
    concerned = dict.fromkeys([rank, *(transfer.peer for transfer in (*change.missing, *change.extra))])
    waiting = [each for each in concerned if each in view.first_waiting]
    evidence = make_evidence(
        view,
        cause,
        len(cause.blocked),
        certain=tuple(f"rank {each} is waiting in {call_text(view, view.first_waiting[each])}" for each in waiting),
        likely=(
            f"call {change.number + 1} of the step is {call_text(view, change.expected_row)} in its earlier steps, "
            f"but {call_text(view, change.row)} in this one",
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
        title += f"; {ranks_phrase(peers)} {are_waiting(len(peers))} for it"
    return make_finding(view, cause, title, evidence, f"make rank {rank} send and receive the same in every step")


def _wrong_half(view: JobView, row: int, rank: int) -> str:
    """The transfer that a rank with the same role made, or this one in an earlier step, with this rank's neighbor."""
    op, peer = view.calls.text("op")[row], int(view.calls.array("peer")[row])
    if op not in ("send", "recv") or peer == MISSING:
        return "batch of sends and receives"
    return _half(Transfer(op == "send", peer - int(view.rank[row]) + rank))


def _half(transfer: Transfer) -> str:
    return f"send to rank {transfer.peer}" if transfer.is_send else f"receive from rank {transfer.peer}"


def _describe_unpaired(view: JobView, cause: Cause) -> Finding:
    row = cause.culprit_row
    site = site_text(view, row)
    title = f"rank {cause.ranks[0]} is waiting in {call_text(view, row)}" + (f" in {site}" if site else "")
    evidence = make_evidence(
        view,
        cause,
        0,
        certain=("the record does not say which rank is on the other side",),
        likely=("no rank made the matching send or receive",),
        stacks=stack_groups(view, [row], "waiting"),
    )
    advice = "find out which rank should answer"
    return make_finding(view, cause, f"{title}, from or to an unknown rank", evidence, advice)
