"""Unions, overlaps and gaps of intervals, against sets of single nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.analyze import intervals
from rankscope.analyze.intervals import (
    Intervals,
    Moments,
    added_within,
    covered_ns,
    difference,
    gaps,
    last_begun,
    overlap,
    sweep,
    total_ns,
    union,
)
from rankscope.model.tables import Array

pytestmark = pytest.mark.slow

EPOCH_NS = 1_700_000_000_123_456_789
Rows = list[tuple[int, int, int, int]]  # group, start, length, kind
ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 12), st.integers(0, 2)), max_size=30
)  # fmt: skip


def columns(rows: Rows) -> tuple[Array, Array, Array, Array]:
    """start, end, kind, group."""
    group, start, length, kind = np.array(rows, np.int64).reshape(-1, 4).T
    return start + EPOCH_NS, start + length + EPOCH_NS, kind, group


def moments(rows: Iterable[tuple[int, int, int]]) -> set[tuple[int, int]]:
    """(group, nanosecond) of everything that the rows (group, start, end) hold."""
    return {(group, time) for group, start, end in rows for time in range(start, end)}


def held(found: Intervals) -> set[tuple[int, int]]:
    return moments(zip(found.group.tolist(), found.start.tolist(), found.end.tolist(), strict=True))


def of_rows(rows: Rows, kind: int | None = None) -> set[tuple[int, int]]:
    chosen = [row for row in rows if kind is None or row[3] == kind]
    return moments((group, EPOCH_NS + start, EPOCH_NS + start + length) for group, start, length, _ in chosen)


def assert_tidy(found: Intervals) -> None:
    """Sorted, with a length, neither overlapping nor touching within a group."""
    keys = list(zip(found.group.tolist(), found.start.tolist(), strict=True))
    assert keys == sorted(set(keys))
    assert (found.length > 0).all()
    same = found.group[1:] == found.group[:-1]
    assert (found.start[1:][same] > found.end[:-1][same]).all()


@given(ROWS)
def test_union_holds_every_moment_once(rows: Rows) -> None:
    start, end, _, group = columns(rows)
    found = union(start, end, group)
    assert_tidy(found)
    assert held(found) == of_rows(rows)
    expected = [sum(group == number for group, _ in of_rows(rows)) for number in range(4)]
    assert total_ns(found, 4).tolist() == expected


@given(ROWS)
def test_sweep_says_which_kinds_run(rows: Rows) -> None:
    start, end, kind, group = columns(rows)
    segments = sweep(start, end, kind, group)
    for number in range(3):
        found = segments.having(number)
        assert_tidy(found)
        assert held(found) == of_rows(rows, number)
    bounds = zip(*(column.tolist() for column in segments), strict=True)
    for one, begin, stop, kinds in bounds:
        for time in range(begin, stop):
            assert kinds == sum(1 << number for number in range(3) if (one, time) in of_rows(rows, number))


@given(ROWS, ROWS)
def test_overlap_and_difference(rows: Rows, others: Rows) -> None:
    (start, end, _, group), (other_start, other_end, _, other_group) = columns(rows), columns(others)
    first, second = union(start, end, group), union(other_start, other_end, other_group)
    for found in (overlap(first, second), difference(first, second)):
        assert_tidy(found)
    assert held(overlap(first, second)) == of_rows(rows) & of_rows(others)
    assert held(difference(first, second)) == of_rows(rows) - of_rows(others)


@given(ROWS, ROWS)
def test_covered_time_of_windows_that_overlap_each_other(rows: Rows, windows: Rows) -> None:
    start, end, _, group = columns(rows)
    window_start, window_end, _, window_group = columns(windows)
    found = covered_ns(union(start, end, group), window_start, window_end, window_group)
    everything = of_rows(rows)
    assert found.tolist() == [len(of_rows([window]) & everything) for window in windows]


@given(ROWS, st.integers(0, 3), st.integers(0, 50))
def test_last_begun_stays_in_its_group(rows: Rows, group: int, time: int) -> None:
    start, end, _, groups = columns(rows)
    found = union(start, end, groups)
    row = int(last_begun(found, np.array([EPOCH_NS + time]), np.array([group]))[0])
    begun = np.flatnonzero((found.group == group) & (found.start <= EPOCH_NS + time))
    assert row == (begun[-1] if len(begun) else -1)


@given(ROWS, ROWS)
def test_moments_are_added_up_within_windows(rows: Rows, windows: Rows) -> None:
    time, _, amount, group = columns(rows)
    start, end, _, window_group = columns(windows)
    counts, sums = added_within(Moments(group, time, amount), start, end, window_group)
    inside = [
        [kind for group, begin, _, kind in rows if group == own and first <= begin < first + length]
        for own, first, length, _ in windows
    ]
    assert counts.tolist() == [len(found) for found in inside]
    assert sums.tolist() == [sum(found) for found in inside]


def test_gaps_lie_within_a_group() -> None:
    start, end = np.array([0, 10, 5, 100]), np.array([4, 12, 11, 101])
    found = gaps(union(start, end, np.array([0, 0, 0, 1])))
    assert [column.tolist() for column in found] == [[0], [4], [5]]


def test_touching_intervals_of_one_kind_are_one_segment() -> None:
    segments = sweep(np.array([0, 5]), np.array([5, 9]), np.array([1, 1]))
    assert [column.tolist() for column in segments] == [[0], [0], [9], [2]]


def test_nothing_gives_nothing() -> None:
    empty = np.empty(0, np.int64)
    assert len(union(empty, empty).start) == 0
    assert len(gaps(union(empty, empty)).start) == 0
    assert covered_ns(union(empty, empty), np.array([1]), np.array([5])).tolist() == [0]
    assert last_begun(union(empty, empty), np.array([1])).tolist() == [-1]


@given(rows=ROWS)
def test_groups_too_far_apart_for_one_key_are_sorted_all_the_same(rows: Rows) -> None:
    with pytest.MonkeyPatch.context() as patch:
        start, end, kind, group = columns(rows)
        usual = sweep(start, end, kind, group)
        patch.setattr(intervals, "_LARGEST_KEY", 0)
        other = sweep(start, end, kind, group)
    for expected, found in zip(usual, other, strict=True):
        assert expected.tolist() == found.tolist()
