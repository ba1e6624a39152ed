"""Jobs that their launcher started again: each attempt gets its verdict, the oldest cause first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from rankscope.analyze.manifests import ended_well
from rankscope.model.finding import AttemptRef, Finding, Report
from rankscope.model.tables import Trace

_ATTEMPT = re.compile(r"(?:^|/)attempt_(\d{1,4})/?$")
_OF_OTHER_RUNS = "D910"
_MAX_ATTEMPTS = 8


class Judged(NamedTuple):
    """One attempt after the first."""

    number: int
    path: str
    trace: Trace
    report: Report


def later_attempts(trace: Trace) -> list[tuple[int, str]]:
    """Number and folder of the attempts that lie beside the one that was read, oldest first."""
    files = trace.table("files")
    others = [row["path"] for row in files.rows() if row["status"] == "other-run"]
    numbered = [(int(match[1]), path) for path in others if (match := _ATTEMPT.search(path))]
    return sorted(numbered)[:_MAX_ATTEMPTS] if trace.has("manifests") else []


def join_attempts(trace: Trace, first: Report, later: Sequence[Judged]) -> Report:
    """The report on the first attempt, with what went wrong in the later ones."""
    has_recovered = ended_well(later[-1].trace)
    reports = [(0, ".", first), *((each.number, each.path, each.report) for each in later)]
    refs, findings = [], []
    for number, path, report in reports:
        listed = [each for each in report.findings if each.code != _OF_OTHER_RUNS]
        if number:
            listed = [each for each in listed if each.severity == "error"]
        title = next((each.title for each in listed if each.severity == "error"), "")
        refs.append(AttemptRef(number, path, report.capture.ranks, title))
        findings += [_of_attempt(each, number, has_recovered=has_recovered) for each in listed]
    kept = [each for position, each in enumerate(findings) if not _is_repeated(each, findings[:position])]
    effects = [effect for _, _, report in reports for effect in report.effects]
    capture = msgspec.structs.replace(first.capture, attempts=tuple(refs))
    return msgspec.structs.replace(first, capture=capture, findings=tuple(kept), effects=tuple(effects))


def _of_attempt(finding: Finding, number: int, *, has_recovered: bool) -> Finding:
    """Counted from 1, as people do. What a restart has mended is no error of the job any more."""
    if finding.severity != "error":
        return finding
    return msgspec.structs.replace(
        finding,
        title=finding.title if finding.title.startswith("attempt ") else f"attempt {number + 1}: {finding.title}",
        severity="warning" if has_recovered else "error",
    )


def _is_repeated(finding: Finding, earlier: Sequence[Finding]) -> bool:
    """The log of all attempts is in the first one's folder: what it says of a later one may be there twice."""
    return any((each.title, each.ranks) == (finding.title, finding.ranks) for each in earlier)
