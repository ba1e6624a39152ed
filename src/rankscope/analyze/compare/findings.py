"""Findings that are new, gone or changed. The same finding: the same rule, about the same code and kind of group, for
the same cause.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import PurePath

from rankscope.analyze.compare.noise import SAME_JOB_UNMEASURED
from rankscope.analyze.compare.pairing import pair_up
from rankscope.model.changes import FindingChange, FindingKind
from rankscope.model.finding import SEVERITIES, Finding, Report

SAME_SHARE = 1.0  # percent of the step: costs that differ by less are alike
_ORDER: tuple[FindingKind, ...] = ("new", "unchecked", "changed", "gone")


def finding_changes(old: Report, new: Report) -> list[FindingChange]:
    pairs = pair_findings(old.findings, new.findings)
    changes = [change for ours, theirs in pairs if (change := _change(ours, theirs, old, new)) is not None]
    return sorted(changes, key=lambda change: (_ORDER.index(change.kind), SEVERITIES.index(change.severity)))


def pair_findings(old: Sequence[Finding], new: Sequence[Finding]) -> Iterator[tuple[Finding | None, Finding | None]]:
    return pair_up(old, new, _LIKENESSES, _distance)


def _group(finding: Finding) -> str:
    return finding.group.desc or finding.group.name if finding.group else ""


def _basename(finding: Finding) -> tuple[str, str]:
    file, function = _place(finding)
    return PurePath(file).name, function


def _cause(finding: Finding) -> str:
    return str(finding.evidence.facts.get("cause", ""))


def _place(finding: Finding) -> tuple[str, str]:
    return (finding.location.file, finding.location.function) if finding.location else ("", "")


_LIKENESSES: Sequence[Callable[[Finding], Hashable]] = (
    lambda finding: (finding.rule, _cause(finding), finding.ranks, *_place(finding), _group(finding)),
    lambda finding: (finding.rule, _cause(finding), *_place(finding), _group(finding)),
    lambda finding: (finding.rule, _cause(finding), _basename(finding), _group(finding)),
)


def _distance(ours: Finding, theirs: Finding) -> tuple[int, int, str, str]:
    """The same lines first, then the same ranks."""
    lines = [finding.location.line if finding.location else 0 for finding in (ours, theirs)]
    return abs(lines[0] - lines[1]), len(set(ours.ranks) ^ set(theirs.ranks)), ours.title, theirs.title


def _change(ours: Finding | None, theirs: Finding | None, old: Report, new: Report) -> FindingChange | None:
    shown = theirs or ours
    if shown is None:
        return None
    kind: FindingKind = "changed" if ours and theirs else "new" if theirs else "gone"
    if kind == "changed" and ours and theirs and _is_alike(ours, theirs):
        return None
    why = "" if kind == "changed" else _why_unchecked(shown.rule, old if theirs else new)
    return FindingChange(
        kind="unchecked" if why else kind,
        is_in_new=theirs is not None,
        code=shown.code,
        rule=shown.rule,
        severity=shown.severity,
        old_severity=ours.severity if ours else None,
        title=shown.title,
        old_title=ours.title if ours else "",
        group=_group(shown),
        location=theirs.location if theirs else None,
        old_location=ours.location if ours else None,
        old_ranks=ours.ranks if ours else (),
        new_ranks=theirs.ranks if theirs else (),
        old_cost_ns=ours.evidence.cost_ns if ours else None,
        new_cost_ns=theirs.evidence.cost_ns if theirs else None,
        old_cost_pct=ours.evidence.cost_pct if ours else None,
        new_cost_pct=theirs.evidence.cost_pct if theirs else None,
        why=why,
    )


def _is_alike(ours: Finding, theirs: Finding) -> bool:
    """True when severity, culprits and cost are the same; the title repeats numbers that always vary a little."""
    if (ours.severity, ours.ranks) != (theirs.severity, theirs.ranks):
        return False
    costs = ours.evidence, theirs.evidence
    if costs[0].cost_pct is not None and costs[1].cost_pct is not None:
        return abs(costs[0].cost_pct - costs[1].cost_pct) <= SAME_SHARE
    before, after = (cost.cost_ns or 0 for cost in costs)
    return abs(after - before) <= SAME_JOB_UNMEASURED * max(before, after)


def _why_unchecked(rule: str, other: Report) -> str:
    return next((check.why for check in other.checks if check.rule == rule and check.status == "skipped"), "")
