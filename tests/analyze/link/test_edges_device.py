"""What orders the work of devices in a linked trace."""

from __future__ import annotations

import pytest

from analyze.link.edge_traces import Observed, assert_sound, edges_in, edges_of, trace_of
from analyze.path_traces import BACKWARD, COMPUTE, NCCL


def launched_by(process: Observed, op_id: int, *kernels: int) -> None:
    for row in process.rows["kernels"]:
        if row["kernel_id"] in kernels:
            row["op_id"] = op_id


def test_work_comes_from_the_node_that_launched_it() -> None:
    """Copies, fills, and the many kernels of one graph, too."""
    process = Observed()
    process.node("aten::linear", 0, 30)
    inner = process.node("aten::addmm", 1, 29, parent=10)
    op_id = process.n_ids
    kernels = [
        process.kernel("Memcpy HtoD", 20, 25, 5, kind="memcpy", type="memory"),
        process.kernel("Memset", 26, 28, 10, kind="memset", type="memory"),
        process.kernel("graph kernel", 40, 41, 15),
        process.kernel("graph kernel", 42, 43, 15),
    ]
    launched_by(process, op_id, *kernels)

    assert edges_of(process, kind="launch") == [(inner, kernel) for kernel in kernels]


def test_an_operator_that_is_no_node_is_part_of_the_one_around() -> None:
    process = Observed()
    outer = process.node("aten::linear", 0, 30)
    process.op("aten::addmm", 1, 20)
    process.op("aten::inner", 2, 10)
    kernel = process.kernel("gemm", 40, 50, 5)
    launched_by(process, process.n_ids - 2, kernel)
    process.op("aten::mm", 60, 70)
    lost = process.kernel("gemm", 80, 90, 65)
    launched_by(process, process.n_ids - 2, lost)

    assert [row["op_id"] for row in process.rows["kernels"]] == [3, 6]
    assert edges_of(process, kind="launch") == [(outer, kernel)]


def test_what_no_operator_launched_comes_after_the_node_begun_last() -> None:
    process = Observed()
    process.node("aten::mm", 0, 30)
    last = process.node("aten::add", 31, 32)
    process.node("evaluate_function", 33, 50, tid=BACKWARD, thread=2)
    kernel = process.kernel("flash attention", 60, 80, 40)
    process.kernel("of another thread", 90, 95, 41, tid=4711)
    process.kernel("without a launch", 96, 97)

    assert edges_of(process, kind="launch") == [(last, kernel)]


def test_a_stream_works_in_order() -> None:
    process = Observed()
    process.node("aten::mm", 0, 30)
    first, second = process.kernel("a", 10, 20, 1), process.kernel("b", 21, 30, 2)
    other = process.kernel("c", 11, 12, 3, stream=NCCL)
    third = process.kernel("d", 31, 40, 4)

    trace = trace_of(process)
    assert edges_in(trace, "stream") == [(first, second), (second, third)]
    assert other in {row["target_id"] for row in trace.table("et_edges").rows()}


def test_a_kernel_that_does_several_transfers_is_one() -> None:
    """Another process may have a kernel of the same number right after it."""
    processes = Observed(), Observed(1)
    for process in processes:
        process.node("c10d::send", 0, 30)
        process.kernel("ncclDevKernel_SendRecv", 10, 20, 1, type="communication")
        for op in ("send", "recv"):
            process.describe(-1, 10, 20, op=op, kernel_id=2)
        process.kernel("a", 21, 30, 2)

    assert assert_sound(trace_of(*processes)) == {"stream": 2, "launch": 4}


def test_processes_without_nodes_have_no_edges() -> None:
    process, alone = Observed(), Observed(1)
    process.node("aten::mm", 0, 30)
    for own in (process, alone):
        own.kernel("a", 10, 20, 1)
        own.kernel("b", 21, 30, 2)
    alone.node("aten::mm", 0, 30, is_seen=False)

    assert assert_sound(trace_of(process, alone)) == {"stream": 1, "launch": 2}


def test_a_host_that_waited_goes_on_with_the_next_node() -> None:
    """Not with the node that it waited in: that one launched what it waited for."""
    process = Observed()
    item = process.node("aten::item", 0, 60)
    kernel = process.kernel("Memcpy DtoH", 20, 50, 5)
    launched_by(process, 1, kernel)
    process.synchronize(12, 55)
    process.node("aten::other", 56, 57, tid=BACKWARD, thread=2)
    following = process.node("aten::add", 61, 62)
    process.node("aten::add", 70, 71)

    trace = trace_of(process)
    assert edges_in(trace, "sync") == [(kernel, following)]
    assert edges_in(trace, "launch") == [(item, kernel)]
    assert_sound(trace)


def test_a_stream_waits_for_the_event_of_another() -> None:
    process = Observed()
    process.node("aten::mm", 0, 30)
    awaited = process.kernel("a", 10, 40, 1, stream=COMPUTE)
    process.event_wait(NCCL, COMPUTE, recorded=7, told=9)
    waiting = process.kernel("b", 41, 50, 11, stream=NCCL)

    assert edges_of(process, kind="sync") == [(awaited, waiting)]


@pytest.mark.parametrize("start", [3.0, -20.0])
def test_clocks_that_are_off_break_nothing(start: float) -> None:
    """A kernel that seems to begin before its node does so after it, and so does what follows on the stream."""
    process = Observed()
    node = process.node("aten::mm", 0, 30)
    kernel = process.kernel("a", start, start + 2, 5)
    launched_by(process, 1, kernel)
    second = process.kernel("b", start + 2.5, start + 3)

    trace = trace_of(process)
    assert_sound(trace)
    assert edges_in(trace, "launch") == [(node, kernel)]
    assert edges_in(trace, "stream") == [(kernel, second)]


def test_a_wait_that_seems_to_end_early_holds_up_what_begins_after_the_work() -> None:
    process = Observed()
    process.node("aten::mm", 0, 30)
    kernel = process.kernel("a", 33, 35, 5)
    process.synchronize(31, 32)
    process.node("aten::add", 32.5, 32.7)
    later = process.node("aten::add", 33.5, 36)

    assert edges_of(process, kind="sync") == [(kernel, later)]


def test_executions_of_whole_graphs_are_no_work() -> None:
    process = Observed()
    process.node("aten::mm", 0, 30)
    process.kernel("graph", 10, 50, 1, type="other")
    first, second = process.kernel("a", 11, 20, 1), process.kernel("b", 21, 30, 1)

    assert edges_of(process, kind="stream") == [(first, second)]
