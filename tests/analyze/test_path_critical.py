"""The critical path on traces whose path is known."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from analyze.path_traces import BACKWARD, BASE_NS, COMPUTE, NCCL, Process, trace_of
from rankscope.analyze.metric import METRICS, Selection
from rankscope.model.tables import Trace


def path_of(trace: Trace, **selection: Any) -> list[tuple[int, str, str, float]]:
    """(rank, kind, name, microseconds) of each piece; the pieces follow each other without a gap."""
    rows = list(METRICS["critical_path"].compute(trace, Selection(**selection)).rows())
    for before, after in pairwise(rows):
        assert before["start_ns"] + before["duration_ns"] == after["start_ns"]
    return [(row["rank"], row["kind"], row["name"], row["duration_ns"] / 1000) for row in rows]


def reasons_of(trace: Trace) -> list[str]:
    return [row["waited_for"] for row in METRICS["critical_path"].compute(trace).rows()]


def device_bound() -> Process:
    """The host launches two kernels and waits for them, known by the name of the call alone."""
    process = Process(0)
    process.op("aten::mm", 0, 20)
    process.kernel("gemm", 15, 500, launch=10)
    process.kernel("relu", 501, 900, launch=30)
    process.synchronize(40, 905)
    process.op("aten::item", 905, 1000)
    return process


def test_device_bound_host_waits_by_name() -> None:
    trace = trace_of(device_bound())
    assert path_of(trace) == [
        (0, "host", "aten::mm", 10),
        (0, "launch", "gemm", 5),
        (0, "kernel", "gemm", 485),
        (0, "kernel-gap", "relu", 1),
        (0, "kernel", "relu", 399),
        (0, "sync", "cudaStreamSynchronize", 5),
        (0, "host", "aten::item", 95),
    ]
    order = ["host order", "host order", "launch", "stream order", "stream order", "work on the device", "host order"]
    assert reasons_of(trace) == order


def test_host_bound() -> None:
    process = Process(0)
    process.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 300)
    process.op("aten::stack", 100, 200)
    process.op("aten::mm", 350, 420)
    process.kernel("gemm", 405, 415, launch=400)
    process.op("aten::add", 450, 600)
    process.kernel("add", 585, 700, launch=580)
    assert path_of(trace_of(process)) == [
        (0, "data-loading", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 300),
        (0, "host", "", 50),
        (0, "host", "aten::mm", 70),
        (0, "host", "", 30),
        (0, "host", "aten::add", 130),
        (0, "launch", "add", 5),
        (0, "kernel", "add", 115),
    ]


def two_streams(*, with_events: bool) -> Process:
    process = Process(0)
    process.kernel("first", 10, 100, launch=0)
    if with_events:
        process.event_wait(NCCL, COMPUTE, recorded=6, told=8)
    process.kernel("second", 103, 300, launch=20, stream=NCCL)
    process.kernel("beside", 102, 150, launch=30)
    process.synchronize(40, 310)
    return process


@pytest.mark.parametrize("with_events", [True, False])
def test_stream_waits_for_another(with_events: bool) -> None:
    """Recorded as events of synchronisation, or concluded from the start that nothing else explains."""
    trace = trace_of(two_streams(with_events=with_events))
    kinds = [(kind, name) for _, kind, name, _ in path_of(trace)]
    assert kinds[-4:] == [
        ("kernel", "first"),
        ("kernel-gap", "second"),
        ("kernel", "second"),
        ("sync", "cudaStreamSynchronize"),
    ]
    assert f"stream {COMPUTE}" in reasons_of(trace)


def test_event_recorded_before_later_work_does_not_wait_for_it() -> None:
    process = Process(0)
    process.kernel("early", 10, 50, launch=0)
    process.event_wait(NCCL, COMPUTE, recorded=6, told=8)
    process.kernel("late", 52, 400, launch=20)
    process.kernel("other", 55, 500, launch=40, stream=NCCL)
    names = [name for _, kind, name, _ in path_of(trace_of(process)) if kind == "kernel"]
    assert names == ["early", "other"]


def late_rank(clock_shift: float = 0) -> list[Process]:
    """Rank 1 computes longer; both then reduce. The clock of rank 1 may be ahead."""
    processes = []
    for rank, compute_end in ((0, 200), (1, 800)):
        shift = clock_shift if rank else 0
        process = Process(rank)
        process.kernel("backward", 10 + shift, compute_end + shift, launch=shift)
        process.event_wait(NCCL, COMPUTE, recorded=6 + shift, told=8 + shift)
        process.collective(0, compute_end + 2 + shift, 1000 + shift, launch=20 + shift)
        process.synchronize(30 + shift, 1003 + shift)
        processes.append(process)
    return processes


@pytest.mark.parametrize("clock_shift", [0, 5000])
def test_path_goes_on_with_the_last_rank(clock_shift: float) -> None:
    offset = {"file_id": 1, "rank": 1, "offset_ns": round(clock_shift * 1000), "drift_ppb": 0.0, "at_ns": BASE_NS}
    trace = trace_of(*late_rank(clock_shift), clocks=[offset])
    path = path_of(trace)
    assert [(rank, kind) for rank, kind, _, _ in path][:4] == [
        (1, "launch"),
        (1, "kernel"),
        (1, "kernel-gap"),
        (0, "communication"),
    ]
    assert sum(duration for *_, duration in path) == 1003
    assert [duration for _, kind, _, duration in path if kind == "communication"] == [198]
    assert "arrival of rank 1" in reasons_of(trace)


def test_chosen_ranks_keep_the_path_among_them() -> None:
    path = path_of(trace_of(*late_rank()), ranks=[0])
    assert {rank for rank, *_ in path} == {0}
    assert [duration for _, kind, _, duration in path if kind == "communication"] == [798]


def test_early_send_does_not_wait_for_its_receive() -> None:
    """The send was done long before the receive was posted, so that this waited for nobody."""
    sender, receiver = Process(0), Process(1)
    sender.collective(0, 10, 20, launch=0, op="send")
    receiver.kernel("busy", 10, 5000, launch=0)
    receiver.collective(0, 5010, 5040, launch=5000, op="recv")
    ranks = {rank for rank, *_ in path_of(trace_of(sender, receiver))}
    assert ranks == {1}


def test_wrong_matches_do_not_lead_in_circles() -> None:
    processes = []
    for rank, matches in ((0, (0, 1)), (1, (1, 0))):
        process = Process(rank)
        process.collective(matches[0], 10, 100, launch=0)
        process.collective(matches[1], 110, 150 + rank, launch=5)
        processes.append(process)
    assert sum(duration for *_, duration in path_of(trace_of(*processes))) == 151


def test_kernels_of_a_graph_follow_its_launch() -> None:
    process = Process(0)
    launch = process.call("cudaGraphLaunch", 100, 120)
    shared = {"type": "computation", "kind": "kernel", "device": 0, "correlation": launch, "call_id": launch}
    shared |= {"launch_start_ns": BASE_NS + 100_000, "launch_end_ns": BASE_NS + 120_000, "launch_tid": 100}
    for number, (start, end) in enumerate(((125, 300), (301, 500))):
        process.add("kernels", start, end, kernel_id=number, name=f"node {number}", stream=COMPUTE, **shared)
    process.op("aten::empty", 0, 40)
    path = [(kind, name) for _, kind, name, _ in path_of(trace_of(process))]
    assert path[-4:] == [("launch", "node 0"), ("kernel", "node 0"), ("kernel-gap", "node 1"), ("kernel", "node 1")]


def test_backward_thread_goes_on_after_the_wait_of_the_main_thread() -> None:
    process = device_bound()
    process.op("autograd::engine::evaluate_function: MmBackward0", 1100, 1200, tid=BACKWARD)
    process.kernel("gemm backward", 1160, 1400, launch=1150, tid=BACKWARD)
    kinds = [(kind, name) for _, kind, name, _ in path_of(trace_of(process))]
    assert ("sync", "cudaStreamSynchronize") in kinds
    assert kinds[-3:] == [
        ("host", "autograd::engine::evaluate_function: MmBackward0"),
        ("launch", "gemm backward"),
        ("kernel", "gemm backward"),
    ]


def test_threads_that_launch_while_others_wait_are_their_own() -> None:
    """A server: the wait of one thread has nothing to do with the launches of another."""
    process = Process(0)
    for round_ in range(10):
        at = 1000 * round_
        process.kernel("long", at + 10, at + 700, launch=at, tid=1, stream=1)
        process.synchronize(at + 20, at + 705, tid=1)
        process.kernel("short", at + 610, at + 620, launch=at + 600, tid=2, stream=2)
    process.kernel("last", 9800, 9990, launch=9790, tid=2, stream=2)
    kinds = {kind for _, kind, _, _ in path_of(trace_of(process))}
    assert kinds == {"host", "launch", "kernel"}


def test_launches_into_a_full_queue_wait_for_the_device() -> None:
    """The host is throttled by the device; what comes after waits for what the device did then."""
    process = Process(0)
    for number in range(400):
        blocked = number >= 300
        launch = 10 * number if not blocked else 3000 + 1000 * (number - 300)
        end = {"launch_end": launch + 990} if blocked else {}
        process.kernel(f"kernel {number}", 1000 * number + 20, 1000 * number + 980, launch=launch, **end)
    process.kernel("tail", 103_010, 500_000, launch=103_000, stream=NCCL)
    path = path_of(trace_of(process))
    assert [name for _, kind, name, _ in path if kind == "kernel"] == [*(f"kernel {i}" for i in range(103)), "tail"]
    assert [time for _, kind, _, time in path if kind == "sync"] == [10]


def test_collective_on_the_host_is_waited_for_when_the_host_does_nothing_else() -> None:
    processes = []
    for rank, arrival in ((0, 100), (1, 700)):
        process = Process(rank)
        process.op("aten::mm", 0, arrival - 10)
        process.op("c10d::allreduce_", arrival - 10, arrival)
        process.describe(0, arrival, 1000, op="all_reduce", name="gloo:all_reduce", tid=50 + rank)
        process.op("aten::add", 1010, 1100)
        processes.append(process)
    assert path_of(trace_of(*processes))[-4:] == [
        (1, "launch", "gloo:all_reduce", 10),
        (0, "communication", "gloo:all_reduce", 300),
        (0, "host", "", 10),
        (0, "host", "aten::add", 90),
    ]


def test_steps_end_with_the_last_rank_and_cut_the_path() -> None:
    process = device_bound()
    process.step(1, 0, 300)
    process.step(2, 300, 1000)
    rows = process.rows["kernels"]
    rows[0]["step"], rows[1]["step"] = 1, 2
    trace = trace_of(process)
    table = METRICS["critical_path"].compute(trace)
    by_step: dict[int, int] = {}
    for row in table.rows():
        by_step[row["step"]] = by_step.get(row["step"], 0) + row["duration_ns"]
    assert by_step == {1: 500_000, 2: 500_000}
    assert sum(duration for *_, duration in path_of(trace, steps=[2])) == 500
    assert sum(duration for *_, duration in path_of(trace, steps=[1])) == 500
    assert path_of(trace, steps=[7]) == []
    assert path_of(trace, steps=[]) == []


def test_two_windows_of_a_rank_have_a_path_each() -> None:
    first, second = Process(0, file_id=0), Process(0, file_id=1)
    first.kernel("gemm", 10, 100, launch=0)
    second.kernel("gemm", 100_010, 100_200, launch=100_000)
    table = METRICS["critical_path"].compute(trace_of(first, second))
    assert table.array("file_id").tolist() == [0, 0, 1, 1]
    assert table.array("duration_ns").sum() == 300_000


def test_two_processes_of_one_file_are_told_apart() -> None:
    """Their kernels and calls have the same numbers."""
    first, second = Process(0, file_id=0), Process(1, file_id=0)
    for process, name, end in ((first, "short", 100), (second, "long", 900)):
        process.event_wait(NCCL, COMPUTE, recorded=0, told=2)
        process.kernel(name, 10, end, launch=5)
        process.synchronize(20, end + 5)
    path = path_of(trace_of(first, second))
    assert {rank for rank, *_ in path} == {1}
    assert [name for _, kind, name, _ in path if kind in ("kernel", "sync")] == ["long", "cudaStreamSynchronize"]


def test_work_without_a_launch_and_overlapping_work_leave_no_gap() -> None:
    process = Process(0)
    process.op("aten::empty", 0, 10)
    process.kernel("unlaunched", 50, 300)
    process.kernel("overlapping", 200, 400)
    assert [(kind, name, time) for _, kind, name, time in path_of(trace_of(process))] == [
        ("host", "aten::empty", 10),
        ("host", "", 40),
        ("kernel", "unlaunched", 150),
        ("kernel", "overlapping", 200),
    ]


def test_summary_adds_up() -> None:
    table = METRICS["path_summary"].compute(trace_of(*late_rank()))
    assert table.array("duration_ns").sum() == 1_003_000
    assert table.array("share_pct").sum() == pytest.approx(100)
    first = next(iter(table.rows()))
    assert (first["rank"], first["kind"], first["main_name"]) == (1, "kernel", "backward")


def test_nothing_traced_gives_nothing() -> None:
    assert path_of(trace_of()) == []
    assert len(METRICS["path_summary"].compute(trace_of())) == 0
