"""What is in the files of the report tree. Where tlparse is known to be wrong, the test's name says how."""

from __future__ import annotations

import json
import os
import re
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest

from rankscope.pipeline import diagnose, load
from rankscope.render.compile_tree.outputs import TreeOptions
from rankscope.render.compile_tree.writer import write_tree
from rankscope.simulate.compile_log import TRAIN, USER_SITE, LogBuilder, ids_of

SAMPLES = Path(__file__).resolve().parents[4] / "shared" / "samples" / "compile_logs"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the sample logs are not here")
HOSTILE = "<script>alert(1)</script>"


def tree_of(source: Path, folder: Path, **options: Any) -> Path:
    trace = load(source, jobs=1)
    write_tree(trace, diagnose(trace), str(folder / "out"), TreeOptions(**options))
    return folder / "out"


def written(folder: Path, log: LogBuilder, **options: Any) -> Path:
    return tree_of(log.write(folder / "logs"), folder, **options)


def files_in(tree: Path) -> set[str]:
    return {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}


def raw_records(tree: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tree / "raw.jsonl").read_text("utf-8").splitlines()]


def page(tree: Path, stem: str) -> str:
    [path] = tree.rglob(f"{stem}*.html")
    return path.read_text("utf-8")


def test_all_files_that_tlparse_always_writes_are_there(tmp_path: Path) -> None:
    tree = written(tmp_path, LogBuilder().start().graph().metrics())
    assert files_in(tree) == {
        "-_0_0_0/dynamo_output_graph_0.txt",
        "-_0_0_0/compilation_metrics_1.html",
        *("index.html", "failures_and_restarts.html", "chromium_events.json", "compile_directory.json"),
        *("raw.log", "raw.jsonl"),
    }


def test_payloads_are_what_torch_logged(tmp_path: Path) -> None:
    text = "def f():\n\n\treturn '\r' \x0b\u2028 é\n"
    tree = written(tmp_path, LogBuilder().graph(text=text))
    assert (tree / "-_0_0_0/dynamo_output_graph_0.txt").read_bytes() == text.encode()


def test_json_is_laid_out_and_what_is_not_json_is_left(tmp_path: Path) -> None:
    log = LogBuilder().artifact("good", {"b": [1, 2.50], "a": "é"}, "0/0").recompile("0/1", "0/0: x == 1")
    log.record("artifact", {"name": "empty", "encoding": "json"}, "", **ids_of("0/0"))
    tree = written(tmp_path, log)
    assert (tree / "-_0_0_0/good_0.json").read_text("utf-8").startswith('{\n  "b": [\n    1,\n')
    assert (tree / "-_0_1_0/recompile_reasons_1.json").read_text() == "0/0: x == 1"
    assert (tree / "-_0_0_0/empty_2.json").read_bytes() == b""


def test_code_pages_hold_the_code_escaped_and_the_payload_beside(tmp_path: Path) -> None:
    code = f"x = 1 < 2 and '{HOSTILE}'"
    log = LogBuilder().record("inductor_output_code", {"filename": "/a/cab.py"}, code, **ids_of("0/0"))
    tree = written(tmp_path, log)
    html = page(tree, "inductor_output_code_cab_0")
    assert "x = 1 &lt; 2 and" in html
    assert HOSTILE not in html
    assert 'data-language="python"' in html
    assert (tree / f"payloads/{md5(code.encode()).hexdigest()}.txt").read_text() == code


def test_two_payloads_with_one_checksum_are_both_kept(tmp_path: Path) -> None:
    """Defect: the later one replaces the first; one of them was changed after it was logged."""
    log = LogBuilder()
    for text in ("as logged", "edited"):
        log.record("new", {}, text, has_payload=md5(b"as logged").hexdigest())
    tree = written(tmp_path, log)
    names = [record["payload_filename"] for record in raw_records(tree)[1:]]
    assert [(tree / name).read_text() for name in names] == ["as logged", "edited"]


def test_sources_have_anchors_for_their_lines(tmp_path: Path) -> None:
    tree = written(tmp_path, LogBuilder().record("dump_file", {"name": "<eval_with_key>.7"}, f"a\n{HOSTILE}\nc"))
    html = (tree / "dump_file/eval_with_key_7.html").read_text()
    assert '<span class="line" id="L3" data-n="3">c</span>' in html
    assert HOSTILE not in html


