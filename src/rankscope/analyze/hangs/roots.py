"""Which causes of a hang are root causes, and which only follow from others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rankscope.analyze.hangs.cause import Cause
from rankscope.analyze.hangs.dump_files import ranks_stale
from rankscope.analyze.hangs.view import JobView
from rankscope.model.tables import MISSING

# A call that all have joined may just be running when the dumps are taken; after this long it is not.
_STALLED_NS = 5_000_000_000


def roots_first(view: JobView, causes: Sequence[Cause]) -> list[Cause]:
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
