"""H101, H105, H107-H109: ranks that wait for a rank that never comes, for each other, or for the network."""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.analyze.evidence import (
    call_text,
    collective_ref,
    compare_sides,
    group_ref,
    group_text,
    location_of,
    side_label,
    site_text,
    stack_groups,
)
from rankscope.analyze.mismatch import blocked_note, findings_of, waiting_ns
from rankscope.analyze.registry import Effect, rule
from rankscope.analyze.verdict import Cause
from rankscope.analyze.view import JobView
from rankscope.model.finding import Comparison, Evidence, Finding, Side, count_noun, format_ranks, ranks_phrase
from rankscope.model.tables import MISSING, Trace

_NEEDS = ("collectives", "groups")


def _waiting_rows(view: JobView, cause: Cause) -> list[int]:
    """The calls of the ranks that wait directly for the culprits."""
    ranks = dict.fromkeys(rank for call in cause.calls for rank in call.waiting)
    return [view.first_waiting[rank] for rank in ranks]


def _host_note(view: JobView, ranks: tuple[int, ...]) -> tuple[str, ...]:
    table = view.trace.table("ranks")
    hosts = {
        host
        for rank, host in zip(table.array("rank").tolist(), table.text("host").tolist(), strict=True)
        if rank in ranks and host
    }
    return (f"on {'host' if len(hosts) == 1 else 'hosts'} {', '.join(sorted(hosts)[:4])}",) if hosts else ()


@rule("H101", "rank-lost", needs=_NEEDS)
def rank_lost(trace: Trace) -> Iterator[Finding | Effect]:
    """A rank left no dump, and the others wait for it.

    What it means: every chain of waiting ranks ends at a rank of which nothing was recorded: its process was gone
    before it could write, or its file did not reach this folder.

    Why it happens: the process was killed (out of memory, a node failure, the launcher), crashed in native code, or
    its disk was full. The rank that failed is often exactly the one without a dump.

    What to do: look at the rank's own standard error, the kernel log of its host and the scheduler's record; if the
    file only got lost, add it to the folder and run again.

    What could fool it: with several dumps missing the data cannot always tell which of them matters; all that can
    be the cause are named. Where another cause is certain, missing dumps are only reported as D901.
    """

    def describe(view: JobView, cause: Cause) -> Finding:
        rows = _waiting_rows(view, cause)
        n_waiting = len(cause.blocked) or len(view.ranks)
        waits = f"{count_noun(n_waiting, 'rank')} {'waits' if n_waiting == 1 else 'wait'} for it"
        if not rows:
            waits = "the other ranks' records end without it"
        peers = sorted({int(view.rank[row]) for row in rows}) or view.ranks
        is_many = len(cause.ranks) > 1
        return Finding(
            code="H101",
            rule="rank-lost",
            severity="error",
            certainty=cause.certainty,
            title=f"{ranks_phrase(cause.ranks)} left no dump and {waits.replace(' it', ' them') if is_many else waits}",
            ranks=cause.ranks,
            group=group_ref(view, cause.group),
            collective=collective_ref(view, cause.peer_row),
            peer_location=location_of(view, cause.peer_row),
            evidence=Evidence(
                certain=(
                    f"{ranks_phrase(peers)} made the call and {'waits' if len(peers) == 1 else 'wait'}",
                    "no rank with a dump holds the call up",
                )
                if rows
                else (f"no readable dump of {ranks_phrase(cause.ranks)}",),
                likely=(
                    f"{'one of them' if is_many else 'its process'} died before it could write a dump",
                    *_last_seen(view, cause),
                ),
                notes=(
                    *blocked_note(cause, len(peers)),
                    *(
                        [
                            f"no dump of {ranks_phrase(cause.also_possible)} either; they came later into the chain of waits"
                        ]
                        if cause.also_possible
                        else []
                    ),
                ),
                comparison=compare_sides(
                    view,
                    cause.group,
                    cause.seq,
                    [(side_label(peers), peers), (side_label(cause.ranks), list(cause.ranks))],
                )
                if not view.is_p2p[cause.peer_row]
                else None,
                stacks=stack_groups(view, rows, "waiting"),
                waiting_ns=waiting_ns(view, cause),
                n_blocked=len(cause.blocked),
            ),
            help=f"look at the standard error of rank {cause.ranks[0]} and the kernel log of its host (killed? out of memory?)",
        )

    yield from findings_of(trace, "H101", describe)


