"""C411, C412, C413, C418, C419: what ranks of one job compiled differently, on logs made for the purpose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rankscope import pipeline
from rankscope.analyze import RULES
from rankscope.model.finding import Finding
from rankscope.simulate.compile_log import TRAIN, LogBuilder, Site

SAMPLES = Path(__file__).resolve().parents[4] / "shared" / "samples" / "compile_logs"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the sample logs are not here")
CODES = ("C411", "C412", "C413", "C418", "C419")
CALLER = Site(TRAIN, 12, "step", "loss = model(x)")
SIZE = "0/0: tensor 'x' size mismatch at index 0. expected 8, actual 12"
REDUCE, GATHER, SCATTER, WAIT = (
    f"torch.ops._c10d_functional.{name}.default"
    for name in ("all_reduce_", "all_gather_into_tensor", "reduce_scatter_tensor", "wait_tensor")
)
Fill = Callable[[LogBuilder], object]


def graph(*ops: str, size: int = 8, device: str = "cpu") -> str:
    """A graph as Dynamo prints it; each operator stands at a line of the user's file of its own, from 31 on."""
    lines = ["class GraphModule(torch.nn.Module):", f'    def forward(self, L_x_: "f32[{size}][1]{device}"):']
    for number, op in enumerate(ops):
        lines += ["", f"        # File: {TRAIN}:{31 + number} in forward, code: y = ...", f"        {op}"]
    return "\n".join([*lines, "        return (y,)"])


def compiled(log: LogBuilder, compile_id: str = "0/0", text: str = "", *, line: int = 30, seconds: float = 1) -> None:
    """One compilation of the function at the line, from start to metrics."""
    function = f"forward_{line}" if line != 30 else "forward"
    log.start(compile_id, (CALLER, Site(TRAIN, line, function)))
    log.graph(compile_id, text or graph("y = x + 1"))
    log.wait(seconds).metrics(compile_id, seconds, co_name=function, co_firstlineno=line)


def scheduled(log: LogBuilder, *calls: str, code: tuple[str, ...] | None = None, compile_id: str = "0/0") -> None:
    """What inductor logs of a graph with collectives; its code calls the same unless told otherwise."""
    log.start(compile_id).graph(compile_id, graph("y = x + 1"))
    if calls:
        log.artifact("inductor_collective_schedule", list(calls), compile_id)
    body = "".join(f"    buf = {call}(buf, 'sum', '0')\n" for call in (calls if code is None else code))
    ids = {"frame_id": 0, "frame_compile_id": int(compile_id[-1]), "attempt": 0}
    log.record("inductor_output_code", {"filename": "/cache/c.py"}, f"def call(args):\n{body}    return ()", **ids)
    log.metrics(compile_id)


def diagnosed(folder: Path, *fills: Fill) -> list[Finding]:
    """The findings across ranks of a job; one function per rank fills its log."""
    for rank, fill in enumerate(fills):
        log = LogBuilder(rank)
        fill(log)
        log.write(folder)
    return [finding for finding in pipeline.diagnose(pipeline.load(folder)).findings if finding.code in CODES]


def only(findings: list[Finding], code: str) -> Finding:
    (finding,) = [finding for finding in findings if finding.code == code]
    return finding


def test_ranks_that_compile_the_same_give_nothing_whatever_records_without_an_id_there_are(tmp_path: Path) -> None:
    def first(log: LogBuilder) -> None:
        log.torch_version()
        compiled(log)

    assert diagnosed(tmp_path, first, compiled, compiled) == []


def test_a_rank_that_recompiled_alone_is_named_with_the_guard_that_failed(tmp_path: Path) -> None:
    def odd(log: LogBuilder) -> None:
        compiled(log)
        log.recompile("0/1", SIZE)
        compiled(log, "0/1", graph("y = x + 1", size=12))

    (finding,) = diagnosed(tmp_path, compiled, odd, compiled)
    assert (finding.code, finding.severity, finding.certainty, finding.ranks) == ("C411", "warning", "certain", (1,))
    assert finding.title == "rank 1 compiled forward (train.py:30) more often than its 2 peers"
    assert finding.evidence.likely == ("rank 1 recompiled because of the size of x (dimension 0): expected 8, got 12",)
    assert finding.evidence.facts["compile_id"] == "0/1"


def test_another_graph_shows_the_first_operator_that_differs_and_the_line_behind_it(tmp_path: Path) -> None:
    def usual(log: LogBuilder) -> None:
        compiled(log, text=graph("a = x + 1", "y = a * 2"))

    def odd(log: LogBuilder) -> None:
        compiled(log, text=graph("a = x + 1", "b = a.sin();  a = None", "y = b * 2"))

    (finding,) = diagnosed(tmp_path, usual, usual, odd)
    assert finding.ranks == (2,)
    assert "b = a.sin()" in finding.title
    assert finding.location is not None
    assert (finding.location.file, finding.location.line) == (TRAIN, 32)
    comparison = finding.evidence.comparison
    assert comparison is not None
    assert [(side.ranks, side.cells[comparison.mark]) for side in comparison.sides] == [
        ((0, 1), "y = a * 2"),
        ((2,), "b = a.sin()"),
    ]


