"""One problem is one finding: what shows the same delay again becomes an effect of the finding that explains it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rankscope.model.finding import Finding

_COMPILING = ("X613", "X601")  # why a rank is late: it compiles
_LATE = (*(f"X6{number:02}" for number in range(2, 14)), "X601")  # all causes, those with most evidence first
# What the same delay looks like in one source alone.
_SIGNS = ("S201", "S202", "S203", "P303", "P304", "X601", "C402", "C413")
_COMPILE_SIGNS = (*_SIGNS, "C401", "C410", "C411")
_ABOUT_TIME = "SPL"  # families that say nothing of use about a job that hung or failed


def merge(findings: Sequence[Finding]) -> tuple[list[Finding], list[Finding]]:
    """The findings that remain, and those that follow from them."""
    if any(finding.severity == "error" and finding.code[0] == "H" for finding in findings):
        slow = [finding for finding in findings if finding.code[0] in _ABOUT_TIME]
        return [finding for finding in findings if finding not in slow], slow
    causes = [finding for finding in findings if finding.code in _LATE and finding.severity != "info"]
    cause = min(causes, key=lambda finding: _LATE.index(finding.code), default=None)
    if cause is None:
        return list(findings), []
    same = [finding for finding in findings if finding is not cause and _is_sign(finding, cause)]
    if not same:
        return list(findings), []
    codes = ", ".join(sorted({finding.code for finding in same}))
    note = f"{codes} {'show' if len(same) > 1 else 'shows'} the same delay: not listed (--all)"
    evidence = msgspec.structs.replace(cause.evidence, notes=(*cause.evidence.notes, note))
    merged = msgspec.structs.replace(cause, evidence=evidence)
    return [merged if finding is cause else finding for finding in findings if finding not in same], same


def _is_sign(finding: Finding, cause: Finding) -> bool:
    signs = _COMPILE_SIGNS if cause.code in _COMPILING else _SIGNS
    return finding.code in signs and bool(finding.ranks) and set(finding.ranks) <= set(cause.ranks)
