from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import rankscope
from analyze.host_events import EPOCH_NS, SAMPLES, Process, capture, measure
from rankscope.analyze.metric import Selection

needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the sample traces are not here")


def a_bit_of_everything(rank: int = 0) -> Process:
    process = Process(rank)
    process.launch((0, 10), (12, 15), name="short")
    process.launch((20, 80), (81, 200), name="slow launch", call="cuLaunchKernelEx")
    process.launch((100, 110), (300, 400), name="waited", call="hipExtModuleLaunchKernel")
    process.launch((150, 160), (155, 158), name="Memcpy HtoD", kind="memcpy", call="cudaMemcpyAsync")
    graph = process.call("cudaGraphLaunch", 500, 520)
    for start in (530, 540, 550):
        process.kernel("node", start, start + 8, graph, stream=9)
    process.kernel("orphan", 600, 700)
    process.call("cudaLaunchKernel", 800, 810)
    return process


def test_every_kind_of_launch_counts_once() -> None:
    rows = measure(capture(a_bit_of_everything()), "launches")
    assert [(row["name"], row["kernel"], row["n_kernels"]) for row in rows] == [
        ("cudaLaunchKernel", "short", 1),
        ("cuLaunchKernelEx", "slow launch", 1),
        ("hipExtModuleLaunchKernel", "waited", 1),
        ("cudaMemcpyAsync", "Memcpy HtoD", 1),
        ("cudaGraphLaunch", "node", 3),
    ]
    times = [(row["cpu_ns"], row["gpu_ns"], row["delay_ns"]) for row in rows]
    assert times == [
        (10_000, 3000, 2000),
        (60_000, 119_000, 1000),
        (10_000, 100_000, 190_000),
        (10_000, 3000, 0),
        (20_000, 24_000, 10_000),
    ]
    assert rows[-1]["stream"] == 9
    assert rows[0]["start_ns"] == EPOCH_NS


def test_summary_counts_short_slow_and_delayed_launches() -> None:
    trace = capture(a_bit_of_everything(0), a_bit_of_everything(1))
    rows = measure(trace, "launch_summary")
    assert [row["rank"] for row in rows] == [0, 1]
    (row, _) = rows
    assert (row["n_launches"], row["n_kernels"]) == (5, 7)
    assert (row["n_short"], row["n_slow"], row["n_delayed"]) == (2, 1, 1)
    assert (row["cpu_ns"], row["gpu_ns"], row["max_delay_ns"]) == (110_000, 249_000, 190_000)
    (row, _) = measure(trace, "launch_summary", slow_us=9, delay_us=1.5)
    assert (row["n_slow"], row["n_delayed"]) == (5, 3)


def test_queue_grows_at_the_launch_and_shrinks_at_the_start() -> None:
    process = Process()
    process.launch((0, 1), (10, 20))
    process.launch((2, 3), (20, 30))
    process.launch((4, 5), (30, 40), stream=8)
    process.launch((50, 60), (49, 70))  # clocks that disagree: the kernel seems to begin before its launch
    rows = measure(capture(process), "queue")
    lengths = [(row["stream"], (row["time_ns"] - EPOCH_NS) // 1000, row["n_queued"]) for row in rows]
    assert lengths == [(7, 0, 1), (7, 2, 2), (7, 10, 1), (7, 20, 0), (8, 4, 1), (8, 30, 0)]
    (main, other) = measure(capture(process), "queue_summary")
    assert main["mean_queued"] == (2 * 1 + 8 * 2 + 10 * 1) / 20
    assert (main["n_changes"], main["max_queued"], main["median_queued"]) == (4, 2, 1.0)
    assert (other["stream"], other["mean_queued"]) == (8, 1.0)


def test_a_queue_of_chosen_steps_holds_what_was_queued_before() -> None:
    process = Process()
    process.launch((0, 1), (50, 60), step=1)
    process.launch((20, 21), (60, 70), step=2)
    rows = measure(capture(process), "queue", Selection(steps=[2]))
    assert [row["n_queued"] for row in rows] == [2, 0]


def blocked_process(rank: int) -> Process:
    process = Process(rank)
    for number in range(8):
        process.launch((number, number + 0.5), (100 + 10 * number, 105 + 10 * number))
    process.launch((1000, 1001), (1100, 1101), stream=8)
    return process


def test_all_streams_of_all_ranks_say_how_long_they_were_full() -> None:
    rows = measure(capture(blocked_process(0), blocked_process(1)), "blocked", max_queue=6)
    assert [(row["rank"], row["stream"]) for row in rows] == [(0, 7), (0, 8), (1, 7), (1, 8)]
    assert [row["n_blocked"] for row in rows] == [1, 0, 1, 0]
    full = rows[0]
    assert (full["blocked_ns"], full["longest_ns"]) == (115_000, 115_000)  # from the 6th launch to the third start
    assert full["window_ns"] == 1_100_000
    assert full["blocked_pct"] == pytest.approx(100 * 115 / 1100)
    assert [row["blocked_ns"] for row in measure(capture(blocked_process(0)), "blocked")] == [0, 0]


def test_a_host_without_a_device_has_no_launches() -> None:
    process = Process()
    process.op("aten::add", 0, 10)
    for name in ("launches", "launch_summary", "queue", "queue_summary", "blocked"):
        assert measure(capture(process), name) == []


def launches_in(path: Path) -> dict[str, list[Any]]:
    """By correlation, from the file itself: [duration of the call, time of its kernels, start of the first]."""
    with gzip.open(path) as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    calls, kernels = {}, {}  # type: ignore[var-annotated]
    for event in events:
        number = event.get("args", {}).get("correlation", 0)
        if number and event["cat"] in ("cuda_runtime", "cuda_driver"):
            calls[number] = event
        elif number and event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset"):
            kernels.setdefault(number, []).append(event)
    return {
        number: [call["dur"], sum(event["dur"] for event in kernels[number])]
        for number, call in calls.items()
        if number in kernels
    }


@pytest.mark.cases
@needs_samples
@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("amd_trace", {"hipLaunchKernel", "hipMemcpyWithStream", "hipExtModuleLaunchKernel"}),
        ("triton_example", {"cuLaunchKernel"}),
        ("nccl_parser_config", {"cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cudaMemsetAsync"}),
    ],
)
def test_launches_of_real_traces_are_those_of_the_file(name: str, calls: set[str]) -> None:
    expected = launches_in(next((SAMPLES / name).glob("*.json.gz")))
    rows = measure(rankscope.load(SAMPLES / name), "launches")
    assert {row["name"] for row in rows} == calls
    assert len(rows) == len(expected)
    for column, position in (("cpu_ns", 0), ("gpu_ns", 1)):
        assert sum(row[column] for row in rows) == round(1000 * sum(times[position] for times in expected.values()))


@needs_samples
def test_a_command_of_an_accelerator_may_have_many_kernels() -> None:
    rows = measure(rankscope.load(SAMPLES / "mtia_inference_trace"), "launches")
    assert max(row["n_kernels"] for row in rows) > 1
    assert len({row["call_id"] for row in rows}) == len(rows)
