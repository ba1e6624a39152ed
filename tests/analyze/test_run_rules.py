"""All rules together: what could not be checked, and in which order findings come."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from analyze.building import Setting, job
from rankscope.analyze import RULES, Effect, Skipped, find_rule, rule, run_rules
from rankscope.errors import UsageError
from rankscope.model.finding import SEVERITIES, Finding
from rankscope.model.tables import Table, Trace


def test_without_dumps_the_rules_are_skipped_with_the_reason() -> None:
    findings, effects, checks = run_rules(Trace(("traces",)))
    assert (findings, effects) == ([], [])
    assert {check.status for check in checks} == {"skipped"}
    assert {check.rule for check in checks} == {rule.name for rule in RULES.values()}
    why = {check.rule: check.why for check in checks}
    assert why["op-mismatch"] == "no Flight Recorder dumps in this capture"
    assert why["file-damaged"] == "no data for the table files in this capture"


def test_a_rule_runs_as_soon_as_its_own_tables_are_there() -> None:
    row = {"file_id": 0, "path": "rank_0", "status": "damaged", "problem": "is empty"}
    findings, _, checks = run_rules(Trace(("traces",), {"files": Table.from_rows("files", [row])}))
    ran = [check.rule for check in checks if check.status == "ran"]
    assert ran == ["file-damaged", "duplicate-rank", "other-runs", "stale-dump"]
    assert [finding.code for finding in findings] == ["D902"]


def test_on_a_capture_of_dumps_every_rule_for_them_runs_and_the_others_say_why_not() -> None:
    trace = job({0: ["dp:1 all_reduce done"] * 4, 1: ["dp:1 all_reduce done"] * 4})
    _, _, checks = run_rules(trace)
    status = {check.rule: check.status for check in checks}
    runs = {rule.name: "ran" if all(map(trace.has, rule.needs)) else "skipped" for rule in RULES.values()}
    runs["hang-outside"] = "skipped"  # dumps alone do not tell whether a job hung while no rank waited
    assert status == runs
    assert {name for name, state in runs.items() if state == "ran"} > {"op-mismatch", "straggler", "ring-too-small"}
    others = [check for check in checks if check.status == "skipped" and check.rule != "hang-outside"]
    assert {check.why for check in others} == {
        "no profiler traces in this capture",
        "no execution traces in this capture",
        "no torch.compile logs in this capture: record with TORCH_TRACE=FOLDER",
        "no thread stacks in this capture: record with `rankscope record`, or with py-spy dump",
        "no manifest in this capture: it was not made by `rankscope record`",
        "no metrics in this capture: record with `rankscope record`",
        "no output of the job in this capture",
        "no samples of the host in this capture: record with `rankscope record`",
    }


def test_the_cause_comes_first_whatever_else_is_found() -> None:
    done, hangs = ["dp:1 all_reduce done"], ["dp:1 all_reduce done", "dp:1 all_reduce aborted"]
    setting = Setting(config={"1": [(0, 1, 2)], "2": [(2, 3)]}, damaged=frozenset({4}))
    findings, effects, _ = run_rules(job({0: hangs, 1: hangs, 2: done, 4: []}, setting))
    # By severity, and among equals by code: D901 before D902 although holes are registered last.
    assert [(finding.severity, finding.code) for finding in findings] == [
        ("error", "H105"),
        ("warning", "D901"),
        ("warning", "D902"),
        ("info", "H110"),
    ]
    assert [finding.code for finding in effects] == ["H111"]
    assert [SEVERITIES.index(finding.severity) for finding in findings] == [0, 1, 1, 2]


def test_equal_traces_give_equal_findings() -> None:
    programs = {0: ["dp:1 all_reduce"], 1: ["dp:1 all_gather [8]->[24]"], 2: ["dp:1 all_reduce"]}
    assert run_rules(job(programs)) == run_rules(job(programs))


@pytest.mark.parametrize("wanted", ["H102", "h102", "op-mismatch", "Op-Mismatch"])
def test_a_rule_is_found_by_code_or_name(wanted: str) -> None:
    assert find_rule(wanted).code == "H102"


def test_a_rule_that_does_not_exist_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError) as refused:
        find_rule("op-mismach")
    assert "H102" in str(refused.value.hint)


def test_a_rule_gives_its_code_and_name_to_what_it_finds() -> None:
    found = Finding(severity="error", certainty="certain", title="it hangs")

    @rule("H190", "made-up", needs=())
    def made_up(_: Trace) -> Iterator[Finding | Effect | Skipped]:
        yield from (found, Effect(found), Skipped("nothing more"))

    bound = msgspec.structs.replace(found, code="H190", rule="made-up")
    assert list(made_up(Trace(()))) == [bound, Effect(bound), Skipped("nothing more")]
    assert "H190" not in RULES, "only what is in its place is a rule"
