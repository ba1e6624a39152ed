from __future__ import annotations

import pytest

import rankscope
from analyze.host_events import BACKWARD, MAIN, SAMPLES, Process, capture, measure
from rankscope.analyze.metric import Selection

pytestmark = pytest.mark.slow

needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the sample traces are not here")


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("cudaStreamSynchronize", True),
        ("cudaDeviceSynchronize", True),
        ("cudaEventSynchronize", True),
        ("cuCtxSynchronize", True),
        ("hipDeviceSynchronize", True),
        ("synchronizeStream", True),
        ("zeEventHostSynchronize", True),
        ("urQueueFinish", True),
        ("cudaMemcpy", True),
        ("hipMemcpyWithStream", True),
        ("cudaMemcpyAsync", False),
        ("cudaStreamWaitEvent", False),
        ("cudaEventQuery", False),
        ("cudaLaunchKernel", False),
    ],
)
def test_which_calls_wait(name: str, waits: bool) -> None:
    process = Process()
    process.call(name, 0, 10)
    assert len(measure(capture(process), "host_waits")) == waits


def test_a_copy_to_the_host_waits_when_it_comes_back_only_after_the_copy() -> None:
    process = Process()
    for start, name, end in (
        (0, "Memcpy DtoH (Device -> Pageable)", 8),
        (100, "Memcpy DtoH (Device -> Pinned)", 30),
        (200, "Memcpy HtoD (Pageable -> Device)", 8),
        (300, "CopyDeviceToHost", 8),
    ):
        process.launch((start, start + 10), (start + 2, start + end), name=name, kind="memcpy", call="cudaMemcpyAsync")
    assert [row["call_id"] for row in measure(capture(process), "host_waits")] == [0, 3]


def test_a_wait_knows_what_is_around_it() -> None:
    process = Process()
    process.step(5, 0, 1000)
    process.annotation("ProfilerStep#5", 0, 1000)
    process.annotation("## metrics ##", 0, 500)
    process.annotation("other thread", 0, 500, BACKWARD)
    process.op("aten::item", 100, 200)
    process.op("aten::_local_scalar_dense", 110, 190)
    process.op("aten::empty", 115, 120)
    process.call("cudaStreamSynchronize", 130, 180, step=5)
    process.call("cudaDeviceSynchronize", 600, 610)
    inside, outside = measure(capture(process), "host_waits")
    assert (inside["operator"], inside["root_operator"], inside["op_id"]) == (
        "aten::_local_scalar_dense",
        "aten::item",
        1,
    )
    assert (inside["annotation"], inside["step"], inside["tid"]) == ("## metrics ##", 5, MAIN)
    assert (outside["operator"], outside["op_id"], outside["annotation"], outside["step"]) == ("", -1, "", -1)
    assert [row["call_id"] for row in measure(capture(process), "host_waits", Selection(steps=[5]))] == [0]


def test_waits_without_any_operator() -> None:
    process = Process()
    process.call("cudaStreamSynchronize", 0, 10)
    (row,) = measure(capture(process), "host_waits")
    assert (row["operator"], row["root_operator"], row["annotation"], row["op_id"]) == ("", "", "", -1)


def drained(pause: float = 20, wait: float = 100) -> Process:
    """A kernel that the host waits for until 200; the next launch comes `pause` later, its kernel 10 after that."""
    process = Process()
    process.launch((0, 5), (10, 200))
    process.op("aten::item", 200 - wait, 202)
    process.call("cudaStreamSynchronize", 200 - wait, 202)
    process.launch((200 + pause, 205 + pause), (210 + pause, 300 + pause))
    return process


def causes(process: Process) -> list[str]:
    return [row["cause"] for row in measure(capture(process), "gaps")]


def test_the_device_idles_after_a_wait() -> None:
    (gap,) = measure(capture(drained()), "gaps")
    assert (gap["cause"], gap["duration_ns"], gap["late_ns"], gap["delay_ns"]) == ("sync", 30_000, 20_000, 5000)
    assert gap["wait_call_id"] == 1
    assert gap["kernel_id"] == 1


def test_a_short_wait_is_not_blamed_for_a_long_pause() -> None:
    assert causes(drained(pause=2000)) == ["host"]
    assert causes(drained(pause=150, wait=20)) == ["launch"]


