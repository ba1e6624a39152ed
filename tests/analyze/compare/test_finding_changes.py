"""Which findings of two reports are one, on hand-made reports."""

from __future__ import annotations

from typing import Any

import pytest

from rankscope.analyze.compare.findings import finding_changes
from rankscope.model.changes import FindingChange
from rankscope.model.finding import SCHEMA_NAME, Capture, Check, Evidence, Finding, GroupRef, Location, Report

AT = Location("/job/train.py", 212, "step")


def finding(code: str = "H102", location: Location | None = AT, **fields: Any) -> Finding:
    known = {"severity": "error", "certainty": "certain", "title": f"title of {code}", "ranks": (3,)}
    return Finding(code=code, rule=f"rule-{code}", location=location, **{**known, **fields})


def report(*findings: Finding, skipped: tuple[str, ...] = ()) -> Report:
    checks = tuple(Check(f"rule-{code}", "skipped", "no dumps") for code in skipped)
    return Report(SCHEMA_NAME, Capture(("x",), (0,), 1, {}), findings, checks)


def kinds(old: Report, new: Report) -> list[tuple[str, str]]:
    return [(change.kind, change.code) for change in finding_changes(old, new)]


def only(old: Report, new: Report) -> FindingChange:
    [change] = finding_changes(old, new)
    return change


def test_the_same_finding_is_no_change() -> None:
    assert not finding_changes(report(finding()), report(finding()))


def test_new_ones_come_first_and_gone_ones_last() -> None:
    old = report(finding("H101"), finding("S201", severity="warning"))
    new = report(finding("P301", severity="info"), finding("H102"), finding("S201", severity="error"))
    assert kinds(old, new) == [("new", "H102"), ("new", "P301"), ("changed", "S201"), ("gone", "H101")]


@pytest.mark.parametrize(
    "moved",
    [
        Location("/job/train.py", 240, "step"),
        Location("/elsewhere/v2/train.py", 212, "step"),
        Location("/elsewhere/v2/train.py", 19, "step"),
    ],
)
def test_code_that_moved_is_still_the_same(moved: Location) -> None:
    assert not finding_changes(report(finding()), report(finding(location=moved)))


@pytest.mark.parametrize(
    "other", [Location("/job/eval.py", 212, "step"), Location("/job/train.py", 212, "warm_up"), None]
)
def test_other_code_makes_another_finding(other: Location | None) -> None:
    assert kinds(report(finding()), report(finding(location=other))) == [("new", "H102"), ("gone", "H102")]


def test_another_cause_makes_another_finding() -> None:
    paused, compiling = (finding("S202", evidence=Evidence(facts={"cause": cause})) for cause in ("pause", "compile"))
    assert kinds(report(paused), report(compiling)) == [("new", "S202"), ("gone", "S202")]
    assert not finding_changes(report(paused), report(paused))


def test_the_kind_of_group_counts_not_its_name() -> None:
    dp, other_dp, tp = (GroupRef(name, desc, (0, 1)) for name, desc in (("12", "dp"), ("31", "dp"), ("12", "tp")))
    assert not finding_changes(report(finding(group=dp)), report(finding(group=other_dp)))
    assert kinds(report(finding(group=dp)), report(finding(group=tp))) == [("new", "H102"), ("gone", "H102")]


def test_other_ranks_are_a_change_of_the_same_finding() -> None:
    change = only(report(finding(ranks=(3,))), report(finding(ranks=(5,))))
    assert (change.kind, change.old_ranks, change.new_ranks) == ("changed", (3,), (5,))
    assert not change.is_worse


def test_of_two_alike_the_one_of_the_same_ranks_is_the_counterpart() -> None:
    old = report(finding(ranks=(1,)), finding(ranks=(2,)))
    assert [change.new_ranks for change in finding_changes(old, report(finding(ranks=(2,)), finding(ranks=(7,))))] == [
        (7,)
    ]


@pytest.mark.parametrize(("cost_pct", "n_changes"), [(20.5, 0), (31.0, 1)])
def test_a_cost_has_to_change_to_be_told(cost_pct: float, n_changes: int) -> None:
    old = report(finding(evidence=Evidence(cost_ns=20, cost_pct=20.0)))
    assert len(finding_changes(old, report(finding(evidence=Evidence(cost_ns=31, cost_pct=cost_pct))))) == n_changes


def test_becoming_more_severe_is_worse_and_less_severe_is_not() -> None:
    mild, severe = (report(finding(severity=severity)) for severity in ("info", "warning"))
    assert only(mild, severe).is_worse
    assert not only(severe, mild).is_worse


def test_what_the_other_capture_could_not_be_checked_for_is_not_called_new() -> None:
    change = only(report(skipped=("H102",)), report(finding()))
    assert (change.kind, change.why, change.is_in_new, change.is_worse) == ("unchecked", "no dumps", True, True)
    change = only(report(finding()), report(skipped=("H102",)))
    assert (change.kind, change.is_in_new, change.is_worse) == ("unchecked", False, False)
