"""C416 on hand-made messages."""

from __future__ import annotations

from typing import Any

from rankscope.analyze.compile.perf_hints import perf_hint
from rankscope.model.finding import Finding
from rankscope.model.tables import Table, Trace

LOG = {"file_id": 0, "rank": 0, "run": 0, "source": "text", "first_ns": 0, "last_ns": 9}
STEP = {"file_id": 0, "rank": 0, "compile_id": "0/0", "function": "step", "file": "/job/train.py", "line": 12}


def hint(message: str, **columns: Any) -> dict[str, Any]:
    return {"file_id": 0, "rank": 0, "channel": "perf_hints", "level": "info", "message": message, **columns}


def findings_of(*lines: dict[str, Any], compilations: tuple[dict[str, Any], ...] = (STEP,)) -> list[Finding]:
    rows = {"compile_logs": [LOG], "compilations": [*compilations], "log_lines": [*lines]}
    trace = Trace(("job.log",), {name: Table.from_rows(name, own) for name, own in rows.items()})
    found = list(perf_hint(trace))
    assert all(isinstance(finding, Finding) for finding in found)
    return [finding for finding in found if isinstance(finding, Finding)]


def test_operators_without_generated_code_are_one_finding() -> None:
    (finding,) = findings_of(
        hint("Using FallbackKernel: aten.sort.stable", compile_id="0/0"),
        hint("Using FallbackKernel: aten.sort.stable", compile_id="1/0"),
        hint("Using FallbackKernel: aten.linalg_qr.default", compile_id="0/0", rank=1),
    )
    assert (finding.code, finding.rule, finding.severity) == ("C416", "perf-hint", "info")
    assert finding.title == "Inductor generates no code for aten.sort.stable, aten.linalg_qr.default"
    assert finding.ranks == (0, 1)
    assert finding.evidence.facts["n"] == 3
    assert finding.help


def test_the_place_is_the_function_that_was_compiled() -> None:
    (finding,) = findings_of(hint("possibly bad tiling: [(8, 1)]", compile_id="0/0"))
    assert finding.location is not None
    assert (finding.location.file, finding.location.line, finding.location.function) == ("/job/train.py", 12, "step")
    assert "step (train.py:12)" in finding.evidence.certain[0]


def test_a_hint_about_an_unknown_compilation_has_no_place() -> None:
    (finding,) = findings_of(hint("possibly bad tiling: [(8, 1)]", compile_id="7/0"))
    assert finding.location is None


def test_hints_of_several_kinds_have_their_own_advice() -> None:
    found = findings_of(
        hint("\nReduction over non-contiguous dims.\nConsider setting config.triton.tile_reductions to True.\n"),
        hint("Found optimal tiling with 3 tiles but torch._inductor.config.triton.max_tiles set to 2. Consider"),
        hint(
            "('Grad tensors [\"G['w'].grad\"] will be copied during cudagraphs execution.If using',)", level="warning"
        ),
    )
    assert [finding.title for finding in found] == [
        "a reduction reads non-contiguous memory",
        "the best tiling of a kernel needs 3 tiles, which the settings do not allow",
        "gradients are copied for CUDA graphs on every step",
    ]
    assert len({finding.help for finding in found}) == 3


def test_a_hint_of_a_kind_that_is_not_known_is_told_as_it_is() -> None:
    found = findings_of(hint("Consider the lilies"), hint("Consider the lilies"), hint("Mind the gap"))
    assert [finding.title for finding in found] == ["torch's hint: Consider the lilies", "torch's hint: Mind the gap"]


def test_a_warning_without_a_channel_counts_where_it_is_known() -> None:
    text = "Not enough SMs to use max_autotune_gemm mode"
    assert len(findings_of(hint(text, channel="", level="warning"), hint("other", channel="", level="warning"))) == 1


def test_what_asks_for_nothing_and_what_others_tell_is_left_out() -> None:
    silent = ("Skip comprehensive padding on CPU", "skipping cudagraphs due to mutated inputs", "", "\n")
    assert findings_of(*map(hint, silent), hint("Using FallbackKernel: aten.x", channel="other")) == []
