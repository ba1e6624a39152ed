"""The Kineto reader on small traces: each producer's habits, links, communication, time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankscope.model.tables import Trace
from rankscope.pipeline import load
from read.kineto_text import BASE_NS, kernel, launch, load_events, rows, span, step, write_trace


def problems(trace: Trace) -> list[str]:
    return [problem for problem in trace.table("files").text("problem").tolist() if problem]


def test_every_category_goes_to_its_table(tmp_path: Path) -> None:
    trace = load_events(
        tmp_path,
        [
            step(1, 0, 100),
            span("cpu_op", "aten::mm", 10, 20, **{"External id": 5, "Input Dims": [[2, 3]], "Sequence number": 9}),
            launch(12, 3, 77, **{"External id": 5}),
            kernel("gemm", 20, 30, 77, grid=[4, 1, 1], **{"External id": 5, "blocks per SM": 0.5}),
            span("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 60, 5, tid=7, stream=7, device=0, bytes=4096),
            span("gpu_memset", "Memset (Device)", 70, 1, tid=7, stream=7, device=0, bytes=64),
            span("cuda_sync", "Sync", 71, 0, stream=7, wait_on_stream=20, cuda_sync_kind="Stream Wait Event"),
            span("gpu_user_annotation", "forward", 20, 30, tid=7),
            span("overhead", "Buffer Flush", 90, 2),
            {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 7, "tid": 7, "ts": 15,
             "args": {"Bytes": -512, "Total Allocated": 1024, "Device Type": 1, "Device Id": 0, "Addr": 255}},
            {"ph": "s", "id": 3, "cat": "fwdbwd", "name": "fwdbwd", "pid": 7, "tid": 7, "ts": 10},
            {"ph": "f", "id": 3, "cat": "fwdbwd", "name": "fwdbwd", "pid": 7, "tid": 8, "ts": 40, "bp": "e"},
            span("cuda_profiler_range", "gemm", 20, 30, **{"flops.sum": 12}),
        ],
    )  # fmt: skip
    assert rows(trace, "SELECT name, input_dims, sequence_number, step FROM ops") == [("aten::mm", "[[2,3]]", 9, 1)]
    assert rows(trace, "SELECT kind, type, n_bytes FROM kernels ORDER BY start_ns") == [
        ("kernel", "computation", None),
        ("memcpy", "memory", 4096),
        ("memset", "memory", 64),
    ]
    assert rows(trace, "SELECT grid, blocks_per_sm FROM kernels WHERE kind = 'kernel'") == [("[4,1,1]", 0.5)]
    assert rows(trace, "SELECT kind, stream, wait_on_stream FROM syncs") == [("stream-wait", 7, 20)]
    found = rows(trace, "SELECT name, kind, tid, stream FROM annotations ORDER BY name")
    assert found == [
        ("Buffer Flush", "overhead", 7, None),
        ("ProfilerStep#1", "host", 7, None),
        ("forward", "device", None, 7),
    ]
    assert rows(trace, "SELECT device_type, address, n_bytes, allocated_bytes FROM memory") == [
        ("cuda", "0xff", -512, 1024)
    ]
    assert rows(trace, "SELECT flow_id, is_start, tid FROM flows ORDER BY time_ns") == [(3, True, 7), (3, False, 8)]
    assert rows(trace, "SELECT counter, value FROM counters") == [("flops.sum", 12.0)]


def test_a_kernel_knows_its_launch_its_operator_and_its_step(tmp_path: Path) -> None:
    trace = load_events(
        tmp_path,
        [
            step(4, 0, 100),
            step(5, 100, 100),
            span("cpu_op", "aten::linear", 80, 30, **{"External id": 1}),
            span("cpu_op", "aten::addmm", 85, 20, **{"External id": 2}),
            launch(90, 5, 9, **{"External id": 2}),
            kernel("gemm", 130, 10, 9, **{"External id": 2}),  # runs in step 5, but was launched in step 4
        ],
    )
    found = rows(
        trace,
        "SELECT o.name, k.step, k.launch_start_ns - s.start_ns, k.launch_end_ns - k.launch_start_ns "
        "FROM kernels k JOIN ops o USING (file_id, op_id) JOIN steps s ON s.step = 4",
    )
    assert found == [("aten::addmm", 4, 90_000, 5_000)]


def test_without_numbers_the_innermost_open_operator_of_the_thread_launched_it(tmp_path: Path) -> None:
    trace = load_events(
        tmp_path,
        [
            span("cpu_op", "outer", 0, 100),
            span("cpu_op", "finished", 10, 20),
            span("cpu_op", "elsewhere", 0, 100, tid=8),
            launch(40, 5, 1),  # after `finished`, inside `outer`
            launch(15, 5, 2),
            launch(200, 5, 3),  # inside nothing
            kernel("a", 50, 1, 1),
            kernel("b", 60, 1, 2),
            kernel("c", 210, 1, 3),
        ],
    )
    found = rows(trace, "SELECT k.name, o.name FROM kernels k LEFT JOIN ops o USING (file_id, op_id) ORDER BY k.name")
    assert found == [("a", "outer"), ("b", "finished"), ("c", None)]


def test_all_kernels_of_a_graph_have_its_launch(tmp_path: Path) -> None:
    graph = span("cuda_runtime", "cudaGraphLaunch", 0, 5, correlation=8)
    nodes = [kernel(f"node{number}", 10 + number, 1, 8, **{"graph node id": number}) for number in range(3)]
    trace = load_events(tmp_path, [graph, *nodes])
    assert rows(trace, "SELECT count(*), count(DISTINCT call_id), count(DISTINCT graph_node_id) FROM kernels") == [
        (3, 1, 3)
    ]


def test_old_traces_write_stream_7_for_a_thread_and_kernel_in_capitals(tmp_path: Path) -> None:
    event = {**span("Kernel", "gemm", 5, 2, correlation=3), "tid": "stream 7"}
    trace = load_events(
        tmp_path, [event, span("Runtime", "cudaLaunchKernel", 1, 1, correlation=3), span("Operator", "mm", 0, 3)]
    )
    assert rows(trace, "SELECT stream, call_id IS NOT NULL FROM kernels") == [(7, True)]
    assert rows(trace, "SELECT name FROM ops") == [("mm",)]


# Time


@pytest.mark.parametrize(
    ("start", "base", "expected"),
    [
        ("3941294061054.097", BASE_NS, BASE_NS + 3941294061054097),
        ("1712195498012345.678", 0, 1712195498012345678),  # since 1970, finer than a double can tell
        ("1682725898236567", 0, 1682725898236567000),
        ("8796093022207.999", BASE_NS, BASE_NS + 8796093022207999),
        ("0.001", BASE_NS, BASE_NS + 1),
    ],
)
def test_times_are_exact_to_the_nanosecond(tmp_path: Path, start: str, base: int, expected: int) -> None:
    text = json.dumps({"traceEvents": [span("cpu_op", "mm", 111, 2.345)], "baseTimeNanoseconds": base})
    path = tmp_path / "kineto_trace_0.json"
    path.write_text(text.replace("111", start))
    assert rows(load(path), "SELECT start_ns, duration_ns FROM ops") == [(expected, 2345)]


def test_ranks_may_count_from_different_bases(tmp_path: Path) -> None:
    quarter = 7_889_238 * 10**6
    for rank, (base, start) in enumerate([(BASE_NS, quarter - 5), (BASE_NS + quarter * 1000, 5)]):
        path = tmp_path / f"kineto_trace_{rank}.json"
        write_trace(path, [span("cpu_op", "mm", start, 1)], baseTimeNanoseconds=base, distributedInfo={"rank": rank})
    assert rows(load(tmp_path), "SELECT max(start_ns) - min(start_ns) FROM ops") == [(10_000,)]


def test_the_base_of_a_cut_trace_is_the_boundary_before_its_date(tmp_path: Path) -> None:
    import os

    path = write_trace(tmp_path / "kineto_trace_0.json", [span("cpu_op", "mm", 10, 1), span("cpu_op", "mm", 20, 1)])
    path.write_bytes(path.read_bytes()[:-60])
    recorded = BASE_NS + 10**9
    os.utime(path, ns=(recorded, recorded))
    trace = load(path)
    assert rows(trace, "SELECT start_ns FROM ops") == [(BASE_NS + 10_000,)]
    assert "inferred" in problems(trace)[0]


# Ranks and files


@pytest.mark.parametrize(
    ("name", "around", "rank"),
    [
        ("kineto_trace_3.json", {}, 3),
        ("rank-34.Jul_15_10_52_41.1074.pt.trace.json", {}, 34),
        ("host_12345.1700000000.pt.trace.json", {}, 0),
        ("kineto_trace_3.json", {"distributedInfo": {"rank": 5, "world_size": 8}}, 5),
        ("kineto_trace_3.json", {"distributedInfo": {"rank": "five"}}, 3),
    ],
)
def test_the_rank_is_the_traces_own_else_the_names(
    tmp_path: Path, name: str, around: dict[str, Any], rank: int
) -> None:
    write_trace(tmp_path / name, [span("cpu_op", "mm", 1, 1)], **around)
    assert load(tmp_path).table("profiles").array("rank").tolist() == [rank]


def test_two_windows_of_one_rank_are_both_used(tmp_path: Path) -> None:
    for number, start in enumerate((0, 1000)):
        write_trace(tmp_path / f"rank-0.{number}.pt.trace.json", [step(number, start, 10)], distributedInfo={"rank": 0})
    assert rows(load(tmp_path), "SELECT step, rank, file_id FROM steps ORDER BY step") == [(0, 0, 0), (1, 0, 1)]


@pytest.mark.parametrize("packed", ["gzip", "zstd", "plain"])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_packing_and_white_space_do_not_matter(tmp_path: Path, packed: str, separators: tuple[str, str]) -> None:
    import gzip

    text = json.dumps({"schemaVersion": 1, "traceEvents": [step(1, 0, 9)]}, separators=separators).encode()
    if packed == "zstd":
        content = pytest.importorskip("zstandard").compress(text)
    else:
        content = gzip.compress(text) if packed == "gzip" else text
    (tmp_path / "kineto_trace_0.json").write_bytes(content)
    assert rows(load(tmp_path), "SELECT step FROM steps") == [(1,)]


def test_a_bare_array_of_events_is_a_trace(tmp_path: Path) -> None:
    (tmp_path / "kineto_trace_0.json").write_text(json.dumps([span("cpu_op", "mm", 1, 1)]))
    trace = load(tmp_path)
    assert rows(trace, "SELECT name FROM ops") == [("mm",)]
    assert problems(trace) == []


def test_python_functions_are_read_only_when_wanted(tmp_path: Path) -> None:
    frame = span("python_function", "train.py(12): step", 0, 50, **{"Python id": 2, "Python parent id": 1})
    path = write_trace(tmp_path / "kineto_trace_0.json", [frame, span("cpu_op", "mm", 1, 1)])
    assert not load(path).has("python_calls")
    assert rows(load(path, with_stacks=True), "SELECT python_id, parent_id, name FROM python_calls") == [
        (2, 1, "train.py(12): step")
    ]


# Communication

_METADATA = {
    "Collective name": "allreduce",
    "dtype": "BFloat16",
    "In msg nelems": 100,
    "Out msg nelems": 100,
    "Group size": 2,
    "Process Group Name": "3",
    "Process Group Description": "dp",
    "Process Group Ranks": "[0, 1]",
    "Seq": 17,
}
_COMM = "SELECT op, is_p2p, group_name, seq, n_bytes FROM comms"


def test_a_collective_is_described_by_its_kernel(tmp_path: Path) -> None:
    trace = load_events(tmp_path, [kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 5, 2, 1, **_METADATA)])
    assert rows(trace, _COMM) == [("all_reduce", False, "3", 17, 200)]


def test_or_by_the_operator_that_launched_it(tmp_path: Path) -> None:
    operator = span("cpu_op", "record_param_comms", 0, 4, **{"External id": 6}, **_METADATA)
    bare = kernel("ncclKernel_Generic", 5, 2, 1, **{"External id": 6})
    assert rows(load_events(tmp_path, [operator, bare]), _COMM) == [("all_reduce", False, "3", 17, 200)]


@pytest.mark.parametrize(
    ("name", "op", "is_p2p"),
    [
        ("ncclKernel_AllGather_RING_LL_Sum_float(ncclDevComm*)", "all_gather", False),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv", True),
        ("ncclDevKernel_Generic(ncclDevComm*)", "unknown", False),
    ],
)
def test_or_by_its_name_alone(tmp_path: Path, name: str, op: str, is_p2p: bool) -> None:
    assert rows(load_events(tmp_path, [kernel(name, 5, 2, 1)]), _COMM) == [(op, is_p2p, None, None, None)]


def test_gloo_is_seen_on_the_host(tmp_path: Path) -> None:
    run = span("user_annotation", "gloo:all_reduce", 5, 2, tid=9, **{"Input Dims": [[3, 4]], "Input type": ["float"]})
    scalar = span("user_annotation", "gloo:broadcast", 9, 2, tid=9, **{"Input Dims": [[]], "Input type": ["long"]})
    trace = load_events(tmp_path, [step(2, 0, 50), run, scalar])
    assert rows(trace, "SELECT op, n_bytes, dtype, tid, step FROM comms ORDER BY comm_id") == [
        ("all_reduce", 48, "Float", 9, 2),
        ("broadcast", 8, "Long", 9, 2),
    ]


# Broken and hostile traces


def test_a_cut_trace_is_read_up_to_its_last_whole_event(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "kineto_trace_0.json", [span("cpu_op", f"op{n}", n, 1) for n in range(100)])
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    trace = load(path)
    n_ops = trace.n_rows("ops")
    assert 40 < n_ops < 60
    assert rows(trace, "SELECT max(name) FROM ops WHERE start_ns = (SELECT max(start_ns) FROM ops)") == [
        (f"op{n_ops - 1}",)
    ]
    assert "last complete event" in problems(trace)[0]


def test_an_event_that_makes_no_sense_costs_only_itself(tmp_path: Path) -> None:
    odd: list[Any] = [
        {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": "yesterday", "dur": 1},
        {"ph": "X", "cat": "cpu_op", "name": ["a"], "pid": {}, "tid": None, "ts": 1, "dur": -5, "args": 7},
        {"ph": 3, "cat": None},
        span("kernel", "k", 3, 1, correlation="seven", stream=[1], device=2**70),
        span("cpu_op", "fine", 2, 1),
    ]
    trace = load_events(tmp_path, odd)
    assert ("fine",) in rows(trace, "SELECT name FROM ops")
    assert rows(trace, "SELECT min(duration_ns) >= 0 FROM ops") == [(True,)]
    assert rows(trace, "SELECT correlation, device FROM kernels") == [(None, None)]


def test_text_that_is_no_json_costs_only_the_events_around_it(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "kineto_trace_0.json", [span("cpu_op", f"op{n}", n, 1) for n in range(9)])
    path.write_text(path.read_text().replace('"op4"', '"op4" oops'))
    assert sorted(rows(load(path), "SELECT name FROM ops")) == [(f"op{n}",) for n in range(9) if n != 4]


@pytest.mark.parametrize("name", ["'; DROP TABLE ops; --", "</script><b>", "a\nb", "\ud800", "名前", "x" * 100_000])
def test_names_are_data(tmp_path: Path, name: str) -> None:
    trace = load_events(tmp_path, [span("cpu_op", name, 1, 1)])
    [(found,)] = rows(trace, "SELECT name FROM ops")
    assert found == name or "\ud800" in name


@pytest.mark.parametrize("start", [1e30, -1e30, 2**63, -1])
def test_absurd_times_are_an_error_or_a_row_never_a_crash(tmp_path: Path, start: float) -> None:
    from contextlib import suppress

    from rankscope.errors import InputError

    with suppress(InputError):
        load_events(tmp_path, [span("cpu_op", "mm", start, 1)])


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    from rankscope.errors import InputError

    path = tmp_path / "kineto_trace_0.json"
    path.write_text('{"schemaVersion": 1, "traceEvents": [{"ph": "X", "args": ' + "[" * 1_000_000)
    with pytest.raises(InputError):
        load(path)
