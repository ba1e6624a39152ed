"""H114: groups that some ranks created in a different order."""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.analyze.hangs.cause import Cause
from rankscope.analyze.hangs.evidence import stack_groups
from rankscope.analyze.hangs.view import JobView
from rankscope.analyze.hangs.wording import findings_of, make_evidence, make_finding
from rankscope.analyze.registry import Effect, rule
from rankscope.model.finding import Finding, ranks_phrase
from rankscope.model.tables import MISSING, Trace


@rule("H114", "group-order", needs=("collectives", "groups", "group_config"))
def group_order(trace: Trace) -> Iterator[Finding | Effect]:
    """Ranks created their process groups in different orders, so the same number means different groups.

    What it means: torch numbers groups in the order in which a rank calls new_group. If one rank creates them in a
    different order, its collectives of one group run into its peers' collectives of another group.

    Why it happens: new_group in a loop over a set or dict whose order differs, or under a condition that only some
    ranks meet. Every rank must create every group in the same order, including groups that it is not a member of.

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
