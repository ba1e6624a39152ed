"""What was asked of the collector and is not there; and what its manifest tells about clocks and hosts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from analyze.building import MS, Setting, column, findings, found, job, unresolved
from analyze.test_clocks import SKEW_MS, program
from rankscope.analyze.hangs.clocks import align_clocks
from rankscope.analyze.hangs.groups import resolve_groups
from rankscope.model.finding import Finding
from rankscope.model.tables import Table, Trace

ASKED = {"folder": "traces", "kineto": True, "execution_trace": False, "metrics": True, "stall_seconds": 300.0}
GOT = ("kineto", "metrics")


def manifest_of(
    ranks: Sequence[int], got: Sequence[str] = GOT, problems: Sequence[tuple[str, str, str]] = (), **fields: Any
) -> Trace:
    row = {"asked": json.dumps(ASKED), "n_steps": 10, "ended_ns": 1, "file_id": 0, **fields}
    files = [{"rank": rank, "what": what, "file_id": 0} for rank in ranks for what in got]
    told = [
        {"rank": rank, "what": what, "problem": problem, "hint": hint, "file_id": 0}
        for rank in ranks
        for what, problem, hint in problems
    ]
    tables = {"manifests": [{**row, "rank": rank} for rank in ranks], "collected_files": files}
    tables["collection_problems"] = told
    return Trace(("traces",), {name: Table.from_rows(name, rows) for name, rows in tables.items()})


def told(trace: Trace) -> list[Finding]:
    return [finding for finding in findings(trace) if finding.code == "D909"]


def test_equal_problems_of_several_ranks_are_one_finding() -> None:
    finding = found(manifest_of(range(4), problems=[("nsys", "nsys is not on the PATH", "install it")]), "D909")
    assert finding.title == "nsys of ranks 0-3 is missing: nsys is not on the PATH"
    assert (finding.ranks, finding.severity, finding.help) == ((0, 1, 2, 3), "warning", "install it")


def test_what_is_there_in_part_is_only_worth_a_note() -> None:
    finding = found(manifest_of([0], problems=[("kineto", "the second window was not written: full", "")]), "D909")
    assert (finding.severity, finding.title) == ("info", "kineto of rank 0: the second window was not written: full")
    assert finding.help


@pytest.mark.parametrize(
    ("what", "got", "title", "severity"),
    [
        ("profiling", ["metrics"], "profiling of rank 0 is missing: x", "warning"),
        ("profiling", ["kineto", "metrics"], "profiling of rank 0: x", "info"),
        ("clock", GOT, "clock of rank 0: x", "info"),
        ("rank", ["metrics"], "rank 0: x", "warning"),
    ],
)
def test_a_problem_weighs_what_it_costs(what: str, got: Sequence[str], title: str, severity: str) -> None:
    (finding,) = told(manifest_of([0], got=got, problems=[(what, "x", "")]))
    assert (finding.title, finding.severity) == (title, severity)


def test_what_was_asked_for_and_left_nothing_is_told() -> None:
    (finding,) = told(manifest_of([0, 1], got=["metrics"]))
    assert finding.title == "kineto of ranks 0,1 is missing: nothing was written, and no reason was recorded"


def test_of_a_process_that_was_killed_the_reason_is_known() -> None:
    (finding,) = told(manifest_of([0], got=["metrics"], ended_ns=-1, exit_code=137))
    assert "the process was killed first" in finding.title


def test_of_a_job_that_runs_nothing_is_missing_yet() -> None:
    """Defect: a snapshot of a running job said that its processes had been ended."""
    (finding,) = told(manifest_of([0], got=["metrics"], ended_ns=-1, exit_code=-1))
    assert finding.severity == "info"
    assert finding.title == "kineto of rank 0: not written yet: it is written when the process ends"


@pytest.mark.parametrize(
    "trace",
    [
        manifest_of([0, 1]),
        manifest_of([0], got=[], n_steps=0),  # nothing to record without steps
        manifest_of([0], got=[], asked=json.dumps({})),
        manifest_of([0], got=[], asked="[]"),
    ],
    ids=["all-there", "no-steps", "not-asked", "no-settings"],
)
def test_a_run_that_got_what_was_asked_for_is_no_finding(trace: Trace) -> None:
    assert told(trace) == []


@pytest.mark.parametrize(("n_steps", "severity"), [(0, "info"), (6, "info"), (7, "warning")])
def test_a_job_too_short_to_be_profiled_is_no_failure(n_steps: int, severity: str) -> None:
    asked = json.dumps({**ASKED, "wait": 5, "warmup": 1})
    problems = [("profiling", "the job ended before", "")]
    (finding,) = told(manifest_of([0, 1], got=["metrics"], problems=problems, n_steps=n_steps, asked=asked))
    assert finding.severity == severity


def test_many_problems_are_cut_short() -> None:
    finding = told(manifest_of([0], problems=[("kineto", f"problem {number}", "") for number in range(20)]))
    assert len(finding) == 8
    assert finding[0].evidence.notes == ("12 more problems: see the table collection_problems",)


def with_clocks(trace: Trace, offsets_ms: Sequence[int | None], error_ms: int = 1) -> Trace:
    rows = [
        {"rank": rank, "host": f"host-{rank}", "clock_offset_ns": offset * MS, "clock_error_ns": error_ms * MS}
        if offset is not None
        else {"rank": rank}
        for rank, offset in enumerate(offsets_ms)
    ]
    trace.tables["manifests"] = Table.from_rows("manifests", rows)
    trace.tables.update(resolve_groups(trace))
    trace.tables.update(align_clocks(trace))
    return trace


def test_measured_clocks_are_used_where_the_calls_tell_nothing() -> None:
    calls = ["dp:1 all_reduce gloo done"] * 3
    trace = with_clocks(unresolved(dict.fromkeys(range(3), calls)), [0, SKEW_MS, None])
    assert column(trace, "ranks", "clock_offset_ns") == [0, SKEW_MS * MS, 0]
    assert column(trace, "ranks", "clock_error_ns") == [MS, MS, -1]
    assert column(trace, "ranks", "host") == ["host-0", "host-1", ""]


def test_what_the_measurement_may_be_wrong_by_is_no_offset() -> None:
    trace = with_clocks(unresolved({0: ["dp:1 barrier"], 1: ["dp:1 barrier"]}), [0, 3], error_ms=5)
    assert column(trace, "ranks", "clock_offset_ns") == [0, 0]


def test_what_the_calls_show_comes_first() -> None:
    programs = {0: program(0), 1: program(SKEW_MS), 2: program(0)}
    hosts = Setting(hosts={0: "a", 1: "b", 2: "c"})
    trace = with_clocks(unresolved(programs, hosts), [0, 999_000, 0])
    shown = column(job(programs, hosts), "ranks", "clock_offset_ns")
    assert column(trace, "ranks", "clock_offset_ns") == shown
    assert column(trace, "ranks", "host") == ["a", "b", "c"]


def test_other_runs_of_the_folder_are_told() -> None:
    paths = ("traces/run_2", "traces/run_3")
    rows = [{"path": path, "status": "other-run", "hint": f"rankscope {path}"} for path in paths]
    files = Table.from_rows("files", [{"path": "traces/nccl_trace_rank_0", "status": "read"}, *rows])
    finding = found(Trace(("traces",), {"files": files}), "D910")
    assert finding.title == "2 other runs of this job in the same folder, not read"
    assert finding.evidence.notes == paths
    assert finding.help == "to diagnose the latest: rankscope traces/run_3"