def _last_seen(view: JobView, cause: Cause) -> tuple[str, ...]:
    """What the peers' completed collectives tell about a rank that wrote nothing."""
    newest = None
    for group, members in enumerate(view.members):
        if not set(members) & set(cause.ranks):
            continue
        done = [view.window(group, rank).completed for rank in members]
        if max(done, default=MISSING) > 0 and (newest is None or len(members) < len(view.members[newest[0]])):
            newest = (group, max(done))
    if newest is None:
        return ()
    return (f"it was alive at seq {newest[1]} of {group_text(view, newest[0])}, which completed",)


@rule("H105", "rank-stuck", needs=_NEEDS)
def rank_stuck(trace: Trace) -> Iterator[Finding | Effect]:
    """A rank with a dump never reached the collective that the others wait in, and waits in none itself.

    What it means: the rank's process lives, or lived when it wrote its dump, but it did not come to the next
    collective: it is stuck or busy outside of collectives, or has left the loop.

    Why it happens: a data loader that stopped, a lock, a checkpoint write that hangs, an exception that was caught,
    a loop with fewer iterations on this rank, a compilation or a host-device copy that does not end.

    What to do: look at what the rank does after the line of its last call (shown): take its Python stack with py-spy
    or faulthandler while the job still hangs, and read its standard error.

    What could fool it: the recorder does not see collectives inside CUDA graphs, sends and receives on gloo, nor
    other libraries' communication: the rank may wait in one of these.
    """

    def describe(view: JobView, cause: Cause) -> Finding:
        rows = _waiting_rows(view, cause)
        peers = sorted({int(view.rank[row]) for row in rows})
        waiting = call_text(view, cause.peer_row)
        site = site_text(view, cause.culprit_row) if cause.culprit_row != MISSING else ""
        last = call_text(view, cause.culprit_row) if cause.culprit_row != MISSING else ""
        is_one = len(cause.ranks) == 1
        where = f"after {last}" + (f" in {site}" if site else "") if last else "it made no call at all"
        return Finding(
            code="H105",
            rule="rank-stuck",
            severity="error",
            certainty=cause.certainty,
            title=f"{ranks_phrase(cause.ranks)} never reached {waiting} that {count_noun(len(peers), 'peer')} "
            f"{'waits' if len(peers) == 1 else 'wait'} in",
            ranks=cause.ranks,
            group=group_ref(view, cause.group),
            collective=collective_ref(view, cause.peer_row),
            location=location_of(view, cause.culprit_row),
            peer_location=location_of(view, cause.peer_row),
            evidence=Evidence(
                certain=(
                    f"{ranks_phrase(cause.ranks)} {'has' if is_one else 'have'} not made the call, and {'waits' if is_one else 'wait'} in no other",
                    f"last call: {where}" if last else where,
                ),
                likely=("it is stuck or busy in Python or on the device after that line, or has left the loop",),
                notes=(*_host_note(view, cause.ranks), *blocked_note(cause, len(peers))),
                comparison=None
                if view.is_p2p[cause.peer_row]
                else compare_sides(
                    view,
                    cause.group,
                    cause.seq,
                    [(side_label(peers), peers), (side_label(cause.ranks), list(cause.ranks))],
                ),
                stacks=(
                    *(stack_groups(view, [cause.culprit_row], "last call of the culprit") if last else ()),
                    *stack_groups(view, rows, "waiting"),
                ),
                waiting_ns=waiting_ns(view, cause),
                n_blocked=len(cause.blocked),
            ),
            help=f"find out what rank {cause.ranks[0]} does after that line: py-spy dump --pid of its process, its standard error",
        )

    yield from findings_of(trace, "H105", describe)


