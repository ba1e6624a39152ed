"""Named ranges on host and device, with the kernels that belong to them; and hardware counters with their operators."""

from __future__ import annotations

import json

from analyze.device_tables import Row, kernel, on_ranks, rows_of, span, trace_of

US = 1000


def by_name(rows: list[Row]) -> dict[tuple[str, str], Row]:
    return {(row["name"], row["kind"]): row for row in rows}


def test_kernels_count_for_the_range_in_which_they_were_launched() -> None:
    trace = trace_of(
        annotations=[
            span(0, 50, name="forward", kind="host", tid=1),
            span(100, 120, name="forward", kind="host", tid=1),
            span(0, 200, name="epoch", kind="host", tid=1),
            span(0, 200, name="other thread", kind="host", tid=2),
        ],
        kernels=[
            kernel(60, 70, launch=10),
            kernel(70, 75, launch=49),
            kernel(75, 77, launch=50),  # the range is over
            kernel(130, 140, launch=100),
        ],
    )
    found = by_name(rows_of(trace, "annotations"))
    forward = found["forward", "host"]
    assert (forward["n_ranges"], forward["total_ns"], forward["min_ns"], forward["max_ns"], forward["mean_ns"]) == (
        2,
        70 * US,
        20 * US,
        50 * US,
        35 * US,
    )
    assert (forward["n_kernels"], forward["kernel_ns"]) == (3, 25 * US)
    assert found["epoch", "host"]["n_kernels"] == 4
    assert found["other thread", "host"]["n_kernels"] == 0


def test_the_backward_pass_launches_from_a_thread_of_its_own() -> None:
    trace = trace_of(
        annotations=[span(0, 50, name="backward", kind="host", tid=1), span(60, 90, name="step", kind="host", tid=1)],
        ops=[span(5, 20, name="autograd::engine::evaluate_function: MmBackward0", tid=9)],
        kernels=[kernel(30, 40, launch=10, launch_tid=9), kernel(80, 85, launch=65)],
    )
    found = by_name(rows_of(trace, "annotations"))
    assert found["backward", "host"]["kernel_ns"] == 10 * US
    assert found["step", "host"]["kernel_ns"] == 5 * US


def test_a_range_inside_another_of_its_name_does_not_count_kernels_twice() -> None:
    trace = trace_of(
        annotations=[span(0, 50, name="block", kind="host", tid=1), span(10, 40, name="block", kind="host", tid=1)],
        kernels=[kernel(60, 70, launch=20)],
    )
    [row] = rows_of(trace, "annotations")
    assert (row["n_ranges"], row["n_kernels"], row["kernel_ns"]) == (2, 1, 10 * US)


def test_on_the_device_kernels_of_the_same_stream_count() -> None:
    trace = trace_of(
        annotations=[span(0, 50, name="forward", kind="device", stream=7)],
        kernels=[kernel(10, 20), kernel(20, 30, stream=8), kernel(50, 60)],
    )
    [row] = rows_of(trace, "annotations")
    assert (row["kind"], row["n_kernels"], row["kernel_ns"]) == ("device", 1, 10 * US)


def test_ids_of_threads_mean_nothing_across_files() -> None:
    trace = trace_of(
        annotations=[span(0, 50, name="forward", kind="host", tid=1, rank=1, file_id=1)],
        kernels=[kernel(10, 20, launch=5)],
    )
    [row] = rows_of(trace, "annotations")
    assert (row["rank"], row["n_kernels"]) == (1, 0)


def measured(n_ranges: int) -> dict[str, list[Row]]:
    """Ranges of two counters each, and three launches under operators."""
    counters = [
        span(1000 + place, 1001 + place, range_id=place, name=f"range {place}", counter=counter, value=float(place))
        for place in range(n_ranges)
        for counter in ("dram_bytes", "inst")
    ]
    calls = [
        span(10 * place + 3, 10 * place + 4, name="cudaLaunchKernel", tid=1, call_id=place, correlation=place)
        for place in range(3)
    ]
    operators = [
        span(0, 8, name="aten::linear", tid=1, op_id=0),
        span(1, 7, name="aten::addmm", tid=1, op_id=1),
        span(12, 15, name="aten::relu", tid=1, op_id=2),
        span(0, 30, name="aten::elsewhere", tid=2, op_id=3),
    ]
    others = [span(5, 6, name="cudaStreamSynchronize", tid=1, call_id=9)]
    return {"counters": counters, "runtime_calls": calls + others, "ops": operators}


def test_ranges_belong_to_launches_in_their_order() -> None:
    rows = rows_of(trace_of(**measured(3)), "counters")
    assert len(rows) == 6
    assert [(row["range_id"], row["call_id"], row["op"], row["top_op"]) for row in rows[::2]] == [
        (0, 0, "aten::addmm", "aten::linear"),
        (1, 1, "aten::relu", "aten::relu"),
        (2, 2, "", ""),
    ]
    assert json.loads(rows[0]["op_stack"]) == ["aten::linear", "aten::addmm"]


def test_no_operator_is_given_where_not_every_launch_was_measured() -> None:
    rows = rows_of(trace_of(**measured(2)), "counters")
    assert [(row["call_id"], row["op"]) for row in rows] == [(-1, "")] * 4


def test_each_process_has_its_own_ranges() -> None:
    rows = rows_of(trace_of(**{name: on_ranks((0, 1), table) for name, table in measured(3).items()}), "counters")
    assert [(row["rank"], row["op"]) for row in rows if row["range_id"] == 1 and row["counter"] == "inst"] == [
        (0, "aten::relu"),
        (1, "aten::relu"),
    ]
