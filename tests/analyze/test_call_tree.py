from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from analyze.host_events import BACKWARD, MAIN, Process, capture, measure
from rankscope.analyze.host.call_tree import nest
from rankscope.analyze.metric import Selection
from rankscope.model.tables import Array

Range = tuple[int, int, int]  # thread, start, duration
RANGES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 15)), max_size=40)


def nested_by_a_stack(ranges: list[Range]) -> list[tuple[int, int, int]]:
    """(row, parent's row, end) in order from the outside in: the plain way to do it."""
    order = sorted(range(len(ranges)), key=lambda row: (ranges[row][0], ranges[row][1], -ranges[row][2], row))
    found = []
    around: list[tuple[int, int, int]] = []  # thread, end, row
    for row in order:
        thread, start, duration = ranges[row]
        while around and (around[-1][0] != thread or around[-1][1] <= start):
            around.pop()
        end = min(start + duration, around[-1][1]) if around else start + duration
        found.append((row, around[-1][2] if around else -1, end))
        if end > start:
            around.append((thread, end, row))
    return found


def columns(ranges: list[Range]) -> tuple[Array, Array, Array]:
    thread, start, duration = np.array(ranges, np.int64).reshape(-1, 3).T
    return thread, start, duration


@settings(max_examples=300, deadline=None)
@given(RANGES)
def test_nesting_is_what_a_stack_finds(ranges: list[Range]) -> None:
    expected = nested_by_a_stack(ranges)
    nesting = nest(*columns(ranges))
    row_of = nesting.order.tolist()
    assert row_of == [row for row, _, _ in expected]
    parents = [row_of[place] if place >= 0 else -1 for place in nesting.parent.tolist()]
    assert parents == [parent for _, parent, _ in expected]
    depths = {-1: -1}
    for row, parent, _ in expected:
        depths[row] = depths[parent] + 1
    assert nesting.depth.tolist() == [depths[row] for row in row_of]
    lengths = (nesting.end - nesting.start).tolist()
    assert lengths == [end - ranges[row][1] for row, _, end in expected]


@settings(max_examples=200, deadline=None)
@given(RANGES, st.lists(st.tuples(st.integers(-1, 3), st.integers(-2, 60)), max_size=20))
def test_the_innermost_range_around_a_moment(ranges: list[Range], moments: list[tuple[int, int]]) -> None:
    nesting = nest(*columns(ranges))
    thread, time = np.array(moments, np.int64).reshape(-1, 2).T
    found = nesting.enclosing(thread, time).tolist()
    for place, (wanted, moment) in zip(found, moments, strict=True):
        holding = [
            row
            for row, _, end in nested_by_a_stack(ranges)
            if ranges[row][0] == wanted and ranges[row][1] <= moment < end
        ]
        assert (nesting.order[place] if place >= 0 else -1) == (holding[-1] if holding else -1)


@settings(max_examples=100, deadline=None)
@given(RANGES)
def test_sums_and_own_times_add_up(ranges: list[Range]) -> None:
    nesting = nest(*columns(ranges))
    tops = nesting.parent < 0
    assert nesting.self_ns().sum() == (nesting.end - nesting.start)[tops].sum()
    assert (nesting.self_ns() >= 0).all()
    ones = np.ones(len(ranges), np.int64)
    sums = nesting.inside_sums(ones)
    for place in range(len(ranges)):
        inside = {place}
        for other in range(len(ranges)):
            if nesting.parent[other] in inside:
                inside.add(other)
        assert sums[place] == len(inside)


def linear_layer(process: Process) -> None:
    process.op("aten::linear", 0, 100)
    process.op("aten::addmm", 10, 60)
    process.op("cublas", 20, 30)
    process.op("aten::linear", 70, 90)
    for launching, run in ((1, 5), (2, 7), (3, 11)):
        process.kernel("gemm", 200 + run, 200 + 2 * run, op_id=launching)


def test_parents_own_times_and_kernels_below() -> None:
    process = Process()
    linear_layer(process)
    rows = measure(capture(process), "call_tree")
    assert [(row["op_id"], row["parent_id"], row["depth"]) for row in rows] == [
        (0, -1, 0),
        (1, 0, 1),
        (2, 1, 2),
        (3, 0, 1),
    ]
    assert [row["self_ns"] for row in rows] == [30_000, 40_000, 10_000, 20_000]
    assert [row["aten_id"] for row in rows] == [0, 1, 1, 3]
    assert [row["is_recursive"] for row in rows] == [False, False, False, True]
    assert [(row["n_kernels"], row["kernel_ns"]) for row in rows] == [(0, 0), (1, 5000), (1, 7000), (1, 11_000)]
    assert [(row["n_kernels_below"], row["kernel_below_ns"]) for row in rows] == [
        (3, 23_000),
        (2, 12_000),
        (1, 7000),
        (1, 11_000),
    ]
    assert [(row["position"], row["last_position"]) for row in rows] == [(0, 3), (1, 2), (2, 2), (3, 3)]


def test_threads_and_files_do_not_mix() -> None:
    first, second = Process(0, 0), Process(0, 1)
    for process in (first, second):
        linear_layer(process)
    first.op("aten::mul", 5, 50, BACKWARD)
    rows = measure(capture(first, second), "call_tree")
    assert len(rows) == 9
    assert [row["parent_id"] for row in rows if row["file_id"] == 1] == [-1, 0, 1, 0]
    (backward,) = (row for row in rows if row["tid"] == BACKWARD)
    assert (backward["parent_id"], backward["depth"], backward["self_ns"]) == (-1, 0, 45_000)
    assert {row["tid"] for row in rows} == {MAIN, BACKWARD}
    assert [row["n_kernels_below"] for row in rows if row["op_id"] == 0] == [3, 3]


def test_an_operator_that_outlasts_its_caller_is_cut_there() -> None:
    process = Process()
    process.op("aten::outer", 0, 10)
    process.op("aten::inner", 5, 12)
    process.op("aten::next", 11, 20)
    rows = measure(capture(process), "call_tree")
    assert [(row["parent_id"], row["duration_ns"], row["self_ns"]) for row in rows] == [
        (-1, 10_000, 5000),
        (0, 7000, 5000),
        (-1, 9000, 9000),
    ]


def test_selection_and_empty_captures() -> None:
    process = Process(3)
    process.op("aten::mul", 0, 10, step=1)
    process.op("aten::mul", 20, 30, step=2)
    trace = capture(process)
    assert [row["step"] for row in measure(trace, "call_tree", Selection(steps=[2]))] == [2]
    assert measure(trace, "call_tree", Selection(ranks=[0])) == []
    assert measure(capture(Process()), "call_tree") == []