@rule("H107", "order-deadlock", needs=_NEEDS)
def order_deadlock(trace: Trace) -> Iterator[Finding | Effect]:
    """Ranks wait for each other in a cycle: they made calls of different groups in different order.

    What it means: rank A is in a call of one group that rank B has yet to make, and B is in a call of another group that
    A has yet to make. None of them can go on.

    Why it happens: groups used in different order on different ranks (a branch, a set or dict iterated in different
    order, two threads that issue collectives, a send before a receive on both sides), or one rank that left out
    a call and went on to the next group.

    What to do: issue the collectives of all groups in the same order on all ranks; for transfers let one side receive
    first or use batch_isend_irecv.

    What could fool it: where a synchronous rank shows a single unfinished call it cannot be seen whether it left the
    other call out or would make it later; both are this finding.
    """

    def describe(view: JobView, cause: Cause) -> Finding:
        assert cause.cycle is not None
        calls = cause.cycle.calls
        rows = {call.match: [view.first_waiting[rank] for rank in call.waiting] for call in calls}
        sides = tuple(
            Side(side_label(call.waiting), call.waiting, (group_text(view, call.group), call_text(view, rows[call.match][0]), _site_or_dash(view, rows[call.match][0]), ranks_phrase(tuple(call.held_up_by))))
            for call in calls[:4]
        )  # fmt: skip
        is_known = len(cause.ranks) < len(cause.cycle.ranks)
        mine, other = call_text(view, cause.culprit_row), call_text(view, cause.peer_row)
        theirs = group_text(view, int(view.group[cause.peer_row]))
        title = f"{ranks_phrase(cause.cycle.ranks)} wait for each other in {count_noun(len(calls), 'call')} of {count_noun(len({call.group for call in calls}), 'group')}"
        if is_known:
            title = f"{ranks_phrase(cause.ranks)} went to {mine} of {group_text(view, cause.group)} before {other} of {theirs}, in which the others wait"
        return Finding(
            code="H107",
            rule="order-deadlock",
            severity="error",
            certainty=cause.certainty,
            title=title,
            ranks=cause.ranks,
            group=group_ref(view, cause.group),
            collective=collective_ref(view, cause.culprit_row),
            location=location_of(view, cause.culprit_row),
            peer_location=location_of(view, cause.peer_row),
            evidence=Evidence(
                certain=("each of these calls is held up by a rank that waits in another of them",),
                likely=(f"{ranks_phrase(cause.ranks)} left the order that the other ranks, or its own earlier steps, keep",) if is_known else (),
                notes=blocked_note(cause, len(cause.cycle.ranks)),
                comparison=Comparison("", ("group", "waits in", "at", "for"), sides),
                stacks=stack_groups(view, [view.first_waiting[rank] for rank in cause.cycle.ranks], "waiting"),
                waiting_ns=waiting_ns(view, cause),
                n_blocked=len(cause.blocked),
            ),
            help="make these calls in the same order on all ranks",
        )  # fmt: skip

    yield from findings_of(trace, "H107", describe)


def _site_or_dash(view: JobView, row: int) -> str:
    return site_text(view, row) or "-"


