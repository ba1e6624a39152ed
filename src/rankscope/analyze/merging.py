"""One problem is one finding: what shows the same delay again becomes an effect of the finding that explains it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rankscope.model.finding import Finding

_COMPILING = ("X613", "X601")  # why a rank is late: it compiles
_MACHINE = "X608"  # no rank is at fault
_ABSENT = "S205"  # the late rank has no trace here
# All causes, those with most evidence first.
_LATE = (*(f"X6{number:02}" for number in (*range(2, 8), *range(9, 18))), "X601", _MACHINE, _ABSENT)
# What the same delay looks like in one source alone.
_SIGNS = ("S201", "S202", "S203", "P303", "P304", "P322", "X601", "C402", "C413", "H105")
_COMPILE_SIGNS = (*_SIGNS, "C401", "C409", "C410", "C411")
_ABSENT_SIGNS = ("P302", "D907")
_MACHINE_SIGNS = ("S201", "S202", "S203")
_MANY = 20  # late calls
_ABOUT_TIME = "SPL"  # families that say nothing of use about a job that hung or failed


def merge(findings: Sequence[Finding]) -> tuple[list[Finding], list[Finding]]:
    """The findings that remain, and those that follow from them. Each cause takes the signs of its own ranks."""
    if any(finding.severity == "error" and finding.code[0] in "HX" for finding in findings):
        slow = [finding for finding in findings if finding.code[0] in _ABOUT_TIME and finding.severity != "error"]
        return [finding for finding in findings if finding not in slow], slow
    causes = sorted((one for one in findings if one.code in _LATE), key=lambda one: _LATE.index(one.code))
    left, effects = list(findings), []
    for cause in causes:
        if cause not in left:
            continue
        same = [finding for finding in left if finding is not cause and _is_sign(finding, cause)]
        if same:
            effects += same
            left = [_with_note(cause, same) if one is cause else one for one in left if one not in same]
    return left, effects


def _with_note(cause: Finding, same: Sequence[Finding]) -> Finding:
    codes = ", ".join(sorted({finding.code for finding in same}))
    note = f"{codes} {'show' if len(same) > 1 else 'shows'} the same delay: not listed (--all)"
    return msgspec.structs.replace(
        cause, evidence=msgspec.structs.replace(cause.evidence, notes=(*cause.evidence.notes, note))
    )


def _saw_all(cause: Finding) -> bool:
    """It explains the delays of the whole job: what a few profiled steps show beside it is chance."""
    n_late, n_calls = (cause.evidence.facts.get(name, 0) for name in ("n_late", "n_calls"))
    return bool(n_late >= _MANY and 2 * n_late >= n_calls)


def _is_sign(finding: Finding, cause: Finding) -> bool:
    """A note absorbs no warning, except that of a crowded machine: there a rank that is late is late by chance."""
    if cause.code == _MACHINE:
        unlucky = cause.evidence.facts.get("late_ranks", ())
        return finding.code in _MACHINE_SIGNS and bool(finding.ranks) and set(finding.ranks) <= set(unlucky)
    if cause.code == _ABSENT:
        return finding.code in _ABSENT_SIGNS
    if cause.severity == "info" and finding.severity != "info":
        return False
    if finding.code == "S202" and finding.certainty != "certain" and _saw_all(cause):
        return True
    signs = _COMPILE_SIGNS if cause.code in _COMPILING else _SIGNS
    if finding.code == "P303" and cause.code == "X603":  # its peers wait for it in their own loaders' place
        return set(cause.ranks) <= set(finding.ranks)
    return finding.code in signs and bool(finding.ranks) and set(finding.ranks) <= set(cause.ranks)
