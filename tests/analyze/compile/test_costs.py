"""C409, C410 and C415: what compiling took, what guards take, and CUDA graphs that were not used."""

from __future__ import annotations

from typing import Any

import pytest

from analyze.compile.building import FILE, SECOND, START, compiled, findings, log, trace_of
from rankscope.model.finding import Location


def test_the_ledger_is_told_for_the_rank_that_took_longest() -> None:
    slow: dict[str, Any] = {"rank": 1, "aot_ns": 15 * SECOND, "inductor_ns": 10 * SECOND, "code_gen_ns": 10 * SECOND}
    trace = trace_of(
        compiled("0/0", seconds=3),
        compiled("0/0", seconds=20, **slow),
        compiled("1/0", rank=1, seconds=5, function="loss", line=40),
        compiled("1/0", rank=1, seconds=5, function="loss", line=40, phase="backward"),
    )
    [finding] = findings(trace, "C409")
    assert finding.title == "compiling took 30.0 s on the slowest rank: 2 compilations of 2 functions"
    assert (finding.severity, finding.ranks) == ("info", (0, 1))
    assert finding.location == Location(FILE, 10, "step")
    assert finding.evidence.cost_ns == 30 * SECOND
    assert finding.evidence.comparison
    assert finding.evidence.comparison.keys == ("step train.py:10", "loss train.py:40")
    assert finding.evidence.certain[0].startswith("by phase: tracing Python 10.0 s")
    assert "by part: forward 25.0 s, backward 5.0 s" in finding.evidence.certain
    assert finding.evidence.facts["ranks"] == [
        {"rank": 0, "total_ns": 3 * SECOND},
        {"rank": 1, "total_ns": 30 * SECOND},
    ]


@pytest.mark.parametrize(
    ("seconds", "span", "severity"), [(70, 300, "warning"), (50, 60, "info"), (70, 1000, "info"), (70, 70, "warning")]
)
def test_it_is_a_warning_where_it_is_long_and_a_large_part(seconds: int, span: int, severity: str) -> None:
    logs = log(0, last_ns=START + span * SECOND)
    [finding] = findings(trace_of(logs, compiled("0/0", seconds=seconds)), "C409")
    assert finding.severity == severity


def test_a_profile_of_the_same_time_tells_how_long_the_job_ran() -> None:
    def severity(first: int, last: int) -> str:
        times = {"start_ns": START + first * SECOND, "end_ns": START + last * SECOND}
        logs = log(0, last_ns=START + 100 * SECOND)
        made = [logs, compiled("0/0", seconds=70), ("profiles", {"file_id": 9, "rank": 0} | times)]
        [finding] = findings(trace_of(*made), "C409")
        return finding.severity

    assert severity(50, 5000) == "info"
    assert severity(50_000, 60_000) == "warning"  # of another day


def test_each_run_has_its_own_total() -> None:
    trace = trace_of(log(0, run=0), log(1, run=1), compiled("0/0", seconds=1), compiled("0/0", seconds=2, file_id=1))
    assert [finding.evidence.cost_ns for finding in findings(trace, "C409")] == [SECOND, 2 * SECOND]


def guarded(compile_id: str, microseconds: int, n_guards: int, **columns: Any) -> Any:
    return compiled(compile_id, guard_latency_ns=1000 * microseconds, n_guards=n_guards, **columns)


def test_the_guards_of_all_versions_are_added_up() -> None:
    made = [guarded("0/0", 60, 30), guarded("0/1", 60, 30), guarded("1/0", 60, 30, function="other")]
    [finding] = findings(trace_of(*made), "C410")
    assert finding.title == "step spends up to 120 us per call checking 60 guards of 2 versions"
    assert (finding.severity, finding.certainty) == ("info", "likely")
    assert finding.evidence.cost_ns is None  # it is lost on every call, not in all


@pytest.mark.parametrize(("microseconds", "n_guards"), [(90, 500), (300, 10)])
def test_fast_and_few_guards_are_not_told(microseconds: int, n_guards: int) -> None:
    assert findings(trace_of(guarded("0/0", microseconds, n_guards)), "C410") == []


def test_very_slow_guards_are_a_warning() -> None:
    [finding] = findings(trace_of(guarded("0/0", 2000, 900)), "C410")
    assert finding.severity == "warning"


def test_why_cuda_graphs_are_not_used_is_told_once_for_all_ranks() -> None:
    reason = "skipping cudagraphs due to mutated inputs (1 instances)"
    made = [compiled("0/0", rank=rank, cudagraph_skip=reason) for rank in range(2)]
    [finding] = findings(trace_of(*made, compiled("1/0", function="other")), "C415")
    assert finding.title == "step runs without CUDA graphs: mutated inputs (1 instances)"
    assert (finding.severity, finding.ranks) == ("warning", (0, 1))
