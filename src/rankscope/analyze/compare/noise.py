"""When a difference is one: beyond what the spread of both captures explains, and beyond what two runs differ anyway.

A quantity is measured on several units: ranks mostly, or groups. Each unit has the mean over its steps (or calls) and
the standard error of that mean. Where both captures have the same units, each is compared with itself; otherwise the
units of B are compared with the most and the least that A has.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.model.changes import TimeKind
from rankscope.model.tables import Array

SAME_JOB = 0.05  # clocks, temperature and placement make two runs of one job differ by so much
SAME_JOB_UNMEASURED = 0.10  # the same where a single step (or call) tells nothing about the spread
N_ERRORS = 3.0  # standard errors of the difference
N_DEVIATIONS = 6.0  # by which a few units have to stand out from the others
NEARLY_ALL = 0.9


class Samples(NamedTuple):
    """A quantity of one capture, by unit. `calls` is how often it happens per step, NaN where steps are not known."""

    unit: Array
    mean: Array
    error: Array
    calls: Array


class Judgement(NamedTuple):
    kind: TimeKind
    old_ns: int | None
    new_ns: int | None
    noise_ns: int
    units: tuple[int, ...]  # where it changed; empty: everywhere
    old_count: float | None
    new_count: float | None


def standard_error(n: Array, total: Array, squares: Array) -> Array:
    """The standard error of the mean of `n` values with this sum and sum of squares; NaN for a single value."""
    mean = total / np.maximum(n, 1)
    variance = np.maximum(squares - n * mean * mean, 0) / np.maximum(n - 1, 1)
    return np.where(n > 1, np.sqrt(variance / np.maximum(n, 1)), np.nan)


def judge(old: Samples | None, new: Samples | None, least: float) -> Judgement:
    """How a quantity changed; changes below `least` are never reported."""
    if old is None or new is None:
        return _one_sided(old, new, least)
    if len(old.unit) == len(new.unit) and np.array_equal(np.sort(old.unit), np.sort(new.unit)):
        before, after = (Samples(*(column[np.argsort(side.unit)] for column in side)) for side in (old, new))
        return _judge_each(before, after, least)
    return _judge_range(old, new, least)


def _allowed(mean: Array, error: Array, least: float) -> Array:
    """How far a value may be off without any meaning."""
    usual = np.where(np.isnan(error), SAME_JOB_UNMEASURED, SAME_JOB) * np.abs(mean)
    tolerance: Array = np.maximum(np.maximum(usual, N_ERRORS * np.nan_to_num(error)), least)
    return tolerance


def _one_sided(old: Samples | None, new: Samples | None, least: float) -> Judgement:
    old_mean, new_mean = (None if side is None else float(side.mean.mean()) for side in (old, new))
    is_told = max(old_mean or 0, new_mean or 0) > least
    kind: TimeKind = "same" if not is_told else "new" if old is None else "gone"
    return Judgement(
        kind,
        old_ns=None if old_mean is None else round(old_mean),
        new_ns=None if new_mean is None else round(new_mean),
        noise_ns=round(least),
        units=(),
        old_count=_mean_count(old),
        new_count=_mean_count(new),
    )


def _judge_each(old: Samples, new: Samples, least: float) -> Judgement:
    noise = _allowed(old.mean, np.hypot(old.error, new.error), least)
    change = new.mean - old.mean
    is_used = (old.mean > 0) | (new.mean > 0)
    return _judged(old, new, noise, change, is_used)


def _judge_range(old: Samples, new: Samples, least: float) -> Judgement:
    error = np.hypot(new.error, np.nan_to_num(old.error).max(initial=0))
    most, fewest = old.mean.max(), old.mean.min()
    noise = _allowed(np.full(len(new.mean), old.mean.mean()), error, least)
    change = np.where(new.mean > most, new.mean - most, np.where(new.mean < fewest, new.mean - fewest, 0.0))
    typical = Samples(
        new.unit, np.full(len(new.unit), old.mean.mean()), error, np.full(len(new.unit), old.calls.mean())
    )
    return _judged(typical, new, noise, change, new.mean >= 0)


def _judged(old: Samples, new: Samples, noise: Array, change: Array, is_used: Array) -> Judgement:
    slower, faster = _beyond(change, noise, is_used), _beyond(-change, noise, is_used)
    is_slower = change[slower].sum() >= -change[faster].sum()
    where = slower if is_slower else faster
    kind: TimeKind = "same" if not where.any() else "slower" if is_slower else "faster"
    is_everywhere = where.sum() >= NEARLY_ALL * is_used.sum()
    units = () if kind == "same" or is_everywhere else tuple(new.unit[where].tolist())
    used = where if units else is_used if is_used.any() else np.ones(len(where), bool)
    return Judgement(
        kind,
        old_ns=round(float(old.mean[used].mean())),
        new_ns=round(float(new.mean[used].mean())),
        noise_ns=round(float(noise[used].mean())),
        units=units,
        old_count=_mean_count(old, used),
        new_count=_mean_count(new, used),
    )


def _beyond(change: Array, noise: Array, is_used: Array) -> Array:
    """Which units changed that way. If only a few of many did, they must also exceed how the others vary."""
    where = is_used & (change > noise)
    others = change[is_used]
    if 0 < where.sum() < len(others) / 2:
        middle = np.median(others)
        where = where & (change - middle > N_DEVIATIONS * np.median(np.abs(others - middle)))
    return where


def _mean_count(side: Samples | None, where: Array | None = None) -> float | None:
    if side is None:
        return None
    count = side.calls if where is None else side.calls[where]
    return None if np.isnan(count).all() else float(np.nanmean(count))
