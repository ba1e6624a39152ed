from __future__ import annotations

import json

import pytest

import rankscope
from analyze.host_events import BACKWARD, SAMPLES, Process, capture, measure
from rankscope.analyze.host.diff import compare_captures
from rankscope.analyze.metric import Selection
from rankscope.model.tables import Trace

needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the sample traces are not here")


def normalise(process: Process, start: float, names: tuple[str, ...] = ("sub", "div", "mul")) -> None:
    """A layer that launches three kernels by operators of its own."""
    process.op("aten::layer_norm", start, start + 90)
    for number, name in enumerate(names):
        begin = start + 10 + 20 * number
        op = process.op(f"aten::{name}", begin, begin + 15)
        process.launch((begin + 4, begin + 9), (begin + 30, begin + 40), name=f"{name}_kernel", op_id=op)


def test_operators_by_name() -> None:
    process = Process()
    process.op("aten::linear", 0, 100, step=1)
    process.op("aten::linear", 20, 60, step=1)
    process.kernel("gemm", 200, 230, op_id=1)
    process.op("aten::linear", 300, 310, step=2)
    trace = capture(process)
    (row,) = measure(trace, "ops")
    assert (row["n"], row["total_ns"], row["self_ns"], row["mean_ns"]) == (3, 110_000, 110_000, 50_000)
    assert (row["n_kernels"], row["kernel_ns"], row["n_kernels_below"], row["kernel_below_ns"]) == (
        1,
        30_000,
        1,
        30_000,
    )
    (row,) = measure(trace, "ops", Selection(steps=[2]))
    assert (row["n"], row["total_ns"]) == (1, 10_000)


def test_operators_of_ranks_stay_apart_and_need_no_device() -> None:
    processes = [Process(rank) for rank in (0, 1)]
    for process in processes:
        process.op("aten::mul", 0, 10 * (1 + process.keys["rank"]))
    rows = measure(capture(*processes), "ops")
    assert [(row["rank"], row["total_ns"], row["kernel_below_ns"]) for row in rows] == [(0, 10_000, 0), (1, 20_000, 0)]


def two_layers() -> Trace:
    process = Process()
    for start in (0, 1000, 2000):
        normalise(process, start)
    normalise(process, 3000, ("sub", "mul", "div"))
    return capture(process)


def test_sequences_belong_to_the_outermost_operator_that_fits() -> None:
    rows = measure(two_layers(), "sequences")
    assert [(row["operator"], json.loads(row["kernels"]), row["n"]) for row in rows] == [
        ("aten::layer_norm", ["sub_kernel", "div_kernel", "mul_kernel"], 3),
        ("aten::layer_norm", ["sub_kernel", "mul_kernel", "div_kernel"], 1),
    ]
    assert (rows[0]["n_kernels"], rows[0]["kernel_ns"], rows[0]["cpu_ns"]) == (3, 90_000, 270_000)


def test_an_operator_inside_one_that_fits_has_no_sequence_of_its_own() -> None:
    process = Process()
    block = process.op("aten::block", 0, 200)
    normalise(process, 10)
    process.launch((150, 155), (300, 310), name="last", op_id=block)
    trace = capture(process)
    (row,) = measure(trace, "sequences")
    assert (row["operator"], row["n_kernels"], row["cpu_ns"]) == ("aten::block", 4, 200_000)
    (row,) = measure(trace, "sequences", operator="norm")
    assert (row["operator"], row["n_kernels"], row["cpu_ns"]) == ("aten::layer_norm", 3, 90_000)


def test_sequences_of_a_named_operator() -> None:
    rows = measure(two_layers(), "sequences", operator="div", min_kernels=1)
    assert [(row["operator"], json.loads(row["kernels"]), row["n"]) for row in rows] == [
        ("aten::div", ["div_kernel"], 4)
    ]
    assert measure(two_layers(), "sequences", operator="div") == []


def test_a_sequence_is_in_order_of_time_not_of_launches() -> None:
    process = Process()
    process.op("aten::fork", 0, 100)
    for name, launch, run in (("late", 10, 300), ("early", 20, 200), ("last", 30, 400)):
        process.launch((launch, launch + 5), (run, run + 10), name=name, op_id=0)
    (row,) = measure(capture(process), "sequences")
    assert json.loads(row["kernels"]) == ["early", "late", "last"]


def test_delays_are_those_of_the_innermost_aten_operator_and_its_first_launch() -> None:
    process = Process()
    process.op("aten::linear", 0, 100)
    process.op("aten::addmm", 10, 60)
    process.op("cublas", 20, 50)
    process.launch((24, 30), (34, 60), name="split", op_id=2)
    process.launch((40, 45), (60, 70), name="reduce", op_id=2)
    process.kernel("orphan", 80, 90, op_id=0)
    (row,) = measure(capture(process), "op_delays")
    assert (row["operator"], json.loads(row["kernels"]), row["n"]) == ("aten::addmm", ["split", "reduce"], 1)
    assert (row["to_launch_ns"], row["to_kernel_ns"]) == (14_000, 10_000)


def test_delays_of_one_rank_are_not_added_to_the_next() -> None:
    processes = [Process(rank) for rank in (0, 1, 2)]
    for process in processes:
        normalise(process, 0)
    rows = measure(capture(*processes), "op_delays")
    assert [(row["rank"], row["operator"], row["n"]) for row in rows if row["operator"] == "aten::div"] == [
        (rank, "aten::div", 1) for rank in (0, 1, 2)
    ]


