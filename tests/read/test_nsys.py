"""What is made of an export of Nsight Systems: kernels, calls, operators, annotations, ranks, times."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rankscope.pipeline import load
from read.nsys_exports import (
    MARK,
    START_END,
    STARTED_NS,
    NsysExport,
    load_export,
    rows_of,
    training_export,
)

pytestmark = pytest.mark.slow

SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "samples" / "nsys"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the shared samples are not here")


def names_of(trace_rows: list[dict[str, object]]) -> list[object]:
    return [row["name"] for row in trace_rows]


@needs_samples
def test_the_real_two_process_export_is_read_whole() -> None:
    trace = load(SAMPLES / "h100_2gpu_1s.sqlite")
    counted = "SELECT count(*), count(*) FILTER (rank = 0), count(*) FILTER (rank = 1) FROM"
    query = trace.sql
    assert query(f"{counted} kernels WHERE kind = 'kernel'").rows() == [(3442, 1721, 1721)]
    assert query(f"{counted} kernels WHERE kind = 'memcpy'").rows() == [(904, 452, 452)]
    assert query(f"{counted} runtime_calls").rows() == [(5796, 2898, 2898)]
    assert query(f"{counted} ops WHERE record_id > 0").rows() == [(16782, 8391, 8391)]
    # By the correlation alone 1643 would be tied, 11 of them to calls of the other process.
    assert query(f"{counted} kernels WHERE kind = 'kernel' AND call_id IS NOT NULL").rows() == [(1632, 816, 816)]
    launchers = """SELECT DISTINCT o.name FROM kernels AS k JOIN ops AS o USING (file_id, rank, op_id)
        WHERE k.name LIKE 'sm80_xmma_gemm%' ORDER BY 1"""
    assert query(launchers).rows() == [("aten::bmm",), ("aten::mm",)]
    assert query("SELECT count(*) FROM kernels WHERE call_id IS NOT NULL AND op_id IS NULL").rows() == [(0,)]
    assert {(row["rank"], row["host"]) for row in trace.table("profiles").rows()} == {(0, "modal"), (1, "modal")}


@needs_samples
def test_the_record_ids_of_the_real_export_are_those_of_its_ranges() -> None:
    path = SAMPLES / "h100_2gpu_1s.sqlite"
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        told = {int(text.rpartition("op_id = ")[2]) for (text,) in connection.execute("SELECT text FROM NVTX_EVENTS")}
    assert set(load(path).table("ops").array("record_id").tolist()) == told


@needs_samples
def test_an_export_of_another_version_is_read() -> None:
    trace = load(SAMPLES / "mock.sqlite")
    [profile] = trace.table("profiles").rows()
    assert (profile["n_kernels"], profile["n_calls"], profile["n_ops"]) == (3, 9, 0)
    [device] = trace.table("devices").rows()
    assert (device["name"], device["n_sms"], device["max_threads"]) == ("NVIDIA GeForce RTX 3080", 68, 1536)
    assert rows_of(trace, "kernels")[2]["name"] == "Memcpy DtoH (Device -> Pinned)"


def test_work_on_the_device_is_described_as_by_torch_profiler(tmp_path: Path) -> None:
    kernels = rows_of(load_export(training_export(0), tmp_path), "kernels")[:4]
    assert names_of(kernels) == [
        "sm80_gemm_f32",
        "Memcpy HtoD (Pinned -> Device)",
        "Memset (Device)",
        "CUDA graph 3",
    ]
    assert [row["kind"] for row in kernels] == ["kernel", "memcpy", "memset", "kernel"]
    gemm, copy, _, graph = kernels
    assert (gemm["grid"], gemm["block"], gemm["registers"]) == ("[136, 1, 1]", "[64, 1, 1]", 32)
    assert (gemm["shared_bytes"], gemm["blocks_per_sm"], gemm["warps_per_sm"]) == (1040, 2.0, 4.0)
    assert (gemm["start_ns"], gemm["duration_ns"]) == (STARTED_NS + 10_600, 50)
    assert (copy["n_bytes"], copy["bandwidth_gbps"], copy["stream"]) == (4096, 40.96, 7)
    assert (graph["graph_id"], graph["duration_ns"]) == (3, 400)


def test_calls_have_their_plain_names(tmp_path: Path) -> None:
    export = NsysExport()
    export.call("cudaLaunchKernelExC_ptsz_v11060", 0, 10, 1)
    export.call("cuLaunchKernelEx", 20, 30, 2)
    export.call("cuMemAlloc_v2", 40, 50, 3)
    calls = rows_of(load_export(export, tmp_path), "runtime_calls")
    assert [(row["name"], row["kind"]) for row in calls] == [
        ("cudaLaunchKernelExC", "runtime"),
        ("cuLaunchKernelEx", "driver"),
        ("cuMemAlloc_v2", "driver"),
    ]


def test_a_kernel_belongs_to_the_innermost_open_operator_of_the_launching_thread(tmp_path: Path) -> None:
    """Not to the last one begun, which is over, nor to one of another thread."""
    trace = load_export(training_export(0), tmp_path)
    ops = {row["op_id"]: row["name"] for row in rows_of(trace, "ops")}
    assert ops[rows_of(trace, "kernels")[0]["op_id"]] == "aten::addmm"
    export = NsysExport()
    export.range("aten::mm, op_id = 1", 0, 1_000)
    export.range("aten::add, op_id = 2", 400, 600, thread=1)
    export.launch("gemm", 500, 1)
    trace = load_export(export, tmp_path)
    [kernel] = rows_of(trace, "kernels")
    assert {row["op_id"]: row["name"] for row in rows_of(trace, "ops")}[kernel["op_id"]] == "aten::mm"


def test_operators_have_their_numbers_and_shapes(tmp_path: Path) -> None:
    op = rows_of(load_export(training_export(0), tmp_path), "ops")[0]
    assert (op["name"], op["record_id"], op["sequence_number"]) == ("aten::linear", 100, 100)
    assert op["input_dims"] == "[[8, 16], [32, 16], [32]]"
    assert (op["pid"], op["tid"], op["duration_ns"], op["step"]) == (4000, 4000, 800, 0)


@pytest.mark.parametrize(
    ("text", "name", "table"),
    [
        ("aten::mul, seq = 6, op_id = 872", "aten::mul", "ops"),
        ("aten::mul, op_id = 872, seq = 6", "aten::mul", "ops"),
        ("aten::mul, seq = 6", "aten::mul", "ops"),
        ("autograd::engine::evaluate_function: MulBackward0, op_id = 9", None, "ops"),
        ("MulBackward0, seq = 6, op_id = 9", "MulBackward0", "ops"),
        ("Optimizer.step#SGD.step, op_id = 9", "Optimizer.step#SGD.step", "annotations"),
        ("ProfilerStep#12, op_id = 9", "ProfilerStep#12", "annotations"),
        ("train_step_3, op_id = 9", "train_step_3", "annotations"),
        ("forward", "forward", "annotations"),
        ("layer, op_id = none", None, "annotations"),
    ],
)
def test_a_range_is_an_operator_or_an_annotation(text: str, name: str | None, table: str, tmp_path: Path) -> None:
    export = NsysExport()
    export.range(text, 0, 10)
    export.call("cudaFree", 20, 30, 1)
    trace = load_export(export, tmp_path)
    assert trace.n_rows("ops") + trace.n_rows("annotations") == 1
    expected = text.partition(", op_id")[0] if name is None else name
    assert names_of(rows_of(trace, table)) == [expected]


def test_names_may_be_given_by_number_and_ranges_may_cross(tmp_path: Path) -> None:
    export = NsysExport()
    export.range(None, 0, 100, textId=export.string("epoch"), eventType=START_END)
    export.range("unfinished", 10, None)
    export.range("mark", 20, 20, eventType=MARK)
    trace = load_export(export, tmp_path)
    assert names_of(rows_of(trace, "annotations")) == ["epoch"]


def test_steps_are_found_and_hold_what_starts_in_them(tmp_path: Path) -> None:
    trace = load_export(training_export(0), tmp_path)
    assert [(row["step"], row["name"], row["duration_ns"]) for row in rows_of(trace, "steps")] == [
        (0, "step 0", 9_000),
        (1, "step 1", 9_000),
    ]
    assert [row["step"] for row in rows_of(trace, "kernels")] == [0] * 5 + [1] * 5


def test_a_wait_knows_what_it_waited_for(tmp_path: Path) -> None:
    export = NsysExport()
    export.call("cudaStreamWaitEvent_v3020", 0, 10, 5)
    export.work("SYNCHRONIZATION", 1, 9, 5, syncType=2, eventSyncId=77, streamId=20)
    export.work("SYNCHRONIZATION", 20, 30, 6, syncType=4, eventSyncId=77, streamId=4294967295)
    owner = {"globalPid": export.tid() & ~0xFFFFFF}
    export.add("CUPTI_ACTIVITY_KIND_CUDA_EVENT", streamId=7, correlationId=3, eventSyncId=77, **owner)
    waits = rows_of(load_export(export, tmp_path), "syncs")
    shown = [(row["kind"], row["stream"], row["wait_on_stream"], row["wait_on_call"]) for row in waits]
    assert shown == [("stream-wait", 20, 7, 3), ("context", -1, -1, -1)]


def test_processes_stay_apart_though_they_use_the_same_numbers(tmp_path: Path) -> None:
    export = NsysExport(pid=11, device=0)
    export.launch("first", 1_000, 1)
    export.process(pid=12, device=1)
    export.call("cudaLaunchKernel_v7000", 500, 510, 1)
    export.kernel("second", 600, 650, 1)
    export.call("cudaLaunchKernel_v7000", 2_000, 2_010, 2)
    trace = load_export(export, tmp_path)
    launched = {row["name"]: (row["rank"], row["launch_start_ns"] - STARTED_NS) for row in rows_of(trace, "kernels")}
    assert launched == {"first": (0, 1_000), "second": (1, 500)}
    assert [row["rank"] for row in rows_of(trace, "runtime_calls")] == [1, 0, 1]


def test_a_process_that_only_marks_is_no_rank_where_others_work(tmp_path: Path) -> None:
    export = NsysExport(pid=11)
    export.launch("kernel", 1_000, 1)
    export.process(pid=10, device=0)
    export.range("launcher", 0, 5_000)
    trace = load_export(export, tmp_path)
    assert len(trace.table("profiles")) == 1
    assert trace.n_rows("annotations") == 0


def test_older_versions_have_fewer_columns_and_tables(tmp_path: Path) -> None:
    export = training_export(0)
    for table in ("TARGET_INFO_CUDA_DEVICE", "META_DATA_CAPTURE", "CUPTI_ACTIVITY_KIND_OVERHEAD"):
        del export.tables[table]
    without = {
        "CUPTI_ACTIVITY_KIND_KERNEL": ("demangledName", "graphId", "graphNodeId", "staticSharedMemory"),
        "CUPTI_ACTIVITY_KIND_MEMCPY": ("srcKind", "dstKind"),
        "NVTX_EVENTS": ("binaryData", "domainId"),
        "TARGET_INFO_GPU": ("maxWarpsPerSm",),
    }
    trace = load(export.write(tmp_path / "nsys_0.sqlite", without))
    kernels = rows_of(trace, "kernels")
    assert names_of(kernels)[:2] == ["sm80_gemm_f32", "Memcpy HtoD"]
    assert (kernels[0]["graph_id"], kernels[0]["registers"], kernels[0]["shared_bytes"]) == (-1, 32, -1)
    assert trace.table("devices").array("max_threads").tolist() == [-1, -1]


def test_times_that_are_counted_from_1970_already_stay_as_they_are(tmp_path: Path) -> None:
    export = NsysExport()
    export.launch("kernel", STARTED_NS + 1_000, 1)
    [kernel] = rows_of(load_export(export, tmp_path), "kernels")
    assert kernel["start_ns"] == STARTED_NS + 1_100


def test_without_the_start_of_the_capture_times_count_from_zero(tmp_path: Path) -> None:
    export = NsysExport()
    export.launch("kernel", 1_000, 1)
    del export.tables["TARGET_INFO_SESSION_START_TIME"]
    trace = load_export(export, tmp_path)
    assert [row["start_ns"] for row in rows_of(trace, "kernels")] == [1_100]
    assert "does not say when it started" in trace.table("files").text("problem")[0]


def test_names_with_broken_characters_are_kept(tmp_path: Path) -> None:
    export = NsysExport()
    export.launch("kernel", 1_000, 1)
    path = export.write(tmp_path / "nsys_0.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE StringIds SET value = CAST(x'6bff6e' AS TEXT) WHERE value = 'kernel'")
        connection.commit()
    assert names_of(rows_of(load(path), "kernels")) == ["k\ufffdn"]
