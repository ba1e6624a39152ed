"""The report on an export. Record shapes are those that torch 2.13 writes with TORCH_DTRACE."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from rankscope.model.tables import Trace
from rankscope.pipeline import diagnose, load
from rankscope.render.compile_tree.export_page import write_export
from rankscope.render.compile_tree.outputs import TreeOptions, plan_ranks
from rankscope.simulate.compile_log import LogBuilder, Site
from read.compile_log_reading import load_logs

SAMPLES = Path(__file__).resolve().parents[4] / "shared" / "samples" / "compile_logs"
MODEL = Site("/job/model.py", 17, "forward", "if z.shape[0] * 2 > 10:")
TORCH = Site("/site-packages/torch/nn/modules/module.py", 1789, "_call_impl", "return forward_call(*args, **kwargs)")


def written(trace: Trace, folder: Path) -> dict[str, str]:
    options = TreeOptions(export=True)
    [tree] = plan_ranks(trace, options)
    paths = write_export(trace, diagnose(trace), tree, str(folder / "out"), options)
    return {path: (folder / "out" / path).read_text("utf-8") for path in paths}


def visible(page: str) -> str:
    body = page.partition("<body>")[2]
    return unescape(re.sub(r"<[^>]+>", "", body))


def guard(log: LogBuilder, expression: str, kind: str = "guard_added", **fields: Any) -> LogBuilder:
    stacks = {"user_stack": log.frames([TORCH, MODEL]), "stack": log.frames([TORCH, MODEL])}
    more = {"prefix": "eval"} if kind == "guard_added" else {"result": "True"}
    return log.record(kind, {"expr": expression, "expr_node_id": 7, **stacks, **more, **fields})


def created(log: LogBuilder, number: int, result: str, *parts: int) -> LogBuilder:
    values = {"method": "gt", "result": result, "result_id": number, "arguments": ["u0", "3"], "argument_ids": [*parts]}
    return log.record("expression_created", {**values, "user_stack": log.frames([MODEL]), "stack": log.frames([TORCH])})


def program(log: LogBuilder) -> LogBuilder:
    return log.record("exported_program", {}, "ExportedProgram:\n    class GraphModule: ...")


def test_an_export_without_problems_says_so_and_has_its_program(tmp_path: Path) -> None:
    files = written(load_logs(tmp_path, program(LogBuilder())), tmp_path)
    assert sorted(files) == ["-_-_-_-/exported_program_0.txt", "index.html"]
    assert "No problems found" in files["index.html"]
    assert files["-_-_-_-/exported_program_0.txt"].startswith("ExportedProgram:\n    class")


def test_a_log_without_an_export_is_no_success(tmp_path: Path) -> None:
    page = written(load_logs(tmp_path, LogBuilder().start("0/0")), tmp_path)["index.html"]
    assert "no record of an export" in page
    assert "TORCH_DTRACE" in page
    assert "No problem" not in page


def test_an_export_that_gave_no_program_is_no_success(tmp_path: Path) -> None:
    page = written(load_logs(tmp_path, LogBuilder().record("export", {}, "start!")), tmp_path)["index.html"]
    assert "no exported program" in page
    assert "No problem" not in page


@pytest.mark.parametrize(
    ("kind", "metadata", "title", "words"),
    [
        (
            "missing_fake_kernel",
            {"op": "lib.op.default"},
            "Missing Fake Kernel",
            "torch.ops.lib.op.default has no fake",
        ),
        (
            "mismatched_fake_kernel",
            {"op": "lib.op.default", "reason": "sizes differ"},
            "Mismatched Fake Kernel",
            "and the real kernel return different results: sizes differ",
        ),
        (
            "guard_on_data_dependent_error",
            {"expr": "u0 > 3", "unhinted_expr": "u0 > 3", "expr_id": 7, "stack": []},
            "Data Dependent Guard",
            "u0 > 3 depends on data",
        ),
    ],
)
def test_every_kind_of_problem_has_its_row(
    tmp_path: Path, kind: str, metadata: dict[str, Any], title: str, words: str
) -> None:
    page = visible(written(load_logs(tmp_path, program(LogBuilder().record(kind, metadata))), tmp_path)["index.html"])
    assert "1 problem found" in page
    assert title in page
    assert words in page


def test_guards_have_pages_numbered_with_the_programs(tmp_path: Path) -> None:
    log = guard(program(guard(LogBuilder(), "Eq(s0, 3)")), "u0 > 3", "propagate_real_tensors_provenance")
    files = written(load_logs(tmp_path, log), tmp_path)
    assert sorted(files) == [
        "-_-_-_-/exported_program_1.txt",
        "-_-_-_-/symbolic_guard_information_0.html",
        "-_-_-_-/symbolic_guard_information_2.html",
        "index.html",
    ]
    index = files["index.html"]
    assert 'href="-_-_-_-/symbolic_guard_information_0.html"' in index
    assert "Guard Evaluated" in index
    assert "It was assumed to be True" in visible(index)
    assert "/job/model.py:17 in forward" in visible(index)


def test_guards_that_were_stated_but_not_evaluated_are_no_problems(tmp_path: Path) -> None:
    files = written(load_logs(tmp_path, program(guard(LogBuilder(), "u0 >= 0", prefix="runtime_assert"))), tmp_path)
    assert "No problems found" in files["index.html"]
    assert len(files) == 2


def test_tlparse_defect_4_a_record_that_it_cannot_parse_is_no_success(tmp_path: Path) -> None:
    """torch 2.13 has lists of texts as local variables. Files that tlparse numbers keep their numbers."""
    variables = {"loc": "if ...", "locals": {"z": ["Tensor(shape: [u0])"], "n": None}, "symbols": {"s1": "L['y']"}}
    log = guard(LogBuilder(), "2*u0 > 10", "propagate_real_tensors_provenance", frame_locals=variables)
    files = written(load_logs(tmp_path, program(log)), tmp_path)
    assert "1 problem found" in files["index.html"]
    [page] = [content for path, content in files.items() if "symbolic_guard_information_record_" in path]
    assert "z: Tensor(shape: [u0])" in visible(page)
    assert "s1: L['y']" in visible(page)
    assert "-_-_-_-/exported_program_0.txt" in files


@pytest.mark.parametrize("value", ["null", "3", '["a"]', '"text"'])
def test_a_problem_of_an_unknown_shape_is_shown_as_unreadable(tmp_path: Path, value: str) -> None:
    log = program(LogBuilder().line(f'{{"missing_fake_kernel": {value}}}'))
    assert "Unreadable Record" in written(load_logs(tmp_path, log), tmp_path)["index.html"]


def test_a_damaged_record_about_a_problem_is_shown_as_unreadable(tmp_path: Path) -> None:
    log = program(LogBuilder().line('{"propagate_real_tensors_provenance": {"expr": "u0 > 3", "res'))
    page = written(load_logs(tmp_path, log), tmp_path)["index.html"]
    assert "Unreadable Record" in page
    assert "u0 &gt; 3" in page


def test_nothing_follows_from_a_log_with_damaged_records(tmp_path: Path) -> None:
    page = written(load_logs(tmp_path, program(LogBuilder().line('{"describe_tensor": {"id'))), tmp_path)["index.html"]
    assert "a problem may be in the lost part" in page
    assert "No problems found" not in page


def test_a_guard_page_tells_how_the_expression_was_computed(tmp_path: Path) -> None:
    log = LogBuilder()
    log.record(
        "create_unbacked_symbol", {"symbol": "u0", "node_id": 5, "vr": "[0, 1]", "user_stack": log.frames([MODEL])}
    )
    guard(created(log, 7, "u0 > 3", 5), "u0 > 3", "propagate_real_tensors_provenance")
    created(log, 7, "the id is used again", 5)
    page = visible(written(load_logs(tmp_path, log), tmp_path)["-_-_-_-/symbolic_guard_information_0.html"])
    computed = page.partition("How it was computed")[2]
    assert "u0 > 3 = gt(u0, 3)" in computed
    assert "u0 = a value from the data /job/model.py:17" in computed
    assert "used again" not in page


def test_expressions_in_circles_and_without_end_are_bounded(tmp_path: Path) -> None:
    log = LogBuilder()
    for number in range(7, 1_000):
        created(log, number, f"<e{number}>", number + 1, 7)
    files = written(load_logs(tmp_path, guard(log, "e", "propagate_real_tensors_provenance")), tmp_path)
    page = visible(files["-_-_-_-/symbolic_guard_information_0.html"])
    assert page.count("<e7> =") == 1
    assert "<e30> =" in page
    assert "<e900> =" not in page


def test_nothing_of_a_log_runs_in_the_pages(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    log = created(LogBuilder(), 7, evil)
    guard(log, evil, "propagate_real_tensors_provenance", result=evil, frame_locals={"locals": {evil: evil}})
    log.record("missing_fake_kernel", {"op": evil}).record("mismatched_fake_kernel", {"op": evil, "reason": evil})
    for page in written(load_logs(tmp_path, program(log)), tmp_path).values():
        assert "<script>alert" not in page


def test_two_logs_of_a_rank_are_numbered_on(tmp_path: Path) -> None:
    logs = [program(guard(LogBuilder(rank=0, pid=pid), "Eq(s0, 3)")) for pid in (1, 2)]
    files = written(load_logs(tmp_path, *logs), tmp_path)
    assert sorted(files) == [
        "-_-_-_-/exported_program_1.txt",
        "-_-_-_-/exported_program_3.txt",
        "-_-_-_-/symbolic_guard_information_0.html",
        "-_-_-_-/symbolic_guard_information_2.html",
        "index.html",
    ]


def test_pages_that_tlparse_does_not_have_are_kept_apart_by_log(tmp_path: Path) -> None:
    kind = "guard_on_data_dependent_error"
    logs = [LogBuilder(rank=0, pid=pid).record(kind, {"expr": f"u{pid} > 3"}) for pid in (1, 2)]
    files = written(load_logs(tmp_path, *logs), tmp_path)
    found = [visible(page) for path, page in files.items() if path != "index.html"]
    assert sorted(re.findall(r"Where (\S+) > 3", "".join(found))) == ["u1", "u2"]


@pytest.mark.skipif(not SAMPLES.exists(), reason="the samples are not beside the repository")
def test_files_and_rows_of_the_sample_are_those_of_tlparse(tmp_path: Path) -> None:
    files = written(load(SAMPLES / "export.log", jobs=1), tmp_path)
    assert sorted(files) == [
        "-_-_-_-/exported_program_1.txt",
        "-_-_-_-/symbolic_guard_information_0.html",
        "index.html",
    ]
    index = visible(files["index.html"])
    assert "1 problem found" in index
    assert "Eq((((-u0)//3)) + 5, 0)" in index
    assert "Data Dependent Error" in index