def test_guards_pages_show_code_and_stacks_which_tlparse_drops(tmp_path: Path) -> None:
    stack = [{"line": 3, "name": "f", "filename": "a.py", "loc": HOSTILE}]
    guards = [{"code": "x < 1", "user_stack": stack, "stack": None}, {"code": None}]
    log = LogBuilder().record("dynamo_guards", {}, json.dumps(guards), **ids_of("0/0"))
    html = page(written(tmp_path, log), "dynamo_guards")
    assert "<code>x &lt; 1</code>" in html
    assert "a.py:3 in f" in html
    assert HOSTILE not in html


def test_metrics_pages_show_every_field(tmp_path: Path) -> None:
    """Defect: 23 of 99 fields are shown, and none of the runtime's records."""
    log = LogBuilder().start().metrics(brand_new_field="seen", nothing=None, dynamo_config='{"verify": true}' * 30)
    log.metrics(kind="compilation_metrics_runtime", runtime_triton_autotune_time_us=1_500_000)
    tree = written(tmp_path, log)
    html = page(tree, "compilation_metrics_0")
    for name in ("brand_new_field", "nothing", "dynamo_config", "co_name", "guard_latency_us"):
        assert name in html
    assert "loss = model(x)" in html  # of the stack
    assert "1.5 s" in page(tree, "compilation_metrics_runtime_0a")


def test_tlparse_defect_6_guards_of_every_attempt_are_shown_not_only_of_the_first(tmp_path: Path) -> None:
    """Defect: guards and specializations of attempt 1 and later, or logged behind the metrics, are never shown."""
    log = LogBuilder().start()
    for attempt in (0, 1):
        metadata = {"expr": f"Eq(s0, {attempt})", "user_stack": log.frames([USER_SITE]), "stack": []}
        log.record("guard_added_fast", metadata, **ids_of("0/0", attempt))
    log.metrics()
    metadata = {"symbol": "s9", "sources": ["L['x']"], "value": "48", "reason": HOSTILE, "stack": [], "user_stack": []}
    log.record("symbolic_shape_specialization", metadata, **ids_of("0/0", 1))
    html = page(written(tmp_path, log), "compilation_metrics")
    assert "Eq(s0, 0)" in html
    assert "Eq(s0, 1)" in html
    assert "s9" in html
    assert HOSTILE not in html


def test_metrics_pages_say_why_a_function_was_compiled_again(tmp_path: Path) -> None:
    log = LogBuilder().start("0/0").metrics("0/0").start("0/1")
    log.recompile("0/1", "0/0: tensor 'x' size mismatch at index 0. expected 4, actual 5")
    html = page(written(tmp_path, log.metrics("0/1")), "compilation_metrics_2")
    assert "Why it was recompiled" in html
    assert "<td>5</td>" in html


def test_metrics_pages_link_the_files_of_the_compilation(tmp_path: Path) -> None:
    """Defect: on this page the address of a link is mangled."""
    log = LogBuilder().record("link", {"name": "job", "url": "https://example.org/a/b"}, **ids_of("0/0")).graph()
    html = page(written(tmp_path, log.metrics()), "compilation_metrics")
    assert 'href="https://example.org/a/b"' in html
    assert 'href="../-_0_0_0/dynamo_output_graph_1.txt"' in html


def test_tlparse_defect_13_restart_reasons_are_escaped_and_have_a_source(tmp_path: Path) -> None:
    """Defects: a reason runs as script; empty reasons make empty rows; no source is shown."""
    log = LogBuilder().start().graph_break("0/0", TRAIN, 77, "item()")
    log.metrics(restart_reasons=[HOSTILE, "", "  "])
    html = page(written(tmp_path, log), "failures_and_restarts")
    assert HOSTILE not in html
    assert "&lt;script&gt;" in html
    assert html.count("<tr>") == 2  # the heading and one restart
    assert f"{TRAIN}:77 in forward" in html


def test_tlparse_defect_16_a_backend_failure_has_the_place_of_the_logged_error(tmp_path: Path) -> None:
    """Defect: its source is shown as N/A:0."""
    trace = (
        f'Traceback (most recent call last):\n  File "{TRAIN}", line 41, in my_backend\n    raise X\nRuntimeError: no'
    )
    log = LogBuilder().start().artifact("dynamo_error", trace, "0/0")
    log.metrics(fail_type="BackendCompilerFailed", fail_reason="no")
    html = page(written(tmp_path, log), "failures_and_restarts")
    assert f"{TRAIN}:41 in my_backend" in html
    assert "N/A" not in html


