"""Numbers that the jobs reported while they trained: step time, samples per second, memory, and their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from rankscope.analyze.compare.noise import N_ERRORS, SAME_JOB
from rankscope.model.changes import NumberChange, NumberKind
from rankscope.model.tables import Trace

# Which way is worse, by the name; of other numbers (a loss, a learning rate) nobody can tell.
_MORE_IS_BETTER = re.compile(r"per_s(ec(ond)?)?$|throughput|mfu|tflops|(samples|tokens|steps)_?/?_?s$", re.IGNORECASE)
_LESS_IS_BETTER = re.compile(r"time|latency|(^|_)bytes$|memory|_m?s$", re.IGNORECASE)
# Each rank by the median over its steps, so that warming up does not count; the error of a median by its deviation.
_BY_NAME = """
    SELECT name, median(middle), median(error) FROM (
        SELECT name, rank, median(value) AS middle, 1.2533 * 1.4826 * mad(value) / sqrt(count(*)) AS error
        FROM metrics WHERE isfinite(value) GROUP BY name, rank)
    GROUP BY name ORDER BY name"""


class _Number(NamedTuple):
    middle: float
    error: float


def number_changes(old: Trace, new: Trace) -> Iterator[NumberChange]:
    before, after = _numbers(old), _numbers(new)
    for name in before.keys() & after.keys():
        ours, theirs = before[name], after[name]
        noise = max(SAME_JOB * abs(ours.middle), N_ERRORS * (ours.error**2 + theirs.error**2) ** 0.5)
        yield NumberChange(_kind(name, theirs.middle - ours.middle, noise), name, ours.middle, theirs.middle, noise)


def _numbers(trace: Trace) -> dict[str, _Number]:
    if not trace.has("metrics"):
        return {}
    return {name: _Number(middle, error) for name, middle, error in trace.sql(_BY_NAME).rows()}


def _kind(name: str, change: float, noise: float) -> NumberKind:
    if abs(change) <= noise:
        return "same"
    if _MORE_IS_BETTER.search(name):
        return "better" if change > 0 else "worse"
    if _LESS_IS_BETTER.search(name):
        return "worse" if change > 0 else "better"
    return "higher" if change > 0 else "lower"
