"""Damaged and odd TORCH_TRACE files: what is whole is read, what is not is named, nothing else is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankscope.errors import InputError
from rankscope.model.payloads import damaged_payloads
from rankscope.pipeline import diagnose, load
from rankscope.simulate.compile_log import TRAIN, LogBuilder, Site, ids_of, log_name
from read.compile_log_reading import load_logs, payload_of, records_of, refusal, rows_of, the_file, the_log

GUARD = "tensor 'x' size mismatch at index 0. expected 8, actual 12"


def whole_log() -> LogBuilder:
    return LogBuilder(0).torch_version().start().graph(text="one\ntwo\nthree").metrics()


def kinds(trace: Any) -> list[str]:
    return [row["kind"] for row in rows_of(trace, "compile_records")]


# The end is missing


def test_a_last_record_cut_in_its_header_is_named_and_all_others_are_read(tmp_path: Path) -> None:
    log = whole_log()
    log.chunks[-1] = log.chunks[-1][:90]

    trace = load_logs(tmp_path, log)

    assert (the_log(trace)["is_cut"], the_log(trace)["n_bad"]) == (True, 1)
    assert the_file(trace)["status"] == "damaged"
    assert kinds(trace)[:-1] == ["artifact", "str", "dynamo_start", "dynamo_output_graph"]
    assert [row["status"] for row in rows_of(trace, "compilations")] == ["unfinished"]


@pytest.mark.parametrize("kept", [b"", b"\t", b"\tone", b"\tone\n", b"\tone\n\ttwo\n", b"\tone\n\ttwo\n\tthre"])
def test_a_last_record_cut_in_its_payload_is_named(tmp_path: Path, kept: bytes) -> None:
    log = LogBuilder(0).start().graph(text="one\ntwo\nthree")
    log.chunks[-1] = kept

    trace = load_logs(tmp_path, log)

    assert the_log(trace)["is_cut"]
    assert the_file(trace)["status"] == "damaged"
    assert kinds(trace)[-1] == "dynamo_output_graph"
    assert [row["kind"] for row in damaged_payloads(trace)] == ["dynamo_output_graph"]


@pytest.mark.parametrize("last", ["payload", "header"])
def test_only_the_last_newline_is_missing_and_nothing_is_cut(tmp_path: Path, last: str) -> None:
    log = LogBuilder(0).start().graph(text="one\ntwo") if last == "payload" else LogBuilder(0).start()
    log.chunks[-1] = log.chunks[-1].removesuffix(b"\n")

    trace = load_logs(tmp_path, log)

    assert not the_log(trace)["is_cut"]
    assert the_file(trace)["status"] == "read"
    assert list(damaged_payloads(trace)) == []


def test_a_log_that_ends_between_two_records_is_whole(tmp_path: Path) -> None:
    log = whole_log()
    del log.chunks[-1]

    assert the_file(load_logs(tmp_path, log))["status"] == "read"


# Files that are no log


def test_an_empty_log_is_named_with_its_rank(tmp_path: Path) -> None:
    whole_log().write(tmp_path)
    (tmp_path / log_name(3, "abc0d5f9")).touch()

    trace = load(tmp_path, jobs=1)

    [empty] = [row for row in rows_of(trace, "files") if row["status"] == "damaged"]
    assert "empty" in empty["problem"]
    assert empty["rank"] == 3
    assert any("abc0d5f9" in str(finding.evidence.facts) for finding in diagnose(trace).findings)


@pytest.mark.parametrize(
    "content", [b"", b"\n\n\n", b"nothing of torch\n", b"\x00\x01\x02" * 50, b"\t\n\tx\n", b"V1116"]
)
def test_a_file_with_torchs_name_and_nothing_in_it_is_a_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / log_name(0)
    path.write_bytes(content)

    error = refusal(path)

    assert error is not None
    assert error.message
    assert error.hint
    with pytest.raises(InputError, match=log_name(0)):
        load(tmp_path, jobs=1)


def test_junk_between_records_does_not_hide_them(tmp_path: Path) -> None:
    """Other prints and a traceback went into the same stream."""
    log = LogBuilder(0).start()
    log.raw(b"step 12 loss 0.5\n").raw(b'Traceback (most recent call last):\n  File "x.py", line 3\n').metrics()

    trace = load_logs(tmp_path, log)

    assert [kind for kind in kinds(trace) if kind] == ["str", "dynamo_start", "compilation_metrics"]
    assert the_log(trace)["n_bad"] == 3
    assert the_file(trace)["status"] == "damaged"
    assert "3 of 6 records" in the_file(trace)["problem"]


def test_empty_lines_between_and_inside_of_records_are_nothing(tmp_path: Path) -> None:
    log = LogBuilder(0).start().raw(b"\n\n").graph(text="one\ntwo")
    log.chunks[-1] = log.chunks[-1].replace(b"\n", b"\n\n")
    log.metrics()

    trace = load_logs(tmp_path, log)

    assert the_log(trace)["n_bad"] == 0
    [graph] = records_of(trace, "dynamo_output_graph")
    assert payload_of(trace, graph) == b"one\ntwo"
    assert list(damaged_payloads(trace)) == []


# Bytes and values that torch or what carried the log may have put in


@pytest.mark.parametrize("place", ["payload", "header", "between", "path"])
def test_one_invalid_byte_does_not_lose_the_file(tmp_path: Path, place: str) -> None:
    log = LogBuilder(0).start().graph(text="one XX two")
    if place == "between":
        log.raw(b"\xff\xfe\n")
    log.metrics(co_name="fXXd")
    spot = {"payload": b"one XX", "header": b"fXXd", "path": b"torch/_dynamo/utils.py"}.get(place, b"\0")
    log.chunks = [chunk.replace(spot, spot[:1] + b"\xff" + spot[2:]) for chunk in log.chunks]

    trace = load_logs(tmp_path, log)

    found = [kind for kind in kinds(trace) if kind]
    assert found == ["str", "dynamo_start", "dynamo_output_graph", "compilation_metrics"]
    assert [row["file"] for row in rows_of(trace, "compilations")] == [TRAIN]
    assert [row["kind"] for row in damaged_payloads(trace)] == ["dynamo_output_graph"] * (place == "payload")


def test_a_size_that_is_a_text_does_not_lose_the_record(tmp_path: Path) -> None:
    log = LogBuilder(0).record("describe_storage", {"id": 0, "describer_id": 0, "size": "s0*4"}, **ids_of("0/0"))

    trace = load_logs(tmp_path, log)

    assert kinds(trace) == ["describe_storage"]
    assert the_log(trace)["n_bad"] == 0


def test_a_frame_without_line_or_file_does_not_lose_the_stack(tmp_path: Path) -> None:
    frames = [{"line": None, "name": "<module>", "filename": -1}, {"line": 3, "name": "f", "filename": 0}]
    log = LogBuilder(0).record("str", [TRAIN, 0]).record("dynamo_start", {"stack": frames}, **ids_of("0/0"))

    trace = load_logs(tmp_path, log)

    stack = [(row["file"], row["line"], row["function"]) for row in rows_of(trace, "compile_stacks")]
    assert stack == [("", -1, "<module>"), (TRAIN, 3, "f")]
    assert the_log(trace)["n_unresolved"] == 0


def test_a_failure_without_a_reason_does_not_abort_the_run(tmp_path: Path) -> None:
    log = LogBuilder(0).start().metrics(fail_type="InternalTorchDynamoError").start("1/0").metrics("1/0")

    found = rows_of(load_logs(tmp_path, log), "compilations")

    assert [(row["status"], row["fail_type"], row["fail_reason"]) for row in found] == [
        ("failed", "InternalTorchDynamoError", ""),
        ("ok", "", ""),
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, 1 << 80, "soon", [1], {}, True])
def test_one_odd_number_in_the_metrics_leaves_all_others(tmp_path: Path, value: Any) -> None:
    log = LogBuilder(0).metrics(seconds=2.0, guard_count=value, graph_op_count=7)
    log.metrics("1/0", duration_us=value, entire_frame_compile_time_s=value, start_time_us=value, start_time=value)

    first, second = rows_of(load_logs(tmp_path, log), "compilations")

    assert (first["n_ops"], first["duration_ns"], first["function"]) == (7, 2_000_000_000, "forward")
    assert (second["function"], second["n_guards"]) == ("forward", 10)


@pytest.mark.parametrize("value", ["3", 1 << 40, -5, 2.5, None, [0], {"rank": 1}, True])
def test_an_odd_rank_in_one_record_does_not_lose_it(tmp_path: Path, value: Any) -> None:
    log = LogBuilder(None).start()
    log.rank = 1
    log.metrics("0/0").metrics("0/1").record("aot_joint_graph", {}, "x", **ids_of("0/0"), rank=value)
    log.write(tmp_path, log_name(None))

    trace = load(tmp_path, jobs=1)

    assert the_log(trace)["n_bad"] == 0
    assert kinds(trace)[-1] == "aot_joint_graph"
    assert the_log(trace)["rank"] == 1


@pytest.mark.parametrize("number", [1 << 31, 1 << 64, 10**40, -1, "7", None, 1.5])
def test_huge_and_odd_compile_ids_do_not_lose_the_record(tmp_path: Path, number: Any) -> None:
    ids = {"frame_id": number, "frame_compile_id": number, "attempt": number, "compiled_autograd_id": number}
    trace = load_logs(tmp_path, LogBuilder(0).record("aot_joint_graph", {}, "x", **ids).metrics())

    assert kinds(trace) == ["aot_joint_graph", "compilation_metrics"]
    [row] = records_of(trace, "aot_joint_graph")
    assert (row["frame_id"], row["attempt"]) == (-1, -1)
    assert payload_of(trace, row) == b"x"


@pytest.mark.parametrize("depth", [600, 20_000, 300_000])
def test_very_deep_json_costs_one_record_at_most(tmp_path: Path, depth: int) -> None:
    log = LogBuilder(0).start().line('{"mystery": ' + "[" * depth + "]" * depth + "}")
    log.artifact("fx_graph_cache_miss", "[" * depth, "0/0").artifact("recompile_reasons", "[" * depth, "0/1").metrics()

    found = [kind for kind in kinds(load_logs(tmp_path, log)) if kind]

    assert [kind for kind in found if kind != "mystery"] == [
        "str",
        "dynamo_start",
        "artifact",
        "artifact",
        "compilation_metrics",
    ]


@pytest.mark.parametrize(
    "header",
    ["{}", '{"rank": 0}', "{", '{"str": ["a", 0]', "{nonsense}", '{"": {}}', '{"x": {}} trailing', "[]", '{"a": 1,}'],
)
def test_a_header_that_is_none_is_kept_as_a_bad_record(tmp_path: Path, header: str) -> None:
    trace = load_logs(tmp_path, LogBuilder(0).start().line(header).metrics())

    assert [kind for kind in kinds(trace) if kind] == ["str", "dynamo_start", "compilation_metrics"]
    assert (the_log(trace)["n_records"], the_log(trace)["n_bad"]) == (4, 1)


@pytest.mark.parametrize(
    "value", [None, 1, "a", [], ["a"], ["a", "b"], [1, 0], ["a", 0, 1], {"a": 0}, ["a", -1], ["a", 1 << 70], ["a", 0.5]]
)
def test_odd_strings_do_not_lose_the_file(tmp_path: Path, value: Any) -> None:
    log = LogBuilder(0).line(json.dumps({"str": value})).start(sites=[Site(TRAIN, 1, "f")])

    assert [row["file"] for row in rows_of(load_logs(tmp_path, log), "compile_stacks")] == [TRAIN]


@pytest.mark.parametrize("kind", ["dynamo_start", "compilation_metrics", "create_symbol", "artifact", "link", "str"])
@pytest.mark.parametrize("value", [None, 7, "text", [1, 2], {"stack": 5}, {"stack": [1]}, {"name": ["x"]}, True])
def test_metadata_of_any_shape_does_not_lose_the_file(tmp_path: Path, kind: str, value: Any) -> None:
    log = LogBuilder(0).line(json.dumps({kind: value, "frame_id": 0, "frame_compile_id": 0})).metrics("1/0")

    trace = load_logs(tmp_path, log)

    assert kinds(trace) == [kind, "compilation_metrics"]
    assert "1/0" in {row["compile_id"] for row in rows_of(trace, "compilations")}


# Payloads that are not what they say they are


@pytest.mark.parametrize(
    "payload", [GUARD, f"0/0: {GUARD}", json.dumps(f"0/0: {GUARD}"), json.dumps([f"0/0: {GUARD}"])]
)
def test_reasons_that_are_called_json_and_are_not_are_understood(tmp_path: Path, payload: str) -> None:
    log = LogBuilder(0).record("artifact", {"name": "recompile_reasons", "encoding": "json"}, payload, **ids_of("0/1"))

    [row] = rows_of(load_logs(tmp_path, log), "recompiles")

    assert (row["compile_id"], row["cause"], row["subject"], row["dimension"]) == ("0/1", "size", "x", 0)
    assert (row["expected"], row["actual"]) == ("8", "12")


@pytest.mark.parametrize("name", ["fx_graph_cache_miss", "torch_version", "recompile_reasons", "dynamo_error"])
@pytest.mark.parametrize("payload", ["", "not json", "[1, 2", "null", "[]", '{"key": 5}', "NaN", "\x00", '"\ud800'])
def test_json_payloads_that_are_not_json_do_no_harm(tmp_path: Path, name: str, payload: str) -> None:
    content = payload.encode("utf-8", "surrogatepass")
    metadata = {"name": name, "encoding": "json"}
    log = LogBuilder(0).record("artifact", metadata, content, **ids_of("0/0")).metrics()

    trace = load_logs(tmp_path, log)

    assert the_file(trace)["status"] == "read"
    assert list(damaged_payloads(trace)) == []
    assert kinds(trace) == ["artifact", "compilation_metrics"]


def test_a_payload_that_was_changed_is_found_by_its_checksum(tmp_path: Path) -> None:
    log = LogBuilder(0).graph(text="one").graph(text="two").metrics()
    log.chunks = [chunk.replace(b"\ttwo", b"\ttow") for chunk in log.chunks]

    trace = load_logs(tmp_path, log)

    assert [row["record"] for row in damaged_payloads(trace)] == [1]
    assert the_file(trace)["status"] == "read"
