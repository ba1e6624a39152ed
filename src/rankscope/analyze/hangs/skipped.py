"""H106, H114: ranks out of step: a call that was skipped or made once more, groups created in a different order."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from rankscope.analyze.hangs.cause import Cause
from rankscope.analyze.hangs.evidence import call_text, group_ref, group_text, location_of, site_text, stack_groups
from rankscope.analyze.hangs.programs import Departure, Reference
from rankscope.analyze.hangs.shifts import Shift
from rankscope.analyze.hangs.view import JobView
from rankscope.analyze.hangs.wording import (
    Sides,
    compare_with,
    findings_of,
    make_evidence,
    make_finding,
    normal_rows,
    ranks_of,
    sides_of,
)
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Finding, count_noun, ranks_phrase
from rankscope.model.tables import MISSING, Trace

_HELP = "check the condition around that call: it must be true on all ranks or on none"


@rule("H106", "call-skipped", needs=("collectives", "groups"))
def call_skipped(trace: Trace) -> Iterator[Finding | Effect]:
    """A rank skipped a call that its peers made, or made an extra one.

    What it means: after that call, everything the rank does in the group is out of step with its peers. As long as
    operation and sizes happen to match, the job keeps running and combines the wrong values. The job hangs later, where
    they no longer match or where the rank runs out of calls.

    Why it happens: a `continue` or an early `return` on one rank, a condition on local data around the call, a retry.

    What to do: check the condition around the call in the title, not the line where the job hangs.

    What could fool it: the verdict is based on the lines of user code that made the calls. Without stacks, or if all
    calls come from one line, a skipped call looks like a late one.
    """
    yield from findings_of(trace, "call-skipped", _describe)


def _describe(view: JobView, cause: Cause) -> Finding:
    shift, reference, wrong_row = _shift_of(cause)
    hang_row = _hang_row(view, cause)
    sides = sides_of(view, cause)
    peers = sides.peers if cause.divergence is not None else normal_rows(view, cause)
    peer_ranks = ranks_of(view, peers)
    hangs = () if hang_row == MISSING else (f"the job hangs in {_full_call(view, hang_row)}",)
    evidence = make_evidence(
        view,
        cause,
        len(peer_ranks),
        certain=_position(view, cause, sides),
        likely=(_fits_again(view, cause, shift, reference), *hangs),
        comparison=compare_with(view, cause, peer_ranks),
        stacks=(*stack_groups(view, [cause.culprit_row], "culprit"), *stack_groups(view, peers, "peers")),
        facts=_facts(view, shift, wrong_row, hang_row),
    )
    finding = make_finding(view, cause, _title(view, cause, shift, wrong_row), evidence, _HELP)
    if shift.kind != "skipped":
        return finding
    # The line that was skipped, as the peers made it, and the one with which the culprit continued.
    return structs.replace(
        finding,
        location=location_of(view, _departure_of(cause).row),
        peer_location=location_of(view, wrong_row),
    )


def _position(view: JobView, cause: Cause, sides: Sides) -> tuple[str, ...]:
    """How the call differs from the peers' at this position: another line, another caller, or another call."""
    divergence = cause.divergence
    if divergence is None or divergence.basis == "tie" or not sides.peers:
        return ()
    its = "its" if len(sides.culprits) == 1 else "their"
    n_all = len(sides.peers) + len(sides.others)
    whose = f"{its} peers" if not sides.others else f"{len(sides.peers)} of {its} {n_all} peers"
    call = f"the call of {ranks_phrase(cause.ranks)}"
    where = f"at seq {cause.seq} of {group_text(view, cause.group)}"
    for codes, difference in (
        (view.calls.array("site_id"), f"came from a different line than on {whose}"),
        (view.signatures.point, f"came from a different caller than on {whose}"),
    ):
        culprits, theirs = ({int(codes[row]) for row in rows} for rows in (sides.culprits, sides.peers))
        # Without a stack nothing is known of the line.
        if culprits.isdisjoint(theirs) and MISSING not in culprits | theirs:
            return (f"{where} {call} {difference}",)
    whole = view.signatures.whole
    culprits, theirs = ({int(whole[row]) for row in rows} for rows in (sides.culprits, sides.peers))
    return (f"{where} {call} does not match the call of {whose}",) if culprits.isdisjoint(theirs) else ()


def _title(view: JobView, cause: Cause, shift: Shift, wrong_row: int) -> str:
    site = f" in {site_text(view, wrong_row)}" if site_text(view, wrong_row) else ""
    more = f" and {shift.n_calls - 1} more" if shift.n_calls > 1 else ""
    call = f"{call_text(view, wrong_row)}{more}{site}"
    is_skipped = shift.kind == "skipped"
    if cause.divergence is not None and cause.divergence.basis == "tie":
        odd, peer = int(view.rank[cause.culprit_row]), int(view.rank[cause.peer_row])
        other = f"rank {peer} made an extra one" if is_skipped else f"rank {peer} skipped it"
        verb = f"skipped {call}" if is_skipped else f"made {_too_many(shift)}, {call}"
        return f"rank {odd} {verb}, or {other}"
    verb = "skipped" if is_skipped else f"made {_too_many(shift)}:"
    return f"{ranks_phrase(cause.ranks)} {verb} {call}"