def test_a_wait_on_an_idle_device_is_not_blamed() -> None:
    process = Process()
    process.launch((0, 5), (10, 50))
    process.call("cudaStreamSynchronize", 100, 195)
    process.launch((200, 205), (210, 300))
    assert causes(process) == ["launch"]


def test_a_pause_spent_in_the_loader_is_the_loaders() -> None:
    process = drained(pause=90)
    process.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 204, 280)
    process.annotation("dataloader inner", 210, 215)
    assert causes(process) == ["data"]


def test_launching_takes_longer_than_running() -> None:
    process = Process()
    for number in range(4):
        process.launch((100 * number, 100 * number + 10), (100 * number + 12, 100 * number + 15))
    assert causes(process) == ["launch"] * 3


def test_other_work_on_the_host() -> None:
    process = Process()
    process.launch((0, 10), (12, 15))
    process.launch((5000, 5010), (5012, 5015))
    assert causes(process) == ["host"]


def test_the_device_was_late_itself() -> None:
    process = Process()
    process.launch((0, 10), (12, 15))
    process.launch((11, 14), (500, 510))
    process.launch((515, 520), (900, 910))
    (early, late) = measure(capture(process), "gaps")
    assert [row["cause"] for row in (early, late)] == ["device", "device"]
    assert (early["late_ns"], early["delay_ns"]) == (0, 485_000)
    assert (late["late_ns"], late["delay_ns"]) == (5000, 380_000)


def test_no_gap_while_another_stream_runs_and_none_across_devices() -> None:
    process = Process()
    process.launch((0, 1), (10, 100))
    process.launch((2, 3), (20, 30), stream=8)
    process.launch((4, 5), (90, 120), stream=9)
    process.launch((6, 7), (400, 500), device=1)
    process.kernel("unlinked", 130, 140)
    (gap,) = measure(capture(process), "gaps")
    assert (gap["cause"], gap["duration_ns"], gap["late_ns"]) == ("unknown", 10_000, -1)


def test_waits_cost_what_the_device_idles_but_no_more_than_they_lasted() -> None:
    process = drained(pause=20, wait=16)
    process.call("cudaStreamSynchronize", 400, 450)
    trace = capture(process)
    assert [row["cause"] for row in measure(trace, "gaps")] == ["sync"]
    idle, harmless = measure(trace, "syncs")
    assert (idle["operator"], idle["n"], idle["n_idle"], idle["total_ns"], idle["idle_ns"]) == (
        "aten::item",
        1,
        1,
        18_000,
        18_000,
    )
    assert (harmless["operator"], harmless["n_idle"], harmless["idle_ns"]) == ("", 0, 0)


@needs_samples
def test_a_real_wait_is_found_with_its_operator() -> None:
    trace = rankscope.load(SAMPLES / "critical_path" / "cuda_event_sync")
    waits = {row["name"]: row["root_operator"] for row in measure(trace, "host_waits")}
    assert waits == {
        "cudaMemcpyAsync": "aten::is_nonzero",
        "cudaStreamSynchronize": "aten::is_nonzero",
        "cudaEventSynchronize": "",
        "cudaDeviceSynchronize": "",
    }


@needs_samples
@pytest.mark.parametrize(
    "name", ["nccl_parser_config", "ns_resolution_trace", "amd_trace", "trace_filter", "critical_path/alexnet"]
)
def test_gaps_of_a_real_trace_are_its_idle_time(name: str) -> None:
    """Idle time as the union of all kernels leaves it, computed here by a plain loop."""
    trace = rankscope.load(SAMPLES / name)
    kernels = trace.table("kernels")
    spans = sorted(
        zip(*(kernels.array(column).tolist() for column in ("file_id", "start_ns", "duration_ns")), strict=True)
    )
    idle, ends = 0, dict[int, int]()
    for file_id, start, duration in spans:
        idle += max(0, start - ends.get(file_id, start))
        ends[file_id] = max(ends.get(file_id, 0), start + duration)
    assert sum(row["duration_ns"] for row in measure(trace, "gaps")) == idle


@needs_samples
def test_odd_traces_give_waits_and_gaps_without_a_crash() -> None:
    for name in ("cpu_only", "cupti_profiler", "mtia_inference_trace", "triton_example"):
        trace = rankscope.load(SAMPLES / name)
        for metric in ("host_waits", "gaps", "syncs"):
            measure(trace, metric)
