"""Names and numbers of the files in the report tree: tlparse's, and safe ones whatever the log says."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.pipeline import load
from rankscope.render.compile_tree.outputs import (
    Output,
    TreeOptions,
    labels_of,
    link_target,
    plan_outputs,
    plan_ranks,
    records_of,
    safe_name,
)
from rankscope.simulate.compile_log import LogBuilder, ids_of

SAMPLES = Path(__file__).resolve().parents[4] / "shared" / "samples" / "compile_logs"
DEFAULTS = TreeOptions()
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the sample logs are not here")


def planned(path: Path, options: TreeOptions = DEFAULTS) -> list[Output]:
    trace = load(path, jobs=1)
    return plan_outputs(trace, records_of(trace, [0]), options)


def paths_of(folder: Path, log: LogBuilder, options: TreeOptions = DEFAULTS) -> list[str]:
    return [output.path for output in planned(log.write(folder), options)]


def test_one_counter_numbers_all_files_of_a_log(tmp_path: Path) -> None:
    log = LogBuilder().torch_version().start().graph()
    log.record("aot_joint_graph", {}, "graph", **ids_of("0/0", 1))
    log.record("inductor_output_code", {"filename": "/tmp/ab/cdef.py"}, "code", **ids_of("!2/0/1"))
    log.record("optimize_ddp_split_child", {"name": "submod_0"}, "graph", **ids_of("!2")).metrics()
    assert paths_of(tmp_path, log) == [
        "-_-_-_-/torch_version_0.json",
        "-_0_0_0/dynamo_output_graph_1.txt",
        "-_0_0_1/aot_joint_graph_2.txt",
        "2_0_1_0/inductor_output_code_cdef_3.html",
        "2_-_-_0/optimize_ddp_split_child_submod_0_4.txt",
        "-_0_0_0/compilation_metrics_5.html",
    ]


def test_labels_are_those_of_tlparse(tmp_path: Path) -> None:
    log = LogBuilder().graph("0/0").record("aot_joint_graph", {}, "", **ids_of("0/0", 2))
    log.record("aot_joint_graph", {}, "", **ids_of("!2/0/1")).record("aot_joint_graph", {}, "", **ids_of("!2"))
    log.torch_version().start("7/0")
    trace = load(log.write(tmp_path), jobs=1)
    assert list(labels_of(records_of(trace, [0]))) == ["[0/0]", "[0/0_2]", "[!2/0/1]", "[!2/-/-]", "[-/-]", "[7/0]"]


def test_links_use_up_a_number(tmp_path: Path) -> None:
    log = LogBuilder().record("link", {"name": "scuba", "url": "https://example.org/x"}, **ids_of("0/0")).graph()
    link, graph = planned(log.write(tmp_path))
    assert (link.name, link.number, link.path, link_target(link)) == ("scuba", 0, "", "https://example.org/x")
    assert graph.path == "-_0_0_0/dynamo_output_graph_1.txt"


@pytest.mark.parametrize("url", ["javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", 7, None])
def test_links_that_run_something_are_not_followed(tmp_path: Path, url: object) -> None:
    [link] = planned(LogBuilder().record("link", {"name": "x", "url": url}, **ids_of("0/0")).write(tmp_path))
    assert link_target(link) == ""


def test_a_readable_twin_uses_up_a_number(tmp_path: Path) -> None:
    name = "inductor_provenance_tracking_kernel_stack_traces"
    log = LogBuilder().artifact(name, {"kernel": ["a"]}, "0/0")
    log.record("artifact", {"name": name, "encoding": "json"}, "", **ids_of("0/0")).graph()
    with_twin, empty, graph = planned(log.write(tmp_path))
    assert with_twin.path == f"-_0_0_0/{name}_0.json"
    assert (with_twin.readable, with_twin.number) == (f"-_0_0_0/{name}_0_readable.html", 1)
    assert (empty.path, empty.readable) == (f"-_0_0_0/{name}_2.json", "")
    assert graph.path == "-_0_0_0/dynamo_output_graph_3.txt"


def test_what_tlparse_drops_moves_no_number(tmp_path: Path) -> None:
    """Defect: once a rank is known, records without one (torch_version) are dropped from its report."""
    log = LogBuilder(rank=1).graph("0/0").torch_version().graph("0/1")
    log.record("artifact", {"name": "odd", "encoding": "base64"}, "x", **ids_of("0/1"))
    log.metrics("0/1", kind="compilation_metrics_runtime").metrics("0/1")
    assert paths_of(tmp_path, log) == [
        "-_0_0_0/dynamo_output_graph_0.txt",
        "-_-_-_-/torch_version_0a.json",
        "-_0_1_0/dynamo_output_graph_1.txt",
        "-_0_1_0/odd_1a.txt",
        "-_0_1_0/compilation_metrics_runtime_1b.html",
        "-_0_1_0/compilation_metrics_2.html",
    ]


def test_records_before_the_rank_was_known_are_numbered(tmp_path: Path) -> None:
    log = LogBuilder().torch_version().graph("0/0")
    log.rank = 3
    log.graph("0/1")
    names = [Path(path).name for path in paths_of(tmp_path, log)]
    assert names == ["torch_version_0.json", "dynamo_output_graph_1.txt", "dynamo_output_graph_2.txt"]


def test_runtime_metrics_without_an_attempt_lie_with_their_compilation(tmp_path: Path) -> None:
    log = LogBuilder().record("compilation_metrics_runtime", {}, None, frame_id=0, frame_compile_id=1)
    [output] = planned(log.write(tmp_path))
    assert (output.path, output.label) == ("-_0_1_0/compilation_metrics_runtime_0a.html", "[0/1]")


def test_guards_that_are_not_json_use_up_no_number(tmp_path: Path) -> None:
    log = LogBuilder().record("dynamo_guards", {}, "not json", **ids_of("0/0"))
    log.record("dynamo_guards", {}, '[{"code": "x"}]', **ids_of("0/0"))
    assert paths_of(tmp_path, log) == ["-_0_0_0/dynamo_guards_0a.html", "-_0_0_0/dynamo_guards_0.html"]


def test_tlparse_defect_18_unknown_kinds_are_listed_with_their_compilation(tmp_path: Path) -> None:
    log = LogBuilder().graph().record("brand_new", {"a": 1}, "text", **ids_of("0/0")).record("empty_new", {})
    _, output = planned(log.write(tmp_path))
    assert (output.how, output.name, output.label, output.number) == ("unknown", "brand_new", "[0/0]", 0)
    assert output.path == f"payloads/{output.row['md5']}.txt"


@pytest.mark.parametrize(("sign", "word"), [("❌", "miss"), ("✅", "hit"), ("❓", "bypass")])
def test_cache_outcomes_have_their_sign(tmp_path: Path, sign: str, word: str) -> None:
    [output] = planned(LogBuilder().cache_event("0/0", f"fx_graph_cache_{word}").write(tmp_path))
    assert output.suffix == sign


def test_plain_text_makes_code_a_text_file(tmp_path: Path) -> None:
    log = LogBuilder().record("inductor_output_code", {}, "code", **ids_of("0/0"))
    assert paths_of(tmp_path, log, TreeOptions(plain_text=True)) == ["-_0_0_0/inductor_output_code_0.txt"]


@pytest.mark.parametrize(
    "name",
    ["../../../x", "/etc/passwd", "..", ".", "", "a\0b", "a\nb", "\\\\host\\share", "\ud800", "x" * 5000, "é" * 300],
)
def test_a_name_from_the_log_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    """Defect: an artifact called ../../../x is written outside of the report."""
    log = LogBuilder().artifact(name, "text", "0/0").record("dump_file", {"name": name}, "x")
    log.record("graph_dump", {"name": name}, "x", has_payload=f"../{name}").record("new", {}, "x", has_payload=name)
    log.record("inductor_output_code", {"filename": name}, "x").record("optimize_ddp_split_child", {"name": name}, "x")
    outputs = planned(log.write(tmp_path))
    assert len(outputs) == 6
    for output in outputs:
        folder, slash, base = output.path.partition("/")
        assert slash
        assert folder in ("-_0_0_0", "-_-_-_-", "dump_file", "payloads")
        assert base.strip(".")
        assert not {"/", "\\", "\0", "\n"} & set(base)
        assert len(base.encode()) <= 255


def test_safe_names_keep_what_is_harmless() -> None:
    assert safe_name("torch._functorch.config") == "torch._functorch.config"
    assert safe_name("vllm <piecewise> é") == "vllm <piecewise> é"


def test_links_in_pages_are_quoted(tmp_path: Path) -> None:
    [output] = planned(LogBuilder().artifact("50% of #1?", "x", "0/0").write(tmp_path))
    assert link_target(output, "../") == "../-_0_0_0/50%25%20of%20%231%3F_0.txt"


def test_sources_of_a_second_log_do_not_replace_those_of_the_first(tmp_path: Path) -> None:
    """A forked child writes a log of its own, and counts its generated functions from 0 as well."""
    for pid in (1, 2):
        log = LogBuilder(pid=pid).record("dump_file", {"name": "<eval_with_key>.0"}, f"x = {pid}")
        log.graph().metrics().write(tmp_path / str(pid))
    [tree] = plan_ranks(load(tmp_path, jobs=1), TreeOptions())
    assert len(tree.file_ids) == 2
    assert [output.path for output in tree.outputs] == [
        "dump_file/eval_with_key_0.html",
        "-_0_0_0/dynamo_output_graph_1.txt",
        "-_0_0_0/compilation_metrics_2.html",
        "dump_file/eval_with_key_0_of_log_1.html",
        "-_0_0_0/dynamo_output_graph_4.txt",
        "-_0_0_0/compilation_metrics_5.html",
    ]


def test_only_the_newest_run_is_in_the_report(tmp_path: Path) -> None:
    for hour in (6, 9):
        LogBuilder(at=f"2026-11-16 0{hour}:00:00").graph().metrics().write(tmp_path / str(hour))
    trace = load(tmp_path, jobs=1)
    [tree] = plan_ranks(trace, TreeOptions())
    [file_id] = tree.file_ids
    assert trace.table("compile_logs").array("run")[file_id] == 1


def test_several_ranks_have_a_folder_each(tmp_path: Path) -> None:
    for rank in (0, 3):
        LogBuilder(rank=rank).graph().metrics().write(tmp_path)
    trees = plan_ranks(load(tmp_path, jobs=1), TreeOptions())
    assert [(tree.rank, tree.folder) for tree in trees] == [(0, "rank_0"), (3, "rank_3")]


def test_one_rank_has_a_folder_only_if_asked_for(tmp_path: Path) -> None:
    trace = load(LogBuilder(rank=0).graph().metrics().write(tmp_path), jobs=1)
    assert [tree.folder for tree in plan_ranks(trace, TreeOptions())] == [""]
    assert [tree.folder for tree in plan_ranks(trace, TreeOptions(all_ranks=True))] == ["rank_0"]


@needs_samples
def test_cache_hit_miss_sample_has_the_known_numbers() -> None:
    names = {output.path.removesuffix(".json") for output in planned(SAMPLES / "cache_hit_miss.log")}
    assert {f"-_1_0_0/fx_graph_cache_{name}" for name in ("miss_9", "hit_20", "miss_33")} <= names


@needs_samples
def test_links_sample_numbers_the_link() -> None:
    outputs = planned(SAMPLES / "links.log")
    assert [(output.number, output.url) for output in outputs if output.how == "link"] == [
        (1, "https://www.google.com")
    ]
    assert outputs[2].path == "-_0_0_0/aot_forward_graph_2.txt"


@needs_samples
def test_attempts_of_the_metrics_sample_have_their_directories() -> None:
    directories = {output.compile_dir for output in planned(SAMPLES / "comp_metrics.log")}
    assert {"-_0_0_1", "-_1_0_1", "-_2_0_0"} <= directories
