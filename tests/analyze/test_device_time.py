"""Computation, communication, copies and idle time of a device, on hand-made tables."""

from __future__ import annotations

import math

import pytest

from analyze.device_tables import collective, copy, kernel, only_row, rows_of, span, step, trace_of
from rankscope.analyze.metric import Selection

US = 1000


def test_idle_compute_and_the_rest_make_up_the_span() -> None:
    trace = trace_of(kernels=[kernel(0, 10), kernel(5, 12, stream=8), collective(11, 20), copy(30, 31)])
    row = only_row(trace, "temporal")
    assert (row["kernel_ns"], row["idle_ns"]) == (31 * US, 10 * US)
    assert (row["compute_ns"], row["non_compute_ns"]) == (12 * US, 9 * US)
    assert row["n_kernels"] == 4
    assert row["idle_pct"] + row["compute_pct"] + row["non_compute_pct"] == pytest.approx(100)


def test_overlap_is_a_share_of_the_communication() -> None:
    row = only_row(trace_of(kernels=[kernel(0, 10), collective(5, 25), collective(20, 30, stream=21)]), "overlap")
    assert (row["comm_ns"], row["compute_ns"], row["overlap_ns"], row["exposed_comm_ns"]) == (
        25 * US,
        10 * US,
        5 * US,
        20 * US,
    )
    assert row["overlap_pct"] == pytest.approx(20)


def test_overlap_without_communication_is_not_a_number() -> None:
    row = only_row(trace_of(kernels=[kernel(0, 10)]), "overlap")
    assert row["comm_ns"] == 0
    assert math.isnan(row["overlap_pct"])


def test_types_that_run_at_once_are_counted_together_over_all_ranks() -> None:
    kernels = [kernel(0, 10), collective(6, 20), copy(18, 22), kernel(0, 3, rank=1, file_id=1)]
    rows = rows_of(trace_of(kernels=kernels), "kernel_types")
    assert {row["kernel_type"]: row["total_ns"] for row in rows} == {
        "computation": 9 * US,
        "computation+communication": 4 * US,
        "communication": 8 * US,
        "communication+memory": 2 * US,
        "memory": 2 * US,
    }
    assert sum(row["share_pct"] for row in rows) == pytest.approx(100)


def test_work_of_no_known_type_keeps_the_device_busy() -> None:
    row = only_row(trace_of(kernels=[kernel(0, 10), kernel(10, 15, type="other")]), "temporal")
    assert (row["idle_ns"], row["compute_ns"], row["non_compute_ns"]) == (0, 10 * US, 5 * US)


def test_chosen_steps_that_do_not_follow_each_other_have_spans_of_their_own() -> None:
    kernels = [kernel(100 * number, 100 * number + 10, step=number) for number in range(5)]
    trace = trace_of(kernels=kernels, steps=[step(number, 100 * number, 100 * number + 100) for number in range(5)])
    row = only_row(trace, "temporal", Selection(steps=[0, 1, 4]))
    assert (row["kernel_ns"], row["idle_ns"], row["n_kernels"]) == (120 * US, 90 * US, 3)


def test_two_traces_of_one_rank_do_not_idle_in_between() -> None:
    kernels = [kernel(0, 10), kernel(20, 30), kernel(5_000_000, 5_000_010, file_id=1)]
    assert [
        (row["file_id"], row["rank"], row["idle_ns"]) for row in rows_of(trace_of(kernels=kernels), "temporal")
    ] == [
        (0, 0, 10 * US),
        (1, 0, 0),
    ]


def test_selection_of_ranks_and_time() -> None:
    kernels = [kernel(0, 10), kernel(20, 30), kernel(0, 7, rank=3)]
    trace = trace_of(kernels=kernels)
    assert only_row(trace, "temporal", Selection(ranks=[3]))["kernel_ns"] == 7 * US
    until = kernels[1]["start_ns"]
    assert only_row(trace, "temporal", Selection(ranks=[0], until_ns=until))["kernel_ns"] == 10 * US


@pytest.mark.parametrize(
    "metric", ["temporal", "overlap", "kernel_types", "kernels", "utilisation", "idle", "bandwidth"]
)
def test_ranks_without_a_device_have_no_rows(metric: str) -> None:
    """Tools before this one fail on traces without kernels."""
    trace = trace_of(ops=[span(0, 10, name="aten::mm", tid=1)], comms=[span(2, 5, op="all_reduce", tid=2)])
    assert rows_of(trace, metric) == []


def test_synchronisations_are_no_work() -> None:
    trace = trace_of(kernels=[kernel(0, 10), kernel(50, 60)], syncs=[span(10, 90, kind="stream", stream=7)])
    row = only_row(trace, "temporal")
    assert (row["kernel_ns"], row["idle_ns"], row["non_compute_ns"]) == (60 * US, 40 * US, 0)


def test_times_are_exact_to_the_nanosecond_however_far_from_the_epoch() -> None:
    kernels = [kernel(0, 0.001), kernel(0.002, 0.003), kernel(0.003, 0.007)]
    row = only_row(trace_of(kernels=kernels), "temporal")
    assert (row["kernel_ns"], row["compute_ns"], row["idle_ns"]) == (7, 6, 1)