def test_shapes_that_differ_are_a_divergence(tmp_path: Path) -> None:
    def odd(log: LogBuilder) -> None:
        compiled(log, text=graph("y = x + 1", size=12))

    (finding,) = diagnosed(tmp_path, compiled, odd, compiled)
    assert finding.ranks == (1,)
    assert "f32[12]" in finding.title


def test_numbers_of_devices_and_names_of_groups_are_no_divergence(tmp_path: Path) -> None:
    def on(device: str, group: str) -> Fill:
        text = graph(f"y = torch.ops._c10d_functional.all_reduce(x, 'sum', '{group}')", device=device)
        return lambda log: compiled(log, text=text)

    assert diagnosed(tmp_path, on("cuda:0", "3"), on("cuda:1", "4"), on("cuda:2", "3")) == []


def test_one_frame_more_does_not_shift_what_follows(tmp_path: Path) -> None:
    def usual(log: LogBuilder) -> None:
        compiled(log, "0/0", line=30)
        compiled(log, "1/0", line=50)

    def odd(log: LogBuilder) -> None:
        compiled(log, "0/0", line=90)
        compiled(log, "1/0", line=30)
        compiled(log, "2/0", line=50)

    (finding,) = diagnosed(tmp_path, usual, odd, usual)
    assert finding.title == "rank 1 compiled forward_90 (train.py:90), but its 2 peers did not"
    assert finding.evidence.facts["n_differing"] == 1


def test_modules_behind_one_wrapper_are_told_apart_by_their_order(tmp_path: Path) -> None:
    wrapper = Site("/site-packages/torch/_dynamo/external_utils.py", 67, "inner")

    def module(log: LogBuilder, compile_id: str, op: str) -> None:
        log.start(compile_id, (CALLER, wrapper)).graph(compile_id, graph(op))
        log.metrics(compile_id, co_name="inner", co_filename=wrapper.file, co_firstlineno=67)

    def usual(log: LogBuilder) -> None:
        module(log, "0/0", "y = x + 1")
        module(log, "1/0", "y = x + 2")

    def odd(log: LogBuilder) -> None:
        module(log, "0/0", "y = x + 1")
        module(log, "1/0", "y = x + 3")

    def again(log: LogBuilder) -> None:
        module(log, "0/0", "y = x + 1")
        module(log, "0/1", "y = x + 1")
        module(log, "1/0", "y = x + 2")

    assert diagnosed(tmp_path / "same", usual, usual, usual) == []
    (finding,) = diagnosed(tmp_path / "odd", usual, usual, odd)
    assert finding.title.startswith(
        "rank 2 compiled a different graph of the call in step (train.py:12) than its 2 peers"
    )
    assert finding.title.endswith(": y = x + 3")
    assert finding.evidence.facts["compile_id"] == "1/0"
    (finding,) = diagnosed(tmp_path / "again", usual, usual, again)
    assert finding.title == "rank 2 compiled the call in step (train.py:12) more often than its 2 peers"
    assert (finding.evidence.facts["compile_id"], finding.evidence.facts["n_differing"]) == ("0/1", 1)


def test_compiling_that_fails_on_one_rank_names_the_error(tmp_path: Path) -> None:
    def failed(log: LogBuilder) -> None:
        log.start().metrics(fail_type="RuntimeError", fail_reason="no compiler here", has_guarded_code=False)

    (finding,) = diagnosed(tmp_path, compiled, compiled, failed)
    assert (finding.title, finding.ranks) == ("compiling forward (train.py:30) failed only on rank 2", (2,))
    assert finding.evidence.likely == ("rank 2 failed with RuntimeError: no compiler here",)


def test_of_two_ranks_the_one_that_did_more_is_looked_at_but_not_called_wrong(tmp_path: Path) -> None:
    def odd(log: LogBuilder) -> None:
        compiled(log)
        log.recompile("0/1", SIZE)
        compiled(log, "0/1")

    (finding,) = diagnosed(tmp_path, odd, compiled)
    assert finding.ranks == (0,)
    assert any("counting cannot show" in text for text in finding.evidence.certain)


def test_parts_of_equal_size_are_only_noted(tmp_path: Path) -> None:
    def second_stage(log: LogBuilder) -> None:
        compiled(log, text=graph("y = x * 2"))

    (finding,) = diagnosed(tmp_path, compiled, compiled, second_stage, second_stage)
    assert (finding.severity, finding.certainty) == ("info", "possible")


