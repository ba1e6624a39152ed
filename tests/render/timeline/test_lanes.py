"""Lanes: what overlaps in part lies apart, and what does not stays where it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.render.timeline.lanes import MAX_LANES, lanes_of

Span = tuple[int, int, int]


def lanes(spans: list[Span]) -> list[int]:
    place, start, end = np.array(spans, np.int64).reshape(-1, 3).T
    return [int(lane) for lane in lanes_of(place, start, end)]


def cross(one: Span, other: Span) -> bool:
    return one[0] == other[0] and (one[1] < other[1] < one[2] < other[2] or other[1] < one[1] < other[2] < one[2])


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], []),
        ([(0, 0, 10), (0, 2, 5), (0, 5, 10), (0, 10, 12)], [0, 0, 0, 0]),
        ([(0, 0, 5), (0, 0, 5), (0, 0, 0), (0, 5, 5)], [0, 0, 0, 0]),
        ([(0, 0, 10), (0, 5, 15), (0, 12, 13)], [0, 1, 0]),
        ([(0, 0, 10), (1, 5, 15)], [0, 0]),
    ],
    ids=["none", "nested", "equal", "crossed", "other place"],
)
def test_only_what_crosses_is_moved(spans: list[Span], expected: list[int]) -> None:
    assert lanes(spans) == expected


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 12)), max_size=30))
def test_no_two_spans_of_a_lane_cross_and_nothing_moves_without_need(drawn: list[Span]) -> None:
    spans = sorted(((place, start, start + length) for place, start, length in drawn), key=lambda s: (*s[:2], -s[2]))
    found = lanes(spans)
    pairs = [(a, b) for a in range(len(spans)) for b in range(a) if cross(spans[a], spans[b])]
    assert all(found[a] != found[b] for a, b in pairs)
    crossed = {spans[a][0] for a, _ in pairs}
    assert all(lane == 0 for (place, _, _), lane in zip(spans, found, strict=True) if place not in crossed)


def test_where_there_is_no_room_the_lane_says_so() -> None:
    staircase = [(0, number, number + 1000) for number in range(MAX_LANES + 2)]
    assert lanes(staircase) == [*range(MAX_LANES), MAX_LANES, MAX_LANES]