def test_tlparse_defect_12_a_failure_without_a_reason_is_a_row_and_not_the_end(tmp_path: Path) -> None:
    """Defect: the whole run aborts."""
    tree = written(tmp_path, LogBuilder().start().metrics(fail_type="Unsupported").graph("1/0"))
    assert "Unsupported" in page(tree, "failures_and_restarts")
    assert (tree / "-_1_0_0/dynamo_output_graph_1.txt").exists()


def test_compile_directory_lists_every_compilation(tmp_path: Path) -> None:
    log = LogBuilder().start("0/0").cache_event("0/0", "fx_graph_cache_miss").start("1/0")
    listed = json.loads((written(tmp_path, log) / "compile_directory.json").read_text("utf-8"))
    name = "fx_graph_cache_miss_0.json"
    entry = {"url": f"-_0_0_0/{name}", "name": name, "number": 0, "suffix": "❌", "readable_url": None}
    assert listed == {"[0/0]": {"artifacts": [entry]}, "[1/0]": {"artifacts": []}}


def test_raw_jsonl_has_the_header_the_origin_and_the_payload_of_each_record(tmp_path: Path) -> None:
    log = LogBuilder(at="2019-03-01 12:00:00", zone=2).start().graph().record("new", {"a": 1}, "x").chromium("dynamo")
    strings, start, graph, new = raw_records(written(tmp_path, log))
    assert strings == {"string_table": [TRAIN]}
    assert start["dynamo_start"]["stack"][0]["line"] == 12
    assert graph["payload_filename"] == "-_0_0_0/dynamo_output_graph_0.txt"
    assert (graph["thread"], graph["pathname"], graph["lineno"]) == (4711, "torch/_dynamo/utils.py", 2350)
    assert new["payload_filename"] == f"payloads/{md5(b'x').hexdigest()}.txt"


def test_tlparse_defect_15_raw_jsonl_has_the_year_and_zone_of_the_job_not_of_today(tmp_path: Path) -> None:
    """Defect: local time of the current year, marked as UTC."""
    log = LogBuilder(at="2019-03-01 12:00:00", zone=2).graph().chromium("dynamo")
    assert raw_records(written(tmp_path, log))[1]["timestamp"] == "2019-03-01T10:00:00.000000Z"


def test_raw_jsonl_leaves_the_zone_open_where_nothing_tells_it(tmp_path: Path) -> None:
    assert not raw_records(written(tmp_path, LogBuilder().graph()))[1]["timestamp"].endswith("Z")


def test_raw_jsonl_keeps_records_that_have_our_keys_themselves(tmp_path: Path) -> None:
    """Defect: a key conflict drops the record."""
    log = LogBuilder().record("odd", {}, "x", timestamp="mine", lineno=3)
    [_, record] = raw_records(written(tmp_path, log))
    assert (record["timestamp"], record["lineno"], record["thread"]) == ("mine", 3, 4711)
    assert record["payload_filename"].startswith("payloads/")


def test_tlparse_defect_11_records_of_unexpected_shape_are_kept(tmp_path: Path) -> None:
    """Defect: a size that is a text, a line that is null or a file -1 drop the whole record."""
    log = LogBuilder().record("describe_storage", {"id": 0, "describer_id": 0, "size": "8*s0"})
    log.record("dynamo_start", {"stack": [{"line": None, "name": "f", "filename": -1}]}, **ids_of("0/0"))
    log.metrics(start_time="soon", restart_reasons=None)
    tree = written(tmp_path, log)
    assert [next(iter(record)) for record in raw_records(tree)[1:]] == [
        *("describe_storage", "dynamo_start", "compilation_metrics")
    ]
    assert "soon" in page(tree, "compilation_metrics")


def test_what_is_no_record_is_told_in_raw_jsonl(tmp_path: Path) -> None:
    log = LogBuilder().graph().raw(b"Segmentation fault \xff\n").graph("0/1")
    assert [record for record in raw_records(written(tmp_path, log)) if "unparsed" in record] == [
        {"unparsed": "Segmentation fault \ufffd"}
    ]


def test_tlparse_defect_10_an_invalid_byte_costs_nothing_else(tmp_path: Path) -> None:
    """Defect: one byte that is no UTF-8 and nothing is written at all."""
    payload = b"bad \xff byte"
    log = LogBuilder().record("aot_joint_graph", {}, payload, **ids_of("0/0"))
    log.record("inductor_output_code", {}, payload, **ids_of("0/0")).record("dump_file", {"name": "x"}, payload)
    log.record("dynamo_guards", {}, payload, **ids_of("0/0")).metrics()
    tree = written(tmp_path, log)
    assert (tree / "-_0_0_0/aot_joint_graph_0.txt").read_bytes() == payload
    assert (tree / "raw.log").read_bytes() == log.content()