def test_a_log_that_ends_within_a_compilation_is_not_held_against_its_rank(tmp_path: Path) -> None:
    def whole(log: LogBuilder) -> None:
        compiled(log)
        compiled(log, "1/0", line=50)
        compiled(log, "2/0", line=70)

    def ended(log: LogBuilder) -> None:
        compiled(log)
        log.start("1/0", (CALLER, Site(TRAIN, 50, "forward_50")))

    assert diagnosed(tmp_path, whole, ended, whole) == []


def test_runs_are_not_compared_with_each_other(tmp_path: Path) -> None:
    first, second = "2026-11-16 06:00:00", "2026-11-16 09:00:00"
    for at, rank, op in ((first, 0, "y = x + 1"), (first, 1, "y = x + 1"), (second, 0, "y = x * 2")):
        log = LogBuilder(rank, at=at)
        compiled(log, text=graph(op))
        log.write(tmp_path, f"dedicated_log_torch_trace_rank_{rank}_{at[11:13]}aaaaaa.log")
    trace = pipeline.load(tmp_path)
    assert set(trace.table("compile_logs").array("run").tolist()) == {0, 1}
    assert [finding.code for finding in pipeline.diagnose(trace).findings if finding.code in CODES] == []


def test_collectives_that_differ_are_an_error_and_all_schedules_of_a_compilation_count(tmp_path: Path) -> None:
    def rank(*second: str) -> Fill:
        def fill(log: LogBuilder) -> None:
            log.artifact("inductor_collective_schedule", [REDUCE, WAIT], "0/0")
            scheduled(log, *second)

        return fill

    usual, odd = rank(GATHER, WAIT), rank(GATHER, WAIT, SCATTER, WAIT)
    finding = only(diagnosed(tmp_path, usual, odd, usual), "C412")
    assert (finding.severity, finding.ranks) == ("error", (1,))
    assert finding.title.endswith("reduce_scatter_tensor instead of no call at position 3")
    comparison = finding.evidence.comparison
    assert comparison is not None
    assert comparison.keys == ("1", "2", "3")
    assert comparison.sides[1].cells == ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")


def test_graphs_that_differ_in_their_collectives_are_an_error(tmp_path: Path) -> None:
    def odd(log: LogBuilder) -> None:
        log.start().graph("0/0", graph("y = x.sin()"))
        log.artifact("inductor_collective_schedule", [REDUCE, WAIT], "0/0")
        log.metrics()

    findings = diagnosed(tmp_path, compiled, odd, compiled)
    assert only(findings, "C411").severity == "error"


def test_code_from_a_cache_has_no_schedule_and_is_judged_by_what_it_calls(tmp_path: Path) -> None:
    def fresh(log: LogBuilder) -> None:
        scheduled(log, REDUCE, WAIT)

    def cached(*calls: str) -> Fill:
        return lambda log: scheduled(log, code=calls)

    assert diagnosed(tmp_path / "same", fresh, cached(REDUCE, WAIT), fresh) == []
    findings = diagnosed(tmp_path / "odd", fresh, cached(GATHER, WAIT), fresh)
    assert only(findings, "C412").ranks == (1,)


def test_schedules_count_where_the_code_cannot_be_read(tmp_path: Path) -> None:
    def listed(*calls: str) -> Fill:
        return lambda log: log.start().artifact("inductor_collective_schedule", list(calls), "0/0").metrics()

    findings = diagnosed(tmp_path, listed(REDUCE), listed(GATHER), listed(REDUCE))
    assert only(findings, "C412").ranks == (1,)


def test_half_of_a_compilation_from_a_cache_is_not_compared(tmp_path: Path) -> None:
    def fresh(log: LogBuilder) -> None:
        log.artifact("inductor_collective_schedule", [GATHER, WAIT], "0/0")
        scheduled(log, REDUCE, WAIT, code=(GATHER, WAIT, REDUCE, WAIT))

    def half(log: LogBuilder) -> None:
        log.cache_event("0/0", "fx_graph_cache_hit").cache_miss("0/0", "k", {"a": "b"})
        scheduled(log, REDUCE, WAIT)

    assert diagnosed(tmp_path, fresh, half, fresh) == []


def test_waiting_at_another_moment_is_no_other_schedule(tmp_path: Path) -> None:
    def rank(*calls: str) -> Fill:
        return lambda log: scheduled(log, *calls)

    early, late = rank(REDUCE, WAIT, GATHER, WAIT), rank(REDUCE, GATHER, WAIT, WAIT)
    assert diagnosed(tmp_path, early, late, early) == []


def test_code_that_does_not_wait_for_its_collectives_is_told_once_for_all_ranks(tmp_path: Path) -> None:
    def unwaited(log: LogBuilder) -> None:
        scheduled(log, REDUCE, WAIT, GATHER, WAIT, code=(REDUCE, GATHER, WAIT))

    finding = only(diagnosed(tmp_path, unwaited, unwaited), "C418")
    assert finding.ranks == (0, 1)
    assert "does not wait for 1 of the 2 collectives it starts" in finding.title


