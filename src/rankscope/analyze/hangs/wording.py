"""What all findings about a hang have in common: title, evidence and notes of a cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rankscope.analyze.hangs.cause import Cause
from rankscope.analyze.hangs.evidence import (
    collective_ref,
    compare_sides,
    group_ref,
    location_of,
    side_label,
)
from rankscope.analyze.hangs.standing import with_standing
from rankscope.analyze.hangs.verdict import causes_of
from rankscope.analyze.hangs.view import JobView, job_view
from rankscope.analyze.registry import Effect
from rankscope.model.finding import Comparison, Evidence, Finding, count_noun
from rankscope.model.tables import MISSING, Trace

Describe = Callable[[JobView, Cause], Finding]
_SHORTEST_WAIT_NS = 1_000_000_000


def findings_of(trace: Trace, rule: str, describe: Describe) -> Iterator[Finding | Effect]:
    """One finding for each cause that falls under the rule of that name, made by `describe`."""
    view = job_view(trace)
    for cause in causes_of(trace):
        if cause.rule == rule:
            finding = with_standing(view, cause, describe(view, cause))
            yield Effect(finding) if cause.is_effect else finding


def make_finding(view: JobView, cause: Cause, title: str, evidence: Evidence, help_text: str) -> Finding:
    """The finding of a cause. It shows the call of the peers, as they did what the program wanted."""
    shown = cause.peer_row if cause.peer_row != MISSING else cause.culprit_row
    return Finding(
        severity="error",
        certainty=cause.certainty,
        title=title,
        ranks=cause.ranks,
        group=group_ref(view, cause.group),
        collective=collective_ref(view, shown) if shown != MISSING else None,
        location=location_of(view, cause.culprit_row),
        peer_location=location_of(view, cause.peer_row),
        evidence=evidence,
        help=help_text,
    )


def make_evidence(view: JobView, cause: Cause, n_named: int, **parts: Any) -> Evidence:
    """The evidence with what every cause has: how long ranks have waited, and how many more ranks are blocked."""
    notes = (*parts.pop("notes", ()), *_blocked_note(cause, n_named), *_blind_note(view, cause))
    return Evidence(notes=notes, waiting_ns=waited_ns(view, cause.match), n_blocked=len(cause.blocked), **parts)


def _blocked_note(cause: Cause, n_named: int) -> tuple[str, ...]:
    n_others = len(cause.blocked) - n_named
    if n_others <= 0:
        return ()
    return (f"{count_noun(n_others, 'more rank')} {'is' if n_others == 1 else 'are'} blocked by this",)


def _blind_note(view: JobView, cause: Cause) -> tuple[str, ...]:
    if cause.group not in view.blind_groups:
        return ()
    return (f"{blind_backend(view, cause.group)}: the verdict is based on which ranks made which calls",)


def blind_backend(view: JobView, group: int) -> str:
    """`backend ucc does not record whether calls complete`, for one of the view's blind groups."""
    name = view.blind_groups[group]
    return f"{f'backend {name}' if name else 'this backend'} does not record whether calls complete"


def waited_ns(view: JobView, match: int) -> int | None:
    """How long ranks have waited in the call, as far as recorded: dumps do not say when they were written."""
    if match == MISSING:
        return None
    rows = [row for row in view.rows_of_match(match).tolist() if not view.is_done[row]]
    if not rows:
        return None
    if any(view.calls.text("status")[row] == "aborted" for row in rows):
        return int(view.calls.array("timeout_ns")[rows[0]])
    waited = view.last_activity_ns - min(int(view.created[row]) for row in rows)
    return waited if waited >= _SHORTEST_WAIT_NS else None


def normal_rows(view: JobView, cause: Cause) -> list[int]:
    """The calls at this position of the members that are not to blame."""
    rows = view.rows_of_match(cause.match).tolist() if cause.match != MISSING else []
    return [row for row in rows if int(view.rank[row]) not in cause.ranks]


def compare_with(view: JobView, cause: Cause, peers: Sequence[int], odd: Sequence[int] = ()) -> Comparison | None:
    """The group's last calls, peers beside culprits; None for transfers, which have no common sequence."""
    if not peers or view.members[cause.group] == () or cause.seq < 1:
        return None
    culprits = list(odd or cause.ranks)
    sides = [(side_label(peers), peers), (side_label(culprits), culprits)]
    # If operation and sizes agree, only the lines show how the two sides differ.
    return compare_sides(view, cause.group, cause.seq, sides, with_lines=cause.rule == "call-skipped")


def peers_phrase(peers: Sequence[int], whose: str = "") -> str:
    """`its 63 peers`; `rank 0` for a single peer."""
    return f"rank {peers[0]}" if len(peers) == 1 else f"{whose} {count_noun(len(peers), 'peer')}".strip()


def are_waiting(number: int) -> str:
    return "is waiting" if number == 1 else "are waiting"


def has(number: int) -> str:
    return "has" if number == 1 else "have"