@pytest.mark.parametrize("depth", [500, 20_000])
def test_very_deep_json_is_written_as_it_is(tmp_path: Path, depth: int) -> None:
    deep = "[" * depth + "]" * depth
    log = LogBuilder().record("artifact", {"name": "deep", "encoding": "json"}, deep, **ids_of("0/0"))
    log.record("dynamo_guards", {}, deep, **ids_of("0/0")).metrics()
    log.line(f'{{"compilation_metrics": {{"deep": {deep}}}, "frame_id": 1, "frame_compile_id": 0, "attempt": 0}}')
    tree = written(tmp_path, log.graph("2/0"))
    assert (tree / "-_0_0_0/deep_0.json").read_text().replace("\n", "").replace(" ", "") == deep
    assert list((tree / "-_2_0_0").iterdir())


def test_metrics_that_are_no_strict_json_are_shown(tmp_path: Path) -> None:
    log = LogBuilder().metrics(start_time=float("nan"), cache_size=float("inf"), co_name="\ud800", duration_us=1e400)
    assert "cache_size" in page(written(tmp_path, log), "compilation_metrics")


def test_a_log_with_converted_line_ends_gives_the_payloads_as_they_were(tmp_path: Path) -> None:
    """Defect: line ends are taken off one by one, and the checksums of payloads that hold CRLF fail."""
    source = tmp_path / "logs" / "dedicated_log_torch_trace_x.log"
    source.parent.mkdir()
    source.write_bytes(LogBuilder().graph(text="a\nb").metrics().content().replace(b"\n", b"\r\n"))
    tree = tree_of(source, tmp_path)
    assert (tree / "-_0_0_0/dynamo_output_graph_0.txt").read_bytes() == b"a\nb"
    own = tree_of(LogBuilder().graph(text="a\r\nb").write(tmp_path / "own"), tmp_path / "second")
    assert (own / "-_0_0_0/dynamo_output_graph_0.txt").read_bytes() == b"a\r\nb"


def test_tlparse_defect_13_nothing_is_written_outside_of_the_tree(tmp_path: Path) -> None:
    """Defect: an artifact called ../../../x is written outside of the report."""
    log = LogBuilder()
    for name in ("../../../escaped", "/escaped", "a/../../escaped"):
        log.artifact(name, "x", "0/0").record("dump_file", {"name": name}, "x").record(
            "graph_dump", {"name": name}, "x"
        )
        log.record("unknown_kind", {}, "x", has_payload=name)
    tree = written(tmp_path / "deep" / "er", log)
    outside = [path for path in tmp_path.rglob("*escaped*") if tree not in path.parents]
    assert not outside
    assert not os.path.lexists("/escaped")
    assert len([path for path in tree.rglob("*escaped*") if path.is_file()]) == 9


def test_nothing_from_the_log_can_run_in_a_page(tmp_path: Path) -> None:
    log = LogBuilder().start("0/0", [USER_SITE._replace(file=HOSTILE, function=HOSTILE, code=HOSTILE)])
    log.artifact(HOSTILE, HOSTILE, "0/0").record("dump_file", {"name": HOSTILE}, HOSTILE)
    log.record("link", {"name": HOSTILE, "url": "javascript:alert(1)"}, **ids_of("0/0"))
    fields: dict[str, Any] = {"co_name": HOSTILE, HOSTILE: HOSTILE, "restart_reasons": [HOSTILE], "fail_type": HOSTILE}
    tree = written(tmp_path, log.metrics(**fields))
    for path in tree.rglob("*.html"):
        html = path.read_text("utf-8")
        assert HOSTILE not in html, path
        assert "javascript:" not in html, path
        assert not re.search(r"<[^>]+ (on\w+|style)=", html), path


def test_records_without_a_rank_are_in_the_report_of_their_rank(tmp_path: Path) -> None:
    """Defect: the version of torch is dropped from every distributed report."""
    tree = written(tmp_path, LogBuilder(rank=2).graph().torch_version())
    version = json.loads((tree / "-_-_-_-/torch_version_0a.json").read_text())
    assert version["pytorch_version"] == "2.13.0+cpu"
    assert raw_records(tree)[-1]["payload_filename"] == "-_-_-_-/torch_version_0a.json"