def test_graphs_that_run_in_another_order_are_found(tmp_path: Path) -> None:
    def ran(*ids: str) -> Fill:
        def fill(log: LogBuilder) -> None:
            compiled(log, "0/0", line=30)
            compiled(log, "1/0", line=50)
            log.artifact("graph_execution", {"graph_execution_order": [{"compile_id": one} for one in ids]})

        return fill

    usual, odd = ran("0/0", "1/0", "0/0"), ran("0/0", "0/0", "1/0")
    (finding,) = diagnosed(tmp_path, usual, usual, odd)
    assert (finding.code, finding.ranks, finding.evidence.facts["position"]) == ("C419", (2,), 1)
    assert "version 0 of forward (train.py:30) instead of version 0 of forward_50 (train.py:50)" in finding.title


@pytest.mark.parametrize("n_peers", [1, 3])
def test_a_rank_that_compiles_far_longer_is_named_with_what_that_costs(tmp_path: Path, n_peers: int) -> None:
    def quick(log: LogBuilder) -> None:
        compiled(log, "0/0", seconds=1)
        log.cache_event("0/0", "fx_graph_cache_hit")
        compiled(log, "1/0", line=50, seconds=1)

    def slow(log: LogBuilder) -> None:
        compiled(log, "0/0", seconds=8)
        log.cache_miss("0/0", "key", {"gm": "graph"})
        compiled(log, "1/0", line=50, seconds=1.2)

    finding = only(diagnosed(tmp_path, *[quick] * n_peers, slow), "C413")
    assert finding.ranks == (n_peers,)
    assert finding.title == f"rank {n_peers} compiled for 9.2 s, the median rank for 2.0 s: 7.0 s of it in forward"
    assert finding.evidence.cost_ns == 7_200_000_000
    assert finding.evidence.certain == ("its compile caches missed once where those of its peers hit",)


def test_one_slow_rank_does_not_excuse_another(tmp_path: Path) -> None:
    def rank(seconds: float) -> Fill:
        return lambda log: compiled(log, seconds=seconds)

    finding = only(diagnosed(tmp_path, rank(9), rank(8.5), rank(1), rank(1)), "C413")
    assert finding.ranks == (0, 1)
    assert finding.evidence.notes == ("rank 1 compiles far longer than the median rank too",)


def test_small_and_relatively_small_differences_are_no_skew(tmp_path: Path) -> None:
    def rank(seconds: float) -> Fill:
        return lambda log: compiled(log, seconds=seconds)

    assert diagnosed(tmp_path / "short", rank(0.1), rank(0.9), rank(0.1)) == []
    assert diagnosed(tmp_path / "alike", rank(20), rank(25), rank(20)) == []


def test_a_rank_that_compiled_less_does_not_make_the_others_slow(tmp_path: Path) -> None:
    def rank(seconds: float) -> Fill:
        return lambda log: compiled(log, seconds=seconds)

    assert diagnosed(tmp_path, rank(9), rank(1), rank(9)) == []


def test_without_data_a_check_says_which_setting_gives_it(tmp_path: Path) -> None:
    for rank in (0, 1):
        log = LogBuilder(rank)
        compiled(log)
        log.write(tmp_path)
    checks = {check.rule: check for check in pipeline.diagnose(pipeline.load(tmp_path)).checks}
    names = [RULES[code].name for code in ("C412", "C418", "C419")]
    assert {checks[name].status for name in names} == {"skipped"}
    assert "record_and_log_graph_execution_order" in checks["execution-order-differs"].why


@needs_samples
def test_the_rank_with_another_schedule_in_the_sample_is_found() -> None:
    findings = pipeline.diagnose(pipeline.load(SAMPLES / "multi_rank_schedule")).findings
    finding = only(list(findings), "C412")
    assert (finding.ranks, finding.evidence.facts["compile_id"]) == ((1,), "0/0")
    assert "no call instead of reduce_scatter_tensor at position 3" in finding.title


@needs_samples
def test_identical_ranks_beside_foreign_files_give_nothing() -> None:
    findings = pipeline.diagnose(pipeline.load(SAMPLES / "multi_rank_messy_input")).findings
    assert [finding.code for finding in findings if finding.code in CODES] == []


@needs_samples
def test_missing_waits_of_the_sample_are_counted_by_compilation() -> None:
    findings = pipeline.diagnose(pipeline.load(SAMPLES / "collectives_parity")).findings
    told = {f.evidence.facts["compile_id"]: f.evidence.facts["n_missing"] for f in findings if f.code == "C418"}
    assert told == {"0/0": 1, "0/1": 3}
