"""A metric as ranks x points: steps that are too many for a chart are joined, with their lowest and highest value."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.model.tables import MISSING, Array, Trace

# What rankscope itself records comes first; the job's own numbers follow by name.
_FIRST = ("step_time_s", "samples_per_s", "tokens_per_s", "steps_per_s", "loss", "grad_norm", "learning_rate")


class Broken(NamedTuple):
    """The first value that is not a number, or infinite."""

    step: int
    value: float
    ranks: tuple[int, ...]  # which had one at that step
    n: int  # such values in all


class Series(NamedTuple):
    name: str
    ranks: Array
    steps: Array  # the first step of each point
    last_step: int
    n_joined: int  # steps to a point, at most
    low: Array  # ranks x points; NaN where a rank told no finite value
    high: Array
    middle: Array  # the mean
    times: Array  # when the point was told, as the median of the ranks; 0 where nobody was asked
    broken: Broken | None
    has_steps: bool  # else values are counted, rank by rank

    def scaled(self, factor: float) -> Series:
        return self._replace(low=self.low * factor, high=self.high * factor, middle=self.middle * factor)


def metric_names(trace: Trace) -> list[str]:
    column = trace.table("metrics").text("name")
    known = {column.values[code] for code in np.unique(column.codes).tolist()}
    return [*(name for name in _FIRST if name in known), *sorted(known - set(_FIRST))]


def series_of(trace: Trace, name: str, n_points: int) -> Series:
    table = trace.table("metrics")
    table = table.take(np.flatnonzero(table.text("name").equals(name)))
    ranks, row_of = np.unique(table.array("rank"), return_inverse=True)
    step = table.array("step")
    has_steps = bool(np.any(step != MISSING))
    if not has_steps:
        step = _counted(row_of, table.array("time_ns"))
    steps, position = np.unique(step, return_inverse=True)
    n_joined = -(-len(steps) // n_points)
    points = position // n_joined
    shape = (len(ranks), -(-len(steps) // n_joined))
    value = table.array("value")
    finite = np.flatnonzero(np.isfinite(value))
    cells = row_of[finite] * shape[1] + points[finite]
    n_cells = shape[0] * shape[1]
    low, high = np.full(n_cells, np.inf), np.full(n_cells, -np.inf)
    np.minimum.at(low, cells, value[finite])
    np.maximum.at(high, cells, value[finite])
    counts = np.bincount(cells, minlength=n_cells)
    with np.errstate(invalid="ignore", over="ignore"):
        middle = np.bincount(cells, value[finite], n_cells) / np.where(counts, counts, np.nan)
    low, high = (np.where(counts > 0, plane, np.nan) for plane in (low, high))
    return Series(
        name,
        ranks,
        steps[::n_joined],
        int(steps[-1]),
        n_joined,
        low.reshape(shape),
        high.reshape(shape),
        middle.reshape(shape),
        _times(points, table.array("time_ns"), shape[1]),
        _broken(value, step, table.array("rank")),
        has_steps,
    )


def _counted(row_of: Array, time: Array) -> Array:
    """The number of each value of its rank, in order of time."""
    order = np.lexsort((time, row_of))
    counts = np.bincount(row_of)
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    return numbers


def _times(points: Array, time: Array, n_points: int) -> Array:
    """Per point the earliest time at which any rank logged it."""
    times = np.full(n_points, np.iinfo(np.int64).max)
    known = np.flatnonzero(time > 0)
    np.minimum.at(times, points[known], time[known])
    return np.where(times == np.iinfo(np.int64).max, 0, times)


def _broken(value: Array, step: Array, rank: Array) -> Broken | None:
    rows = np.flatnonzero(~np.isfinite(value))
    if not len(rows):
        return None
    first = int(step[rows].min())
    at = rows[step[rows] == first]
    return Broken(first, float(value[at[0]]), tuple(np.unique(rank[at]).tolist()), len(rows))
