"""C405, C406, C414 and C417: what failed, began anew, never ended, and what an export got wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analyze.compile.building import FILE, SECOND, START, Made, broke, compiled, findings, frame, log, trace_of
from rankscope.analyze import RULES, Skipped
from rankscope.model.finding import Location

BACKEND: dict[str, Any] = {
    "status": "failed",
    "fail_type": "BackendCompilerFailed",
    "fail_reason": "backend='mine' raised:\nRuntimeError: no such op",
}
UNSUPPORTED: dict[str, Any] = {"status": "failed", "fail_type": "Unsupported", "fail_reason": "Failed to trace print"}


def error(compile_id: str, *, rank: int = 0, **columns: Any) -> Made:
    row = {"file_id": rank, "rank": rank, "compile_id": compile_id, "kind": "dynamo_error"}
    place = {"file": "backend.py", "line": 3, "function": "mine", "code": "raise"}
    return "compile_errors", row | place | columns


def test_an_exception_is_an_error_at_the_users_line() -> None:
    [finding] = findings(trace_of(compiled("0/0", seconds=2, **BACKEND), error("0/0")), "C405")
    assert finding.severity == "error"
    assert finding.title == "compiling step failed with BackendCompilerFailed: RuntimeError: no such op"
    assert finding.location == Location("backend.py", 3, "mine")
    assert finding.evidence.cost_ns == 2 * SECOND
    assert "the compiled function: train.py:10" in finding.evidence.notes


def test_the_same_on_all_ranks_is_one_finding() -> None:
    trace = trace_of(*(compiled("0/0", rank=rank, **BACKEND) for rank in range(3)))
    [finding] = findings(trace, "C405")
    assert finding.ranks == (0, 1, 2)
    assert finding.location == Location(FILE, 10, "step")


def test_what_merely_fell_back_is_a_graph_break_and_no_error() -> None:
    assert findings(trace_of(compiled("0/0", **UNSUPPORTED), broke("0/0")), "C405") == []


def test_what_could_not_be_traced_and_left_no_break_failed() -> None:
    made = compiled("0/0", **UNSUPPORTED, fail_file=FILE, fail_line=15)
    [finding] = findings(trace_of(made, broke("1/0")), "C405")
    assert (finding.severity, finding.certainty) == ("error", "likely")
    assert finding.location == Location(FILE, 15, "")
    assert "fullgraph" in finding.help


def test_a_function_with_too_many_versions_is_not_told_here() -> None:
    refused = UNSUPPORTED | {"fail_reason": "Dynamo recompile limit exceeded"}
    assert findings(trace_of(compiled("0/8", **refused)), "C405") == []


@pytest.mark.parametrize(("suppressed", "severity"), [(True, "warning"), (False, "error")])
def test_with_suppress_errors_it_is_a_warning(tmp_path: Path, suppressed: bool, severity: str) -> None:
    header = json.dumps({"compilation_metrics": {"config_suppress_errors": suppressed}}).encode()
    path = tmp_path / "trace.log"
    path.write_bytes(header)
    place = {"file_id": 0, "rank": 0, "record": 0, "kind": "compilation_metrics"}
    record = ("compile_records", place | {"header_start": 0, "n_header_bytes": len(header)})
    trace = trace_of(log(0, plain_path=str(path)), record, compiled("0/0", **BACKEND))
    [finding] = findings(trace, "C405")
    assert finding.severity == severity


def restarted(compile_id: str, *reasons: str, rank: int = 0, lost: int = 2) -> Made:
    return compiled(compile_id, rank=rank, restart_reasons=json.dumps(reasons), lost_ns=lost * SECOND)


def test_restarts_are_told_by_reason_with_the_time_they_cost() -> None:
    trace = trace_of(restarted("0/0", "size must stay", "call removed"), restarted("0/0", "size must stay", rank=1))
    by_reason = {finding.evidence.facts["reason"]: finding for finding in findings(trace, "C406")}
    assert by_reason["size must stay"].ranks == (0, 1)
    assert by_reason["size must stay"].evidence.cost_ns == 2 * SECOND
    assert by_reason["call removed"].evidence.cost_ns == SECOND
    assert "tracing step restarted once: call removed" in by_reason["call removed"].title


def test_restarts_because_of_graph_breaks_belong_to_those() -> None:
    reason = "Failed to trace print\n  Explanation: ..."
    assert findings(trace_of(restarted("0/0", reason), broke("0/0", reason="Failed to trace print")), "C406") == []


def span(name: str, depth: int, *, state: str = "open", compile_id: str = "1/0") -> Made:
    row = {"file_id": 0, "rank": 0, "compile_id": compile_id, "name": name, "depth": depth, "state": state}
    return "compile_events", row | {"start_ns": START + depth, "duration_ns": 30 * SECOND}


UNFINISHED = compiled("1/0", status="unfinished", duration_ns=-1)
STARTS = [frame("0/0", 0, FILE, 10, "step", is_user=True), frame("1/0", 0, FILE, 10, "step", is_user=True)]


def test_a_compilation_without_an_end_is_told_with_its_innermost_phase() -> None:
    phases = [span("dynamo", 0), span("code_gen", 2), span("inductor_compile", 1), span("gc", 3, state="span")]
    [finding] = findings(trace_of(compiled("0/0"), UNFINISHED, *STARTS, *phases), "C414")
    assert "the log ends while compiling step (in code_gen)" in finding.title
    assert finding.evidence.facts["phases"] == ["dynamo", "inductor_compile", "code_gen"]
    assert finding.location == Location(FILE, 10, "step")


def test_a_log_that_is_cut_shows_it_without_phases() -> None:
    [finding] = findings(trace_of(log(0, is_cut=True), UNFINISHED, *STARTS), "C414")
    assert any("cut off" in line for line in finding.evidence.certain)


def test_a_log_that_is_cut_in_a_backward_shows_it_by_the_open_phase() -> None:
    open_phase = span("entire_backward_compile", 0, compile_id="0/0")
    [finding] = findings(trace_of(log(0, is_cut=True), compiled("0/0"), STARTS[0], open_phase), "C414")
    assert "(in entire_backward_compile)" in finding.title


def test_a_compilation_before_another_one_did_end() -> None:
    later = [*STARTS, frame("2/0", 0, FILE, 10, "step", is_user=True)]
    assert findings(trace_of(UNFINISHED, compiled("2/0"), *later, span("dynamo", 0)), "C414") == []


def test_logs_that_never_tell_an_end_prove_nothing() -> None:
    closed = span("dynamo", 0, state="span")
    assert findings(trace_of(UNFINISHED, *STARTS, closed), "C414") == []


def test_ranks_that_stopped_at_the_same_place_are_one_finding() -> None:
    made: list[Made] = []
    for rank in range(2):
        made += [log(rank, rank=rank, is_cut=True), compiled("1/0", rank=rank, status="unfinished", duration_ns=-1)]
        made.append(frame("1/0", 0, FILE, 10, "step", is_user=True, rank=rank))
    [finding] = findings(trace_of(*made), "C414")
    assert finding.ranks == (0, 1)


@pytest.mark.parametrize("code", ["C401", "C402", "C405", "C406", "C410", "C414", "C415"])
def test_what_text_does_not_tell_is_not_called_checked(code: str) -> None:
    untold = compiled("0/0", status="", duration_ns=-1)
    text, trace = trace_of(log(0, source="text"), untold), trace_of(compiled("0/0", guard_latency_ns=1))
    assert [type(result) for result in RULES[code].function(text)] == [Skipped]
    assert list(RULES[code].function(trace)) == []


def test_without_an_export_nothing_is_said_about_exports() -> None:
    def results(kind: str) -> list[object]:
        return list(RULES["C417"].function(trace_of(("compile_records", {"file_id": 0, "rank": 0, "kind": kind}))))

    assert [type(result) for result in results("dynamo_start")] == [Skipped]
    assert results("exported_program") == []


def test_problems_of_an_export_are_told_by_kind_and_line() -> None:
    missing: dict[str, Any] = {"kind": "missing_fake_kernel", "message": "mylib::foo", "file": FILE, "line": 21}
    made = [error("-", **missing), error("-", **missing), error("-", **missing | {"line": 22}), error("0/0")]
    found = findings(trace_of(*made), "C417")
    assert [(finding.severity, finding.location) for finding in found] == [
        ("error", Location(FILE, 21, "mine")),
        ("error", Location(FILE, 22, "mine")),
    ]
    assert "mylib::foo" in found[0].title
    assert "register_fake" in found[0].help


def test_decisions_that_an_export_made_with_real_values_are_warnings() -> None:
    record = {"file_id": 0, "rank": 0, "record": 4, "kind": "propagate_real_tensors_provenance"}
    decided = {"file_id": 0, "rank": 0, "record": 4, "kind": "guard", "expression": "Eq(u0, 0)", "value": "False"}
    other = decided | {"record": 5}
    place = {"file": FILE, "line": 30, "function": "forward"}
    trace = trace_of(("compile_records", record), ("guards", decided | place), ("guards", other | place))
    [finding] = findings(trace, "C417")
    assert finding.severity == "warning"
    assert "Eq(u0, 0) is False" in finding.title


def test_an_error_that_was_only_printed_is_told_at_its_line() -> None:
    told: dict[str, Any] = {"type": "torch._dynamo.exc.InternalTorchDynamoError", "message": "AssertionError: no"}
    [finding] = findings(trace_of(compiled("0/0", duration_ns=-1), error("", **told)), "C405")
    assert finding.title == "compiling mine failed with InternalTorchDynamoError: AssertionError: no"
    assert finding.location == Location("backend.py", 3, "mine")


def test_a_restart_whose_reason_is_a_class_is_told_by_its_name() -> None:
    [finding] = findings(trace_of(restarted("0/0", "<class 'torch._dynamo.exc.TensorifyScalarRestart'>")), "C406")
    assert finding.title.endswith("restarted once: TensorifyScalarRestart")