def test_modules_from_python_calls_with_their_backward_kernels() -> None:
    process = Process()
    for step, start in ((1, 0), (2, 1000)):
        process.step(step, start, start + 900)
        process.python("train.py(3): main", start, start + 890)
        process.python("nn.Module: Net_0", start + 10, start + 200)
        process.python("nn.Module: Linear_0", start + 20, start + 100)
        forward = process.op("aten::addmm", start + 30, start + 60, sequence_number=start + 5, forward_tid=0)
        process.launch((start + 40, start + 45), (start + 50, start + 70), op_id=forward)
        process.launch((start + 150, start + 155), (start + 160, start + 165))
        outer = process.op(
            "AddmmBackward0", start + 300, start + 400, BACKWARD, sequence_number=start + 5, forward_tid=1
        )
        inner = process.op("aten::mm", start + 310, start + 350, BACKWARD)
        process.launch((start + 320, start + 325), (start + 330, start + 400), op_id=inner, tid=BACKWARD)
        assert inner == outer + 1
    trace = capture(process)
    net, linear = measure(trace, "modules")
    assert (net["module"], net["parent"], net["depth"], net["source"]) == ("Net_0", "", 0, "stacks")
    assert (linear["module"], linear["parent"], linear["depth"]) == ("Linear_0", "Net_0", 1)
    assert (net["n"], net["total_ns"], net["self_ns"]) == (2, 380_000, 220_000)
    assert (net["n_kernels"], net["kernel_ns"], net["n_kernels_below"], net["kernel_below_ns"]) == (
        2,
        10_000,
        4,
        50_000,
    )
    assert (linear["n_kernels"], linear["kernel_ns"]) == (2, 40_000)
    assert [row["kernel_backward_ns"] for row in (net, linear)] == [140_000, 140_000]
    assert [row["n_kernels_backward"] for row in (net, linear)] == [2, 2]
    assert [row["n"] for row in measure(trace, "modules", Selection(steps=[2]))] == [1, 1]


def test_modules_from_annotations_named_like_them() -> None:
    process = Process()
    process.annotation("ProfilerStep#3", 0, 100)
    process.annotation("Optimizer.step#SGD.step", 60, 90)
    process.annotation("DistributedDataParallel.forward", 0, 50)
    process.annotation("layers.0.mlp", 10, 40)
    rows = measure(capture(process), "modules")
    assert [(row["module"], row["parent"], row["source"]) for row in rows] == [
        ("DistributedDataParallel", "", "annotations"),
        ("layers.0.mlp", "DistributedDataParallel", "annotations"),
    ]
    assert measure(capture(Process()), "modules") == []


def captures_before_and_after() -> tuple[Trace, Trace]:
    before, after = Process(), Process()
    for process, names in ((before, ("mul", "add", "gone")), (after, ("mul", "add", "add", "new"))):
        for number, name in enumerate(names):
            process.op(f"aten::{name}", 10 * number, 10 * number + (9 if process is after else 5), step=1)
    after.kernel("gemm", 0, 40, step=1)
    return capture(before), capture(after)


def test_what_changed_between_two_captures() -> None:
    before, after = captures_before_and_after()
    rows = {(row["kind"], row["name"]): row for row in compare_captures(before, after).rows()}
    changes = {name: row["count_change"] for (_, name), row in rows.items()}
    assert changes == {
        "gemm": "added",
        "aten::new": "added",
        "aten::gone": "deleted",
        "aten::add": "increased",
        "aten::mul": "unchanged",
    }
    add = rows["op", "aten::add"]
    assert (add["n_before"], add["n_after"], add["diff_count"], add["diff_ns"]) == (1, 2, 1, 13_000)
    gone = rows["op", "aten::gone"]
    assert (gone["diff_count"], gone["total_before_ns"], gone["diff_ns"]) == (-1, 5000, -5000)
    assert next(iter(rows)) == ("kernel", "gemm")  # the largest change of time comes first
    assert len(compare_captures(before, after, Selection(steps=[2]))) == 0
    assert all(row["count_change"] == "unchanged" for row in compare_captures(after, after).rows())


@needs_samples
def test_sequences_of_a_trace_with_fractions_of_microseconds() -> None:
    rows = measure(rankscope.load(SAMPLES / "nccl_parser_config"), "sequences", operator="conv2d")
    assert rows
    assert all("conv2d" in row["operator"] and row["n_kernels"] >= 3 for row in rows)
    assert [row["n"] for row in rows] == sorted((row["n"] for row in rows), reverse=True)


@pytest.mark.cases
@needs_samples
@pytest.mark.parametrize("name", ["nccl_parser_config", "ns_resolution_trace", "amd_trace"])
def test_no_kernel_of_an_operator_is_lost_or_counted_twice(name: str) -> None:
    trace = rankscope.load(SAMPLES / name)
    kernels = trace.table("kernels")
    linked = kernels.array("op_id") >= 0
    total = int(kernels.array("duration_ns")[linked].sum())
    tree = trace.table("call_tree")
    tops = tree.array("parent_id") < 0
    assert int(tree.array("kernel_below_ns")[tops].sum()) == total
    assert sum(row["kernel_ns"] for row in measure(trace, "ops")) == total


@needs_samples
@pytest.mark.parametrize("name", ["cpu_only", "mtia_inference_trace", "triton_example", "cupti_profiler"])
def test_odd_traces_give_operators_without_a_crash(name: str) -> None:
    trace = rankscope.load(SAMPLES / name)
    assert measure(trace, "ops")
    for metric in ("sequences", "op_delays", "modules"):
        measure(trace, metric)
