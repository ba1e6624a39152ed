"""How the job ended decides about what its waits look like: one cause, the rest are its effects."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from rankscope.model.finding import Finding

_ENDED, _AT_INIT, _EXIT_HANG, _LEFT, _FAILED, _LATE = "H116", "H117", "H118", "H119", "H120", "H121"
# What ranks that wait, or are gone, look like when another rank has ended or never came.
_WAITS = ("H101", "H105", "H109", "H112", "H113", "H115", "H118", "H119", "H121")
# What an exception of a rank says that lost a peer, where the log alone cannot know it.
_VICTIM = re.compile(r"/gloo/.*(closed by peer|reset by peer|Broken pipe|[Tt]imed out)")
_KILLED = "killed or it crashed"  # as the collector reports a rank that did not close its files


def settle(findings: Sequence[Finding]) -> tuple[list[Finding], list[Finding]]:
    """The findings that remain, and those that follow from how the job ended."""
    for code in (_ENDED, _AT_INIT, _LATE, _LEFT, _EXIT_HANG):
        cause = next((each for each in findings if each.code == code and each.severity != "info"), None)
        if cause is not None:
            return _explained(findings, cause)
    errors = [each for each in findings if each.severity == "error" and each.code != _FAILED]
    if any(each.code[0] in "HX" for each in errors):
        return [each for each in findings if each.code != _FAILED], []
    return list(findings), []


def _explained(findings: Sequence[Finding], cause: Finding) -> tuple[list[Finding], list[Finding]]:
    effects = [each for each in findings if each is not cause and _follows(each)]
    kept = [each for each in findings if not any(each is effect for effect in effects)]
    calls = next((each for each in effects if each.code in ("H101", "H105")), None)
    if calls is not None and calls.group is not None:
        cause_ = msgspec.structs.replace(
            cause,
            group=calls.group,
            collective=calls.collective,
            peer_location=cause.peer_location or calls.peer_location,
        )
        kept = [cause_ if each is cause else each for each in kept]
    return [each for each in kept if each.code != _FAILED], effects


def _follows(finding: Finding) -> bool:
    is_victim = finding.code == "H130" and _VICTIM.search(finding.title) is not None
    return finding.code in _WAITS or is_victim or (finding.code == "D909" and _KILLED in finding.title)
