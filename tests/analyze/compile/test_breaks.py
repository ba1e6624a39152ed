"""C404: breaks told once per line and reason, and what each of them costs."""

from __future__ import annotations

from typing import Any

from analyze.compile.building import FILE, SECOND, START, Made, broke, compiled, findings, frame, trace_of
from rankscope.model.finding import Location


def resumed(compile_id: str, line: int, *, function: str = "step", seconds: float = 1, **columns: Any) -> Made:
    name = f"torch_dynamo_resume_in_{function}_at_{line}"
    return compiled(compile_id, function=name, line=line, seconds=seconds, **columns)


def at(seconds: float) -> dict[str, Any]:
    return {"time_ns": START + int(seconds * SECOND)}


def test_a_break_is_told_once_with_its_line_reason_and_hint() -> None:
    told: dict[str, Any] = {
        "explanation": "cannot trace print",
        "hints": "Remove the print.\nPlease report an issue to PyTorch.",
    }
    told |= {"url": "https://example.org/gb0059.html", "break_id": "gb0059", "code": "print(x)"}
    [finding] = findings(trace_of(compiled("0/0"), broke("0/0", **told), broke("0/0", attempt=1, **told)), "C404")
    assert finding.title == "graph break in step: print"
    assert finding.severity == "warning"
    assert finding.location == Location(FILE, 12, "step")
    assert finding.evidence.certain[:2] == ("hit twice while compiling; it splits step", "cannot trace print")
    assert finding.help == "move this line out of the compiled function, or follow torch's hint: Remove the print"
    assert any("gb0059.html" in note for note in finding.evidence.notes)


def test_lines_and_reasons_keep_breaks_apart() -> None:
    made = [broke("0/0", 12, "print"), broke("0/0", 12, "item"), broke("0/0", 13, "print")]
    assert len(findings(trace_of(compiled("0/0"), *made), "C404")) == 3


def test_ranks_are_one_finding_and_the_cost_is_of_the_slowest() -> None:
    made: list[Made] = []
    for rank in range(3):
        made += [compiled("0/0", rank=rank, lost_ns=(rank + 1) * SECOND), broke("0/0", rank=rank)]
    [finding] = findings(trace_of(*made), "C404")
    assert finding.ranks == (0, 1, 2)
    assert finding.evidence.cost_ns == 3 * SECOND
    assert "hit once" in finding.evidence.certain[0]


def test_the_cost_is_tracing_anew_and_all_versions_of_what_begins_behind_the_line() -> None:
    made = [
        compiled("0/0", seconds=50, lost_ns=SECOND),
        broke("0/0", 12),
        resumed("1/0", 12, seconds=4),
        resumed("1/1", 12, seconds=2),
    ]
    [finding] = findings(trace_of(*made), "C404")
    assert finding.evidence.cost_ns == 7 * SECOND


def test_two_breaks_on_one_line_are_charged_for_what_follows_each() -> None:
    made = [
        compiled("0/0", start_ns=START),
        broke("0/0", 12, "item", **at(1)),
        resumed("1/0", 12, seconds=3, start_ns=START + 2 * SECOND),
        broke("1/0", 12, "print", **at(3)),
        resumed("2/0", 12, seconds=5, start_ns=START + 4 * SECOND),
    ]
    costs = {finding.title: finding.evidence.cost_ns for finding in findings(trace_of(*made), "C404")}
    assert costs == {"graph break in step: item": 3 * SECOND, "graph break in step: print": 5 * SECOND}


def test_a_caller_that_is_cut_by_a_break_below_it_is_charged_to_that_break() -> None:
    made = [
        compiled("0/0", function="outer", line=30, start_ns=START),
        broke("0/0", 12, **at(1)),
        resumed("1/0", 32, function="outer", seconds=6, start_ns=START + 2 * SECOND),
    ]
    [finding] = findings(trace_of(*made), "C404")
    assert finding.evidence.cost_ns == 6 * SECOND
    assert "splits outer" in finding.evidence.certain[0]


def test_what_a_break_keeps_from_being_compiled_at_all_is_said() -> None:
    failed = compiled("0/0", status="failed", fail_type="Unsupported", fail_reason="print")
    [finding] = findings(trace_of(failed, broke("0/0")), "C404")
    assert "1 function is not compiled at all because of it" in finding.evidence.certain


FOREIGN: dict[str, Any] = {
    "file": "/env/torch/nn/parallel/distributed.py",
    "is_user": False,
    "caller_file": FILE,
    "caller_line": 99,
}


def test_what_ddps_wrapper_does_is_information_at_the_users_line() -> None:
    made = [
        compiled("0/0", function="inner", file="torch/x.py"),
        frame("0/0", 0, FILE, 99, "main", is_user=True),
        frame("0/0", 1, "torch/x.py", 1, "inner", is_user=False),
    ]
    [finding] = findings(trace_of(*made, broke("0/0", **FOREIGN)), "C404")
    assert finding.severity == "info"
    assert finding.location == Location(FILE, 99, "main")
    assert "in library code" in finding.title


def test_a_break_in_other_foreign_code_that_the_user_calls_is_a_warning() -> None:
    [finding] = findings(trace_of(compiled("0/0"), broke("0/0", **FOREIGN | {"file": "torch/optim/x.py"})), "C404")
    assert (finding.severity, finding.location) == ("warning", Location(FILE, 99, ""))


def test_text_logs_without_compilations_tell_breaks_without_cost() -> None:
    [finding] = findings(trace_of(broke("0/0")), "C404")
    assert finding.evidence.cost_ns is None
    assert "splits step" in finding.evidence.certain[0]
