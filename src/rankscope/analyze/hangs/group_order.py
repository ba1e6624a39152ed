"""H114: groups that were made in another order on some ranks."""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.analyze.hangs.cause import Cause
from rankscope.analyze.hangs.evidence import stack_groups
from rankscope.analyze.hangs.view import JobView
from rankscope.analyze.hangs.wording import NEEDS, findings_of, make_evidence, make_finding
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Finding, ranks_phrase
from rankscope.model.tables import MISSING, Trace


@rule("H114", "group-order", needs=(*NEEDS, "group_config"))
def group_order(trace: Trace) -> Iterator[Finding | Effect]:
    """Ranks made their process groups in different order, so the same number is another group on each side.

    What it means: torch numbers groups in the order in which a rank calls new_group. Where one rank makes them in
    another order, it meets its peers of one group in the collectives of another.

    Why it happens: new_group in a loop over a set or a dict whose order differs, or behind a condition that holds on
    some ranks only. Every rank has to make every group, in the same order, also those that it is not a member of.

    What to do: make the groups in the same order on all ranks; sort what you iterate over.

    What could fool it: descriptions that are set differently on each rank on purpose.
    """
    yield from findings_of(trace, "H114", _describe_order)


def _describe_order(view: JobView, cause: Cause) -> Finding:
    order = cause.order
    assert order is not None
    odd, usual = ranks_phrase(order.ranks), ranks_phrase(order.usual_ranks)
    evidence = make_evidence(
        view,
        cause,
        len(cause.blocked),
        certain=(f'group {order.name} is "{order.meant}" on {odd} and "{order.usual}" on {usual}',),
        likely=(f"{odd} called new_group in another order than the others",),
        stacks=stack_groups(view, [cause.culprit_row], "culprit") if cause.culprit_row != MISSING else (),
        facts={"group_name": order.name, "meant": order.meant, "usual": order.usual},
    )
    meaning = f'group {order.name} is "{order.meant}" there, not "{order.usual}"'
    title = f"{odd} made the process groups in another order: {meaning}"
    return make_finding(view, cause, title, evidence, "call new_group in the same order on all ranks")
