"""Findings from a job's output beside those of other sources: one problem is one finding, with what to do next."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rankscope.model.finding import Action, Finding

_FROM_LOGS = tuple(f"H13{number}" for number in range(10))
# The program does it again.
_FIX_FIRST = ("H102", "H103", "H104", "H106", "H107", "H108", "H113", "H114", "H118", "H119")
# What a rank did instead, or what broke, is not known.
_COLLECT_MORE = ("H101", "H105", "H109", "H110", "H111", "H112", "H115", "H116", "H117", "H120")


def join_logs(findings: Sequence[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Dumps and stacks show where each rank is, so a log's finding about the same ranks becomes a note of theirs.

    Gives the findings, and those that are effects now.
    """
    others = [finding for finding in findings if _is_hang(finding) and finding.code not in _FROM_LOGS]
    joined = {id(other): other for other in others}
    effects: list[Finding] = []
    for each in findings:
        if each.code not in _FROM_LOGS or not others:
            continue
        same = next((other for other in others if set(other.ranks) & set(each.ranks) or _explains(other, each)), None)
        if same is None and each.ranks and each.certainty == "certain":
            continue  # another problem, or the cause that the dumps do not show
        effects.append(each)
        if same is not None:
            joined[id(same)] = _with_log(joined[id(same)], each)
    kept = [joined.get(id(finding), finding) for finding in findings if not any(finding is each for each in effects)]
    return [_with_action(finding) for finding in kept], effects


def _is_hang(finding: Finding) -> bool:
    return finding.code.startswith("H") and finding.severity == "error"


def _explains(stuck: Finding, logged: Finding) -> bool:
    """A rank that waited in the call which another never reached fails afterwards, whatever it says then."""
    waited = set(stuck.group.ranks) - set(stuck.ranks) if stuck.group else set()
    return stuck.code == "H105" and logged.code == "H130" and bool(logged.ranks) and set(logged.ranks) <= waited


def _with_log(finding: Finding, logged: Finding) -> Finding:
    said = () if logged.title in finding.title else (f"the log says: {logged.title}",)
    notes = (*finding.evidence.notes, *said)
    evidence = msgspec.structs.replace(finding.evidence, notes=notes)
    return msgspec.structs.replace(
        finding,
        evidence=evidence,
        location=finding.location or logged.location,
        action=finding.action if _explains(finding, logged) else logged.action,
        action_hosts=logged.action_hosts,
    )


def _with_action(finding: Finding) -> Finding:
    if finding.action or not _is_hang(finding):
        return finding
    is_own = finding.code in _FIX_FIRST or (finding.code == "H116" and finding.location is not None)  # it raised
    action: Action = "fix-first" if is_own else "collect-more" if finding.code in _COLLECT_MORE else ""
    return msgspec.structs.replace(finding, action=action)