def _too_many(shift: Shift) -> str:
    return "an extra call" if shift.n_calls == 1 else f"{shift.n_calls} extra calls"


def _fits_again(view: JobView, cause: Cause, shift: Shift, reference: Reference | None) -> str:
    is_alone = len(cause.ranks) == 1
    it, its = ("it", "its") if is_alone else (f"rank {int(view.rank[cause.culprit_row])}", "the")
    if not shift.n_agreeing:
        return f"{it} made the same call twice in a row where {its} peers continued"
    calls = count_noun(shift.n_agreeing, "call") + ("" if is_alone else f" of {it}")
    fit = "matches" if shift.n_agreeing == 1 else "match"
    theirs = f"{its} peers' calls"
    if reference is not None and reference.basis == "history":
        theirs = "those of earlier steps"
    elif reference is not None and int(view.rank[reference.rows[0]]) not in view.members[cause.group]:
        theirs = f"those of rank {int(view.rank[reference.rows[0]])}"
    return f"{calls} from there on {fit} {theirs} when shifted by {shift.n_calls}"


def _full_call(view: JobView, row: int) -> str:
    where = f"{group_text(view, int(view.group[row]))}, seq {int(view.seq[row])}"
    site = site_text(view, row)
    return f"{call_text(view, row)} of {where}" + (f", in {site}" if site else "")


def _shift_of(cause: Cause) -> tuple[Shift, Reference | None, int]:
    """How the rank is shifted, and the call that was skipped or extra."""
    departure = _departure_of(cause)
    shift, reference = departure.shift, departure.expected
    if shift.kind == "repeated" or reference is None:
        return shift, reference, departure.row
    return shift, reference, reference.rows[0]


def _departure_of(cause: Cause) -> Departure:
    departure = cause.departure or (cause.divergence.departure if cause.divergence is not None else None)
    assert departure is not None
    return departure


def _hang_row(view: JobView, cause: Cause) -> int:
    """The call that members of the group are waiting in now, else the one that the culprits are waiting in."""
    members = [rank for rank in view.members[cause.group] if rank in view.first_waiting]
    in_group = [view.first_waiting[rank] for rank in members if view.group[view.first_waiting[rank]] == cause.group]
    culprits = [view.first_waiting[rank] for rank in cause.ranks if rank in view.first_waiting]
    return next(iter([*in_group, *culprits]), MISSING)


def _facts(view: JobView, shift: Shift, wrong_row: int, hang_row: int) -> dict[str, object]:
    site = location_of(view, wrong_row)
    facts: dict[str, object] = {
        "what": shift.kind,
        "n_calls": shift.n_calls,
        "n_agreeing": shift.n_agreeing,
        "call": {
            "op": view.calls.text("op")[wrong_row],
            "file": site.file if site else "",
            "line": site.line if site else 0,
        },
    }
    if hang_row != MISSING:
        facts["hangs_at"] = {"group": group_ref(view, int(view.group[hang_row])).name, "seq": int(view.seq[hang_row])}
    return facts


@rule("H114", "group-order", needs=("collectives", "groups", "group_config"))
def group_order(trace: Trace) -> Iterator[Finding | Effect]:
    """Ranks created their process groups in different orders, so the same number means different groups.

    What it means: torch numbers groups in the order in which a rank calls new_group. If one rank creates them in a
    different order, its collectives of one group run into its peers' collectives of another group.

    Why it happens: calling new_group in a loop over a set or dict whose order differs, or under a condition that only
    some ranks meet. Every rank must create every group in the same order, including groups that it is not a member of.

    What to do: create the groups in the same order on all ranks; sort what you iterate over.

    What could fool it: group descriptions that differ between ranks on purpose.
    """
    yield from findings_of(trace, "group-order", _describe_order)


def _describe_order(view: JobView, cause: Cause) -> Finding:
    order = cause.order
    assert order is not None
    odd, usual = ranks_phrase(order.ranks), ranks_phrase(order.usual_ranks)
    if order.usual_name:
        seen = f'"{order.meant}" is group {order.name} on {odd} and group {order.usual_name} on {usual}'
        meaning = f'"{order.meant}" is group {order.name} there, not group {order.usual_name}'
    else:
        seen = f'group {order.name} is "{order.meant}" on {odd} and "{order.usual}" on {usual}'
        meaning = f'group {order.name} is "{order.meant}" there, not "{order.usual}"'
    evidence = make_evidence(
        view,
        cause,
        len(cause.blocked),
        certain=(seen,),
        likely=(f"{odd} called new_group in a different order than the others",),
        stacks=stack_groups(view, [cause.culprit_row], "culprit") if cause.culprit_row != MISSING else (),
        facts={
            "group_name": order.name,
            "meant": order.meant,
            "usual": order.usual,
            "usual_group_name": order.usual_name or order.name,
        },
    )
    title = f"{odd} created the process groups in a different order: {meaning}"
    return make_finding(view, cause, title, evidence, "call new_group in the same order on all ranks")
