"""Spans that overlap without one holding the other go to lanes beside their track: viewers would drop them."""

from __future__ import annotations

import numpy as np

from rankscope.model.tables import Array

MAX_LANES = 64


def lanes_of(track: Array, start: Array, end: Array) -> Array:
    """The lane of each span, 0 being the track itself. Spans are in order of place, start, and the longer one first.

    Where more than MAX_LANES overlap, the lane is MAX_LANES: there is no room.
    """
    lanes = np.zeros(len(track), np.int64)
    borders = np.flatnonzero(np.diff(track)) + 1
    for low, high in zip([0, *borders.tolist()], [*borders.tolist(), len(track)], strict=True):
        if _is_crossed(start[low:high], end[low:high]):
            lanes[low:high] = _spread(start[low:high].tolist(), end[low:high].tolist())
    return lanes


def _is_crossed(start: Array, end: Array) -> bool:
    """Whether any two spans overlap in part. When none does, as many are open before each span as are after it."""
    is_wide = end > start
    start, end = start[is_wide], end[is_wide]
    position = np.arange(len(start))
    open_before = position - np.searchsorted(np.sort(end), start, "right")
    n_closed = np.empty_like(position)
    n_closed[np.lexsort((-position, end))] = position + 1  # of equal ends the inner one comes first
    open_after = np.searchsorted(start, end, "left") - n_closed
    return bool((open_before != open_after).any())


def _spread(starts: list[int], ends: list[int]) -> list[int]:
    lanes: list[list[int]] = []  # the ends of the spans that are open in each
    return [_take_lane(lanes, start, end) for start, end in zip(starts, ends, strict=True)]


def _take_lane(lanes: list[list[int]], start: int, end: int) -> int:
    """The first lane in which the span lies wholly within or after the others."""
    for number, open_ends in enumerate(lanes):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if not open_ends or end <= open_ends[-1]:
            open_ends.append(end)
            return number
    if len(lanes) == MAX_LANES:
        return MAX_LANES
    lanes.append([end])
    return len(lanes) - 1