@rule("H108", "p2p-unmatched", needs=_NEEDS)
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

    def describe(view: JobView, cause: Cause) -> Finding:
        assert cause.departure is not None
        shift = cause.departure.shift
        has_skipped = shift.kind == "skipped"
        wrong = cause.departure.expected.rows[0] if has_skipped else cause.departure.row
        op = view.calls.text("op")[wrong]
        peers = [rank for call in cause.calls for rank in call.waiting if rank not in cause.ranks]
        verb = f"left out a {_transfer_noun(op)}" if has_skipped else f"made a {_transfer_noun(op)} too many"
        title = f"{ranks_phrase(cause.ranks)} {verb}" + (
            f" in {site_text(view, wrong)}" if site_text(view, wrong) else ""
        )
        if peers:
            title += f"; {ranks_phrase(peers)} {'waits' if len(peers) == 1 else 'wait'} for it"
        rows = [view.first_waiting[rank] for rank in [*cause.ranks, *peers] if rank in view.first_waiting]
        basis = "ranks of the same role" if cause.departure.expected.basis == "siblings" else "its own earlier steps"
        return Finding(
            code="H108",
            rule="p2p-unmatched",
            severity="error",
            certainty=cause.certainty,
            title=title,
            ranks=cause.ranks,
            group=group_ref(view, cause.group),
            collective=collective_ref(view, cause.peer_row if cause.peer_row != MISSING else wrong),
            location=location_of(view, cause.culprit_row),
            peer_location=location_of(view, cause.peer_row),
            evidence=Evidence(
                certain=tuple(f"rank {rank} waits in {call_text(view, view.first_waiting[rank])}" for rank in peers if rank in view.first_waiting),
                likely=(f"compared with {basis}, the calls of rank {cause.ranks[0]} fit again when shifted by {shift.n_calls}",),
                notes=blocked_note(cause, len(peers)),
                stacks=(*stack_groups(view, [cause.culprit_row], "culprit"), *stack_groups(view, rows, "waiting")),
                waiting_ns=waiting_ns(view, cause),
                n_blocked=len(cause.blocked),
            ),
            help="compare the schedule of sends and receives of the two ranks at this point",
        )  # fmt: skip

    yield from findings_of(trace, "H108", describe)


def _transfer_noun(op: str) -> str:
    return {"send": "send", "recv": "receive"}.get(op, "batch of sends and receives")


@rule("H109", "collective-stalled", needs=_NEEDS)
def collective_stalled(trace: Trace) -> Iterator[Finding | Effect]:
    """All members have joined a collective, their calls fit, and it does not end.

    What it means: the program is in order: the fault is on the device or in the network, or in a kernel that runs
    before the collective on the same stream.

    Why it happens: a broken link or adapter, a hung GPU, a firewall or routing change, a mismatch that the recorder does
    not see (reduce operation, root rank, split sizes), a kernel on the stream that never ends.

    What to do: check the hosts of the members (dmesg for XID errors, link counters, NCCL_DEBUG=INFO, ncclras); record
    with TORCH_NCCL_ENABLE_TIMING=1 to see which rank's kernel has not even started.

    What could fool it: reduce operation, root and split sizes are not recorded: when these differ between ranks it
    looks like this too.
    """

    def describe(view: JobView, cause: Cause) -> Finding:
        members = view.members[cause.group] if not view.is_p2p[cause.culprit_row] else cause.ranks
        is_partial = len(cause.ranks) < len(members)
        call = call_text(view, cause.culprit_row)
        title = f"all {len(members)} ranks of {group_text(view, cause.group)} joined {call}, and it does not end"
        if is_partial:
            title += f": on {ranks_phrase(cause.ranks)} it has not started"
        rows = view.rows_of_match(cause.match).tolist()
        return Finding(
            code="H109",
            rule="collective-stalled",
            severity="error",
            certainty=cause.certainty,
            title=title,
            ranks=cause.ranks,
            group=group_ref(view, cause.group),
            collective=collective_ref(view, cause.culprit_row),
            location=location_of(view, cause.culprit_row),
            peer_location=None,
            evidence=Evidence(
                certain=("every member made the call with the same operation, sizes and type",),
                likely=(
                    f"the stream of {ranks_phrase(cause.ranks)} is blocked by an earlier kernel"
                    if is_partial
                    else "a device or the network between these ranks is at fault, not the program",
                ),
                notes=blocked_note(cause, len(members)),
                stacks=stack_groups(view, rows, "waiting"),
                waiting_ns=waiting_ns(view, cause),
                n_blocked=len(cause.blocked),
                facts={"members": format_ranks(list(members))},
            ),
            help="check devices and links of these ranks' hosts; TORCH_NCCL_ENABLE_TIMING=1 shows next time who has not started",
        )

    yield from findings_of(trace, "H109", describe)
