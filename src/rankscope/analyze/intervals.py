"""Stretches of time as sorted columns: unions, overlaps and gaps of any number of them, exact to the nanosecond.

All functions take many groups at once (a group is a process, a stream, a step: any integer), so that no caller loops
over events. An interval holds its start but not its end; those without length hold nothing and vanish.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.model.tables import Array

_LARGEST_KEY = 2**62


class Intervals(NamedTuple):
    """Sorted by group and start; within a group they neither overlap nor touch."""

    group: Array
    start: Array
    end: Array

    @property
    def length(self) -> Array:
        return np.subtract(self.end, self.start)

    def chosen(self, rows: Array) -> Intervals:
        return Intervals(self.group[rows], self.start[rows], self.end[rows])


class Segments(NamedTuple):
    """What runs when: between `start` and `end` exactly the kinds whose bits are set in `kinds` do."""

    group: Array
    start: Array
    end: Array
    kinds: Array

    def where(self, chosen: Array) -> Intervals:
        """The time of the chosen segments, neighbors joined."""
        return _joined(Intervals(self.group[chosen], self.start[chosen], self.end[chosen]))

    def having(self, kind: int) -> Intervals:
        """The time in which this kind runs, whatever else does."""
        return self.where((self.kinds & (1 << kind)) != 0)


class Moments(NamedTuple):
    """Amounts at moments, in any order."""

    group: Array
    time: Array
    amount: Array


def sweep(start: Array, end: Array, kind: Array, group: Array | None = None) -> Segments:
    """Cuts time where the set of running kinds changes; `kind` numbers them from 0 (at most 62).

    Time in which nothing runs is left out: it is what `gaps` gives.
    """
    kept = np.flatnonzero(end > start)
    groups = _groups_of(group, len(start))[kept]
    times = np.concatenate((start[kept], end[kept])).astype(np.int64)
    order = _order(np.concatenate((groups, groups)), times)
    kinds = kind[kept].astype(np.int8)
    changes = _changes(order, np.concatenate((kinds, kinds))[order])
    # Most edges change nothing: what is nested in others of its kind leaves here.
    turns = np.flatnonzero(changes)
    times, groups = times[order[turns]], groups[order[turns] % max(len(kept), 1)]
    running = np.bitwise_xor.accumulate(changes[turns]) if len(turns) else changes
    lasts = np.flatnonzero((running[:-1] != 0) & (times[1:] > times[:-1]))
    return _without_seams(Segments(groups[lasts], times[lasts], times[lasts + 1], running[lasts]))


def _changes(order: Array, kinds: Array) -> Array:
    """Per edge in order of time, the bit of its kind where that starts or stops running; 0 where nothing changes.

    Every interval that began has ended when its group ends, so that one running count serves all groups.
    """
    changes = np.zeros(len(order), np.int64)
    for number in np.flatnonzero(np.bincount(kinds)).tolist():
        edges = np.flatnonzero(kinds == number)
        is_start = order[edges] < len(order) // 2
        n_running = np.cumsum(np.where(is_start, np.int8(1), np.int8(-1)), dtype=np.int32)
        changes[edges[n_running == is_start]] = 1 << number  # 1 after a start, 0 after an end
    return changes


def union(start: Array, end: Array, group: Array | None = None) -> Intervals:
    """The time that at least one of the intervals covers."""
    segments = sweep(start, end, np.zeros(len(start), np.int8), group)
    return Intervals(segments.group, segments.start, segments.end)


def overlap(first: Intervals, second: Intervals) -> Intervals:
    """The time that both cover."""
    both = _swept_together(first, second)
    return both.where(both.kinds == 3)


def difference(first: Intervals, second: Intervals) -> Intervals:
    """The time that the first covers and the second does not."""
    both = _swept_together(first, second)
    return both.where(both.kinds == 1)


def gaps(intervals: Intervals) -> Intervals:
    """The time between the intervals of each group."""
    before = np.flatnonzero(intervals.group[1:] == intervals.group[:-1])
    return Intervals(intervals.group[before], intervals.end[before], intervals.start[before + 1])


def total_ns(intervals: Intervals, n_groups: int) -> Array:
    """Covered time per group, for groups numbered from 0."""
    totals = np.zeros(n_groups, np.int64)
    np.add.at(totals, intervals.group, intervals.length)
    return totals


def covered_ns(intervals: Intervals, start: Array, end: Array, group: Array | None = None) -> Array:
    """Per window, how much of it the intervals of its group cover. Windows may overlap and come in any order."""
    groups = _groups_of(group, len(start))
    covered: Array = _covered_until(intervals, end, groups) - _covered_until(intervals, start, groups)
    return np.maximum(covered, 0, out=covered)


def added_within(moments: Moments, start: Array, end: Array, group: Array) -> tuple[Array, Array]:
    """Per window, how many moments of its group lie in it, and their amounts added. Windows may overlap."""
    order = _order(moments.group, moments.time)
    time = moments.time[order]
    ordered = Intervals(moments.group[order], time, time)
    until = np.concatenate(([0], np.cumsum(moments.amount[order])))
    # A moment lies in the window that begins with it, and not in the one that ends there.
    first, last = (_n_begun(ordered, bound - 1, group) for bound in (start, np.maximum(start, end)))
    return last - first, until[last] - until[first]


def last_begun(intervals: Intervals, time: Array, group: Array | None = None) -> Array:
    """Per moment, the row of the last interval of its group that starts at or before it; -1 where there is none."""
    groups = _groups_of(group, len(time))
    rows = _n_begun(intervals, time, groups) - 1
    if not len(intervals.group):
        return rows
    return np.where((rows >= 0) & (intervals.group[rows] == groups), rows, -1)


def _covered_until(intervals: Intervals, time: Array, groups: Array) -> Array:
    """Covered time of all groups before and of the own group up to the moment: only differences have a meaning."""
    n_begun = _n_begun(intervals, time, groups)
    before = np.concatenate(([0], np.cumsum(intervals.length)))
    covered = before[n_begun]
    rows = last_begun(intervals, time, groups)
    inside = np.flatnonzero(rows >= 0)
    not_yet = np.maximum(intervals.end[rows[inside]] - time[inside], 0)
    covered[inside] -= not_yet
    return covered


def _n_begun(intervals: Intervals, time: Array, groups: Array) -> Array:
    """How many intervals begin at or before each moment, those of all smaller groups included."""
    n_intervals = len(intervals.start)
    all_groups = np.concatenate((intervals.group, groups))
    # Stable: where an interval begins at the very moment, it comes first.
    order = _order(all_groups, np.concatenate((intervals.start, time)))
    n_begun = np.empty(len(order), np.int64)
    n_begun[order] = np.cumsum(order < n_intervals)
    return n_begun[n_intervals:]


def _swept_together(first: Intervals, second: Intervals) -> Segments:
    """Kind 0 is the first, kind 1 the second."""
    group, start, end = (np.concatenate(pair) for pair in zip(first, second, strict=True))
    return sweep(start, end, np.repeat(np.array([0, 1], np.int8), (len(first.start), len(second.start))), group)


def _groups_of(group: Array | None, n_rows: int) -> Array:
    return np.zeros(n_rows, np.int64) if group is None else group


def _order(groups: Array, times: Array) -> Array:
    """By group, then by time, equals in the order given.

    Traces are nearly sorted. A stable sort makes use of that, but only when it has one number to look at: group and
    time are put into one wherever they fit, which is ten times faster than to sort by both.
    """
    if not len(times):
        return np.empty(0, np.int64)
    first, lowest = int(times.min()), int(groups.min())
    span = int(times.max()) - first + 1
    if span * (int(groups.max()) - lowest + 1) < _LARGEST_KEY:
        return np.argsort((groups.astype(np.int64) - lowest) * span + (times - first), kind="stable")
    return np.lexsort((times, groups))


def _without_seams(segments: Segments) -> Segments:
    """Joins equal neighbors: one interval ended where another of its kind began."""
    group, start, end, kinds = segments
    is_seam = (end[:-1] == start[1:]) & (group[:-1] == group[1:]) & (kinds[:-1] == kinds[1:])
    firsts, lasts = _run_bounds(is_seam, len(start))
    return Segments(group[firsts], start[firsts], end[lasts], kinds[firsts])


def _joined(intervals: Intervals) -> Intervals:
    group, start, end = intervals
    firsts, lasts = _run_bounds((end[:-1] == start[1:]) & (group[:-1] == group[1:]), len(start))
    return Intervals(group[firsts], start[firsts], end[lasts])


def _run_bounds(continues: Array, n_rows: int) -> tuple[Array, Array]:
    """First and last row of each run; `continues`, from the second row on: it continues the run before."""
    if not n_rows:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    breaks = np.flatnonzero(~continues)
    return np.concatenate(([0], breaks + 1)), np.concatenate((breaks, [n_rows - 1]))