def test_strings_of_one_rank_do_not_reach_another(tmp_path: Path) -> None:
    """Defect: the table of strings is shared by all ranks of a run."""
    for rank, file in enumerate(("/job/a.py", "/job/b.py")):
        LogBuilder(rank=rank).start("0/0", [USER_SITE._replace(file=file)]).metrics().write(tmp_path / "logs")
    tree = tree_of(tmp_path / "logs", tmp_path)
    tables = [raw_records(tree / f"rank_{rank}")[0]["string_table"] for rank in (0, 1)]
    assert tables == [["/job/a.py"], ["/job/b.py"]]


def test_a_huge_string_number_does_not_make_a_huge_table(tmp_path: Path) -> None:
    log = LogBuilder().record("str", ["a.py", 2**40]).record("str", ["b.py", 0]).record("str", "odd").graph()
    table = raw_records(written(tmp_path, log))[0]["string_table"]
    assert table[0] == "b.py"
    assert len(table) < 2000


def test_two_logs_of_a_rank_are_one_tree(tmp_path: Path) -> None:
    """Defect: one of them overwrites the other silently."""
    logs = [LogBuilder(rank=0, pid=pid).graph(text=str(pid)).metrics() for pid in (1, 2)]
    for log in logs:
        log.write(tmp_path / "logs" / str(log.pid))
    tree = tree_of(tmp_path / "logs", tmp_path)
    assert (tree / "-_0_0_0/dynamo_output_graph_0.txt").read_text() == "1"
    assert (tree / "-_0_0_0/dynamo_output_graph_2.txt").read_text() == "2"
    assert (tree / "raw.log").read_bytes() == b"".join(log.content() for log in logs)
    assert sum("string_table" in record for record in raw_records(tree)) == 2


def test_a_stream_that_two_ranks_wrote_to_is_two_trees(tmp_path: Path) -> None:
    lines = []
    for rank in (0, 1):
        log = LogBuilder(rank).start("0/0", [USER_SITE._replace(function=f"step{rank}")]).graph(text=f"graph {rank}")
        lines += [f"[rank{rank}]:{line}\n" for line in log.metrics(co_name=f"f{rank}").content().decode().splitlines()]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "job.log").write_text("".join(lines))
    tree = tree_of(tmp_path / "logs", tmp_path)
    for rank in (0, 1):
        own = tree / f"rank_{rank}"
        assert (own / "-_0_0_0/dynamo_output_graph_0.txt").read_text() == f"graph {rank}"
        html = page(own, "compilation_metrics")
        assert f"in step{rank}" in html
        assert f"in step{1 - rank}" not in html
        assert len(raw_records(own)) == 4


def test_the_same_log_gives_the_same_files(tmp_path: Path) -> None:
    log = LogBuilder().start().graph().cache_event("0/0", "fx_graph_cache_hit").span("dynamo", 1.0).metrics()
    first, second = written(tmp_path / "a", log), written(tmp_path / "b", log)
    for name in files_in(first) - {"index.html"}:  # which names the log's own place
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


@needs_samples
@pytest.mark.parametrize("name", ["simple.log", "simple_corrupted_json.log"])
def test_simple_sample_has_its_seven_files_and_fifteen_raw_lines(tmp_path: Path, name: str) -> None:
    tree = tree_of(SAMPLES / name, tmp_path)
    stems = {re.sub(r"_\d+\.\w+$", "", path.name) for path in (tree / "-_0_0_0").iterdir()}
    known = ("dynamo_output_graph", "aot_inference_graph", "inductor_post_grad_graph", "compilation_metrics")
    assert {*known, "aotautograd_cache_hash", "dynamo_cpp_guards_str"} <= stems
    assert any(stem.startswith("inductor_output_code") for stem in stems)
    assert len(raw_records(tree)) == 15
    assert "string_table" in raw_records(tree)[0]


@needs_samples
def test_metrics_sample_has_its_payloads_and_restarts(tmp_path: Path) -> None:
    tree = tree_of(SAMPLES / "comp_metrics.log", tmp_path)
    assert sorted(name.split("/")[1][:8] for name in files_in(tree) if name.startswith("payloads/")) == [
        *("11726d08", "29e35548", "e18e1bcb")
    ]
    records = raw_records(tree)
    assert len(records) == 13
    assert all((tree / record["payload_filename"]).is_file() for record in records if "payload_filename" in record)
    assert page(tree, "failures_and_restarts").count("<td>restart</td>") == 2


@needs_samples
def test_failure_sample_has_its_row(tmp_path: Path) -> None:
    tree = tree_of(SAMPLES / "comp_failure.log", tmp_path)
    assert page(tree, "failures_and_restarts").count("<td>failure</td>") == 1
