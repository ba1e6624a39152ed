"""TORCH_TRACE files: every record is indexed, whatever its kind and whatever its payload looks like."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path

import pytest

from rankscope.model.payloads import damaged_payloads
from rankscope.pipeline import load
from rankscope.read.compile_log import rank_of_name, sniff
from rankscope.simulate.compile_log import TRAIN, LogBuilder, Site, checksum, ids_of, log_name
from read.compile_log_reading import load_logs, payload_of, read_tables, records_of, rows_of, the_file, the_log

# All that torch 2.13 can write, and what older versions wrote.
KINDS = (
    *("dynamo_start", "dynamo_output_graph", "dynamo_guards", "dynamo_cpp_guards_str", "compiled_autograd_graph"),
    *("aot_joint_graph", "aot_forward_graph", "aot_backward_graph", "aot_inference_graph", "inductor_pre_grad_graph"),
    *("inductor_post_grad_graph", "optimize_ddp_split_graph", "aot_forward_graph_pre_saved_tensors_hooks"),
    *("optimize_ddp_split_child", "inductor_output_code", "graph_dump", "artifact", "dump_file", "link"),
    *("compilation_metrics", "bwd_compilation_metrics", "aot_autograd_backward_compilation_metrics"),
    *("compilation_metrics_runtime", "bwd_compilation_metrics_runtime", "chromium_event"),
    *("symbolic_shape_specialization", "guard_added_fast", "create_symbol", "create_unbacked_symbol"),
    *("propagate_real_tensors", "guard_added", "propagate_real_tensors_provenance", "expression_created"),
    *("guard_on_data_dependent_error", "missing_fake_kernel", "mismatched_fake_kernel", "exported_program", "export"),
    *("describe_storage", "describe_tensor", "describe_source", "bytecode_dump", "never_heard_of_before"),
)


def test_header_and_payload_lie_where_the_index_says(tmp_path: Path) -> None:
    log = LogBuilder().torch_version().start().graph(text="a\n\n\tb\n").metrics()

    trace = load_logs(tmp_path, log)

    content = log.content()
    for row in rows_of(trace, "compile_records"):
        header = content[row["header_start"] : row["header_start"] + row["n_header_bytes"]]
        assert row["kind"] in json.loads(header)
        assert content[row["start"] : row["start"] + 1] == b"V"
    [graph] = records_of(trace, "dynamo_output_graph")
    assert payload_of(trace, graph) == b"a\n\n\tb\n"
    assert graph["md5"] == checksum(b"a\n\n\tb\n")


@pytest.mark.parametrize(
    "payload",
    ["a\rb", "one\r\ntwo\r\n", "line\u2028separator\u2029", "\x0b\x0c\x1c\x1d\x1e\x85", "\r", "\ttabs\n\t\ttwo", "é\n"],
)
def test_records_are_split_on_newline_only(tmp_path: Path, payload: str) -> None:
    trace = load_logs(tmp_path, LogBuilder().graph(text=payload).metrics())

    assert [row["kind"] for row in rows_of(trace, "compile_records")] == ["dynamo_output_graph", "compilation_metrics"]
    assert payload_of(trace, records_of(trace, "dynamo_output_graph")[0]) == payload.encode()
    assert list(damaged_payloads(trace)) == []


def test_a_payload_with_windows_line_ends_keeps_its_checksum(tmp_path: Path) -> None:
    trace = load_logs(tmp_path, LogBuilder().graph(text="one\r\ntwo\r\n"))

    [row] = records_of(trace, "dynamo_output_graph")
    assert checksum(payload_of(trace, row)) == row["md5"]


def test_a_log_whose_line_ends_were_converted_is_read(tmp_path: Path) -> None:
    log = LogBuilder().torch_version().start().graph(text="one\ntwo").metrics()
    log.chunks = [chunk.replace(b"\n", b"\r\n") for chunk in log.chunks]

    trace = load_logs(tmp_path, log)

    assert the_file(trace)["status"] == "read"
    assert the_log(trace)["n_bad"] == 0
    assert the_log(trace)["torch_version"] == "2.13.0+cpu"
    assert [row["function"] for row in rows_of(trace, "compilations")] == ["forward"]
    assert list(damaged_payloads(trace)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_kept_with_its_payload(tmp_path: Path, kind: str) -> None:
    log = LogBuilder().record(kind, {"name": "n"}, "text", **ids_of("3/1", attempt=2))

    trace = load_logs(tmp_path, log)

    [row] = rows_of(trace, "compile_records")
    assert (row["kind"], row["compile_id"], row["attempt"]) == (kind, "3/1", 2)
    assert payload_of(trace, row) == b"text"
    assert the_log(trace)["n_bad"] == 0


@pytest.mark.parametrize("kind", ["artifact", "graph_dump", "optimize_ddp_split_child", "dump_file", "link"])
def test_names_are_in_the_index(tmp_path: Path, kind: str) -> None:
    trace = load_logs(tmp_path, LogBuilder().record(kind, {"name": "submod_0", "encoding": "string"}, "x"))

    assert [(row["name"], row["encoding"]) for row in records_of(trace, kind)] == [("submod_0", "string")]


def test_generated_code_is_named_by_its_file(tmp_path: Path) -> None:
    trace = load_logs(tmp_path, LogBuilder().record("inductor_output_code", {"filename": "/c/ab/cab.py"}, "x"))

    assert [row["name"] for row in records_of(trace, "inductor_output_code")] == ["/c/ab/cab.py"]


def test_a_part_of_the_graph_that_was_compiled_by_itself_is_named(tmp_path: Path) -> None:
    log = LogBuilder().record("aot_inference_graph", {}, "x", **ids_of("0/0"), subgraph_name="region_1")

    assert [row["subgraph"] for row in rows_of(load_logs(tmp_path, log), "compile_records")] == ["region_1"]


@pytest.mark.parametrize(
    ("ids", "shown"),
    [
        ({}, ""),
        ({"frame_id": 0, "frame_compile_id": 0, "attempt": 0}, "0/0"),
        ({"frame_id": 12, "frame_compile_id": 3}, "12/3"),
        ({"compiled_autograd_id": 2}, "!2"),
        ({"compiled_autograd_id": 2, "frame_id": 0, "frame_compile_id": 1, "attempt": 4}, "!2/0/1"),
        ({"frame_id": None, "frame_compile_id": None, "compiled_autograd_id": None}, ""),
    ],
)
def test_compile_ids_are_written_as_torch_does(tmp_path: Path, ids: dict[str, int], shown: str) -> None:
    trace = load_logs(tmp_path, LogBuilder().record("aot_joint_graph", {}, "x", **ids))

    [row] = rows_of(trace, "compile_records")
    assert row["compile_id"] == shown
    assert row["attempt"] == ids.get("attempt", -1)


def test_the_kind_need_not_be_the_first_key(tmp_path: Path) -> None:
    log = LogBuilder().line('{"rank": 0, "frame_id": 1, "frame_compile_id": 0, "aot_joint_graph": {}}')

    assert [row["kind"] for row in rows_of(load_logs(tmp_path, log), "compile_records")] == ["aot_joint_graph"]


@pytest.mark.parametrize(
    "path", ["torch/_dynamo/utils.py", "/opt/a:b/utils.py", r"C:\venv\torch\utils.py", "/with space/x.py", "/ü/x.py"]
)
def test_any_path_may_stand_before_the_json(tmp_path: Path, path: str) -> None:
    log = LogBuilder().start()
    log.chunks = [chunk.replace(b"torch/_dynamo/utils.py", path.encode()) for chunk in log.chunks]

    assert the_log(load_logs(tmp_path, log))["n_bad"] == 0


def test_identical_headers_with_different_payloads_are_different_records(tmp_path: Path) -> None:
    trace = load_logs(tmp_path, LogBuilder().graph(text="first").graph(text="second"))

    found = records_of(trace, "dynamo_output_graph")
    assert [payload_of(trace, row) for row in found] == [b"first", b"second"]
    assert [row["md5"] for row in found] == [checksum(b"first"), checksum(b"second")]


def test_one_process_is_told_by_version_and_number(tmp_path: Path) -> None:
    row = the_log(load_logs(tmp_path, LogBuilder(pid=123).torch_version("2.9.1").start()))

    assert (row["torch_version"], row["pid"], row["n_records"], row["is_cut"]) == ("2.9.1", 123, 3, False)


# Ranks


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("dedicated_log_torch_trace_rank_3_x7a_b1.log", 3),
        ("dedicated_log_torch_trace_rank_1_nxxj_wcg.log", 1),
        ("dedicated_log_torch_trace_rank_12_00000007.log", 12),
        ("dedicated_log_torch_trace_rank_0.log", 0),
        ("dedicated_log_torch_trace_rank7.log", -1),
        ("dedicated_log_torch_trace_12345678.log", -1),
        ("job/rank5.log", 5),
        ("traces/torch_logs_1.txt", 1),
        ("a.zip!logs/dedicated_log_torch_trace_rank_2_abcdefgh.log", 2),
        ("notes.log", -1),
    ],
)
def test_the_rank_is_what_follows_the_word_and_not_the_random_part(name: str, rank: int) -> None:
    assert rank_of_name(name) == rank


def test_a_name_without_rank_takes_it_from_the_records(tmp_path: Path) -> None:
    """A process that compiles before init_process_group has opened its file without a rank."""
    log = LogBuilder().start("0/0")
    log.rank = 6
    log.start("0/1").write(tmp_path, log_name(None))

    trace = load(tmp_path, jobs=1)

    assert the_log(trace)["rank"] == 6
    assert the_file(trace)["rank"] == 6
    assert {row["rank"] for row in rows_of(trace, "compile_stacks")} == {6}


def test_a_record_without_rank_is_its_files(tmp_path: Path) -> None:
    """The version is written without rank: it is not a record of another rank."""
    trace = load_logs(tmp_path, LogBuilder(4).torch_version().start())

    assert {row["rank"] for row in rows_of(trace, "compile_records")} == {4}
    assert the_log(trace)["torch_version"] == "2.13.0+cpu"


def test_a_job_without_ranks_is_rank_0(tmp_path: Path) -> None:
    trace = load_logs(tmp_path, LogBuilder().start().metrics())

    assert the_log(trace)["rank"] == 0
    assert {row["rank"] for row in rows_of(trace, "compilations")} == {0}


def test_strings_of_one_rank_are_not_another_ranks(tmp_path: Path) -> None:
    first = LogBuilder(0).start(sites=[Site("/job/a.py", 1, "f"), Site("/job/b.py", 2, "g")])
    second = LogBuilder(1).start(sites=[Site("/job/b.py", 2, "g")])

    trace = load_logs(tmp_path, first, second)

    stacks = [(row["rank"], row["file"]) for row in rows_of(trace, "compile_stacks")]
    assert stacks == [(0, "/job/a.py"), (0, "/job/b.py"), (1, "/job/b.py")]
    assert [row["n_unresolved"] for row in rows_of(trace, "compile_logs")] == [0, 0]


# What a file may be wrapped in


def test_packed_logs_are_read_like_plain_ones(tmp_path: Path) -> None:
    log = LogBuilder(2).torch_version().start().graph(text="x\ny").metrics()
    plain = read_tables(log.write(tmp_path))
    packed = tmp_path / f"{log_name(2)}.gz"
    packed.write_bytes(gzip.compress(log.content()))

    tables = read_tables(packed)

    for name in ("compile_records", "compilations", "compile_stacks"):
        assert list(tables[name].rows()) == list(plain[name].rows())


def test_logs_in_a_zip_are_read_and_their_payloads_found(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "logs.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for rank in range(2):
            archive.writestr(f"logs/{log_name(rank)}", LogBuilder(rank).graph(text=f"of rank {rank}").content())

    trace = load(tmp_path / "logs.zip", jobs=1)

    graphs = {row["rank"]: payload_of(trace, row) for row in records_of(trace, "dynamo_output_graph")}
    assert graphs == {0: b"of rank 0", 1: b"of rank 1"}


@pytest.mark.parametrize("name", ["0", "trace.txt", "stderr.log"])
def test_a_log_is_known_by_its_first_record_under_any_name(name: str) -> None:
    assert sniff(b"job starts\n" + LogBuilder().start().content(), name)


def test_text_logs_are_not_claimed() -> None:
    line = b"V1116 06:18:20.896000 11287 torch/_dynamo/guards.py:3017] [0/1] [__recompiles] Recompiling function f\n"
    assert not sniff(line, "stderr.txt")


def test_compilations_tell_what_the_metrics_tell(tmp_path: Path) -> None:
    log = LogBuilder(1).start("0/0").metrics("0/0", 2.5)
    log.metrics("0/0", 1.5, "bwd_compilation_metrics", is_forward=False)
    log.metrics("0/0", 0.5, "compilation_metrics_runtime", is_runtime=True)

    found = rows_of(load_logs(tmp_path, log), "compilations")

    assert [(row["phase"], row["duration_ns"]) for row in found] == [
        ("forward", 2_500_000_000),
        ("backward", 1_500_000_000),
        ("runtime", 500_000_000),
    ]
    assert {(row["function"], row["file"], row["line"], row["rank"]) for row in found} == {("forward", TRAIN, 30, 1)}


def test_a_compilation_that_never_ended_is_unfinished(tmp_path: Path) -> None:
    trace = load_logs(tmp_path, LogBuilder().start("0/0").metrics("0/0").start("1/0", [Site(TRAIN, 50, "loss")]))

    found = {row["compile_id"]: (row["status"], row["function"], row["line"]) for row in rows_of(trace, "compilations")}
    assert found == {"0/0": ("ok", "forward", 30), "1/0": ("unfinished", "loss", 50)}


def test_guards_of_later_attempts_and_behind_the_metrics_are_not_lost(tmp_path: Path) -> None:
    log = LogBuilder().start("0/0")
    asked = log.frames([Site(TRAIN, 31, "forward", "if len(x) == 12:")])
    guard = {"expr": "Eq(s48, 12)", "user_stack": asked, "stack": []}
    for attempt in range(3):
        log.record("guard_added_fast", guard, **ids_of("0/0", attempt))
    log.metrics("0/0")
    pinned = {"symbol": "s48", "sources": ["L['x'].size()[0]"], "value": 12, "reason": "asked for", "user_stack": asked}
    log.record("symbolic_shape_specialization", pinned, **ids_of("0/0", 2))

    found = rows_of(load_logs(tmp_path, log), "guards")

    assert [(row["kind"], row["attempt"]) for row in found] == [
        *(("guard", attempt) for attempt in range(3)),
        ("specialization", 2),
    ]
    assert {(row["file"], row["line"], row["code"]) for row in found} == {(TRAIN, 31, "if len(x) == 12:")}
    assert (found[-1]["symbol"], found[-1]["value"], found[-1]["source"]) == ("s48", "12", "L['x'].size()[0]")


def test_look_ups_in_caches_tell_key_outcome_and_time(tmp_path: Path) -> None:
    log = LogBuilder().cache_miss("0/0", "fkey", {"gm": "graph"})
    log.cache_event("0/1", "fx_graph_cache_hit", key="fkey", time_saved_ns=5_000)
    log.cache_event("1/0", "aotautograd_cache_bypass", cache_bypass_reason="a custom function")
    log.artifact("fx_graph_cache_hash", "no look-up", "0/0")

    found = rows_of(load_logs(tmp_path, log), "cache_events")

    assert [(row["cache"], row["outcome"], row["key"], row["reason"], row["taken_ns"]) for row in found] == [
        ("fx_graph", "miss", "fkey", "", -1),
        ("fx_graph", "hit", "fkey", "", 5_000),
        ("aotautograd", "bypass", "", "a custom function", -1),
    ]
