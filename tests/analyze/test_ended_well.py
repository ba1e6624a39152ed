"""A job that ended on its own was not hanging, whatever its dumps look like. All others get their verdict."""

from __future__ import annotations

import json
from typing import Any

import pytest

from analyze.building import findings, job
from rankscope.analyze import run_rules
from rankscope.analyze.chance import likelihood
from rankscope.analyze.manifests import came_to_an_end, ended_well
from rankscope.model.tables import Table, Trace

LAGGING = {0: ["dp:1 all_reduce done", "dp:1 all_reduce"], 1: ["dp:1 all_reduce done", "dp:1 all_reduce"]}
STUCK = {0: ["dp:1 all_reduce done", "dp:1 all_reduce"], 1: ["dp:1 all_reduce done"]}
WELL = {"ending": "exit", "exit_code": 0, "ended_ns": 9, "world_size": 2}
KILLED = {"what": "rank", "problem": "killed", "hint": ""}


def recorded(programs: dict[int, list[str]], *told: dict[str, Any], problems: tuple[dict[str, str], ...] = ()) -> Trace:
    """The dumps, with what each rank's manifest says beside an end that is well."""
    trace = job(programs)
    rows = [{"file_id": 0, "rank": rank, **WELL, **about} for rank, about in enumerate(told)]
    trace.tables["manifests"] = Table.from_rows("manifests", rows)
    trace.tables["collection_problems"] = Table.from_rows(
        "collection_problems", [{"file_id": 0, "rank": 0, **problem} for problem in problems]
    )
    return trace


def hangs(trace: Trace) -> list[str]:
    return [finding.code for finding in findings(trace) if finding.code.startswith("H") and finding.severity == "error"]


@pytest.mark.parametrize("programs", [LAGGING, STUCK], ids=["all joined", "one absent"])
def test_a_job_that_ended_well_did_not_hang(programs: dict[int, list[str]]) -> None:
    trace = recorded(programs, {}, {})
    assert ended_well(trace)
    assert [finding for finding in findings(trace) if finding.code.startswith("H")] == []


@pytest.mark.parametrize(
    "told",
    [
        pytest.param([{}, {"ending": ""}], id="one was killed"),
        pytest.param([{"ending": "signal"}] * 2, id="ended by a signal"),
        pytest.param([{}, {"ending": "exception"}], id="one raised"),
        pytest.param([{"exit_code": 1}] * 2, id="the job failed"),
        pytest.param([{"exit_code": 143}] * 2, id="the job was ended"),
        pytest.param([{}], id="a rank with a dump has no manifest"),
        pytest.param([{"exit_code": -1, "world_size": 3}] * 2, id="nobody saw the end of rank 2"),
    ],
)
@pytest.mark.parametrize(("programs", "code"), [(LAGGING, "H109"), (STUCK, "H105")])
def test_a_job_that_did_not_gets_its_verdict(
    programs: dict[int, list[str]], code: str, told: list[dict[str, Any]]
) -> None:
    assert hangs(recorded(programs, *told)) == [code]


def test_without_a_manifest_the_dumps_decide() -> None:
    assert hangs(job(LAGGING)) == ["H109"]


def test_a_job_that_collects_by_itself_ends_well_when_all_its_ranks_do() -> None:
    trace = recorded(LAGGING, {"exit_code": -1}, {"exit_code": -1})
    assert came_to_an_end(trace)
    assert not ended_well(trace), "it may have left by sys.exit(1)"
    assert [finding for finding in run_rules(trace)[0] if finding.severity == "error"] == []


def test_a_manifest_that_does_not_say_how_ranks_ended_says_when_they_were_killed() -> None:
    assert ended_well(recorded(LAGGING, {"ending": ""}, {"ending": ""}))
    assert not ended_well(recorded(LAGGING, {"ending": ""}, {"ending": ""}, problems=(KILLED,)))


def why(trace: Trace, rule: str) -> str | None:
    return next(check.why for check in run_rules(trace)[2] if check.rule == rule)


def test_what_was_collected_and_is_empty_is_not_asked_for_again() -> None:
    asked = {"asked": json.dumps({"compile_log": True, "stacks": True})}
    trace = recorded(LAGGING, asked, asked)
    assert why(trace, "graph-break") == "nothing was compiled"
    assert "when a job hangs" in str(why(trace, "rank-raised"))
    trace = recorded(LAGGING, asked, {"asked": json.dumps({"compile_log": False})})
    assert "record with TORCH_TRACE" in str(why(trace, "graph-break"))
    failed = {"what": "compile_log", "problem": "TORCH_TRACE is set to /elsewhere", "hint": ""}
    assert "record with TORCH_TRACE" in str(why(recorded(LAGGING, asked, asked, problems=(failed,)), "graph-break"))


@pytest.mark.parametrize(
    ("n_times", "n_events", "n_ranks", "expected"),
    [(4, 4, 2, 0.125), (3, 4, 2, 0.625), (8, 8, 8, 8.0**-7), (0, 5, 4, 1.0), (3, 3, 1, 1.0)],
)
def test_how_likely_it_is_to_be_last_so_often(n_times: int, n_events: int, n_ranks: int, expected: float) -> None:
    assert likelihood(n_times, n_events, n_ranks) == pytest.approx(expected)


def test_a_job_that_gave_up_after_a_time_out_still_gets_its_verdict() -> None:
    """Its ranks caught the time-out and left by sys.exit(3), which nobody saw."""
    assert hangs(recorded(STUCK, {"exit_code": -1}, {"exit_code": -1})) == ["H105"]
