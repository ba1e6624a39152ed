"""Fits the clocks of many hosts to the moments that they share: offsets, and drift where the window is long enough.

A shared moment m is seen by clock u at T[m] + offset[u] + drift[u] * (T[m] - origin), give or take the spread of its
ends. The sum of the absolute deviations is made least (by reweighted least squares), so that single calls whose ends
really were apart do not count for much.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.model.tables import Array

MAX_OFFSET_ROUNDS = 12
_SMALLEST_DEVIATION_NS = 500.0  # deviations below are as good as none: they keep the weights finite
_MAX_SOLVER_STEPS = 60
_SOLVED = 1e-9
_MAX_DRIFT = 500e-6  # no crystal is worse than this: a larger slope is a wrong match or too short a window
_DRIFT_MUST_GAIN = 0.9  # the deviations with drift, of those without, at which it is believed


class Moments(NamedTuple):
    """One entry per clock that saw a shared moment. Times in nanoseconds since any common origin."""

    match: Array
    clock: Array
    time: Array
    weight: Array


class ClockFit(NamedTuple):
    offset: Array  # per clock, at the origin
    drift: Array  # per clock, nanoseconds per nanosecond
    deviation: Array  # per entry: how far it lies from its moment afterwards
    component: Array  # per clock: those with equal numbers are tied together by shared moments


def fit_clocks(moments: Moments, n_clocks: int) -> ClockFit:
    """Offsets are relative to the median clock of each component, drifts likewise."""
    component = _components(moments, n_clocks)
    nothing = np.zeros((n_clocks, 1))
    if not len(moments.time) or n_clocks < 2:
        return ClockFit(nothing[:, 0], nothing[:, 0], np.zeros(len(moments.time)), component)
    span = max(float(np.ptp(moments.time)), 1.0)
    middle = float(moments.time.min()) + span / 2
    plain = _least_deviations(moments, np.ones((len(moments.time), 1)), n_clocks)
    scaled = (moments.time - middle) / span
    tilted = _least_deviations(moments, np.column_stack((np.ones_like(scaled), scaled)), n_clocks)
    slope = tilted.parameters[:, 1] / span
    is_believable = tilted.cost < _DRIFT_MUST_GAIN * plain.cost and float(np.abs(slope).max()) < _MAX_DRIFT
    chosen = tilted if is_believable else plain
    drift = _relative(slope, component) if is_believable else nothing[:, 0]
    # From the middle of the window, where offset and slope do not disturb each other, back to the origin.
    offset = _relative(chosen.parameters[:, 0], component) - drift * middle
    return ClockFit(offset, drift, chosen.deviation, component)


class _Solution(NamedTuple):
    parameters: Array  # [clock, basis function]
    deviation: Array
    cost: float


def _least_deviations(moments: Moments, basis: Array, n_clocks: int) -> _Solution:
    parameters = np.zeros((n_clocks, basis.shape[1]))
    deviation = moments.time - _by_match(moments, moments.weight, moments.time)
    for _ in range(MAX_OFFSET_ROUNDS):
        weight = moments.weight / np.maximum(np.abs(deviation), _SMALLEST_DEVIATION_NS)
        parameters = _solve(moments, basis, weight, parameters)
        left = moments.time - (parameters[moments.clock] * basis).sum(axis=1)
        deviation = left - _by_match(moments, weight, left)
    return _Solution(parameters, deviation, float((moments.weight * np.abs(deviation)).sum()))


def _by_match(moments: Moments, weight: Array, values: Array) -> Array:
    """For each entry the weighted mean of its moment."""
    total = np.bincount(moments.match, weight)
    sums = np.bincount(moments.match, weight * values)
    means: Array = (sums / np.where(total > 0, total, 1.0))[moments.match]
    return means


def _solve(moments: Moments, basis: Array, weight: Array, start: Array) -> Array:
    """Weighted least squares by conjugate gradients: no matrix is made, so ten thousand clocks are no trouble."""
    n_clocks, n_basis = start.shape

    def gathered(values: Array) -> Array:
        left = weight * (values - _by_match(moments, weight, values))
        return np.column_stack([np.bincount(moments.clock, left * basis[:, j], n_clocks) for j in range(n_basis)])

    def applied(parameters: Array) -> Array:
        result: Array = gathered((parameters[moments.clock] * basis).sum(axis=1)) + ridge * parameters
        return result

    diagonal = np.column_stack(
        [np.bincount(moments.clock, weight * basis[:, j] ** 2, n_clocks) for j in range(n_basis)]
    )
    ridge = 1e-9 * diagonal + 1e-30  # the common part of all clocks is free: it is kept where it is
    x = start
    residual = gathered(moments.time) - applied(x)
    scaled = residual / (diagonal + ridge)
    direction, size = scaled, float((residual * scaled).sum())
    enough = _SOLVED * size
    for _ in range(_MAX_SOLVER_STEPS):
        if size <= enough:
            break
        ahead = applied(direction)
        pace = size / max(float((direction * ahead).sum()), 1e-300)
        x, residual = x + pace * direction, residual - pace * ahead
        scaled = residual / (diagonal + ridge)
        size, before = float((residual * scaled).sum()), size
        direction = scaled + (size / before) * direction
    return x


def _components(moments: Moments, n_clocks: int) -> Array:
    """Clocks that share moments, directly or through others, get the same number."""
    label = np.arange(n_clocks)
    n_matches = int(moments.match.max(initial=-1)) + 1
    while len(moments.match):
        smallest = np.full(n_matches, n_clocks)
        np.minimum.at(smallest, moments.match, label[moments.clock])
        spread = label.copy()
        np.minimum.at(spread, moments.clock, smallest[moments.match])
        if np.array_equal(spread, label):
            break
        label = spread
    return label


def in_main_component(fit: ClockFit) -> Array:
    """The clocks of the largest set that shared moments tie together."""
    labels, counts = np.unique(fit.component, return_counts=True)
    is_main: Array = fit.component == (labels[np.argmax(counts)] if len(labels) else -1)
    return is_main


def _relative(values: Array, component: Array) -> Array:
    relative = values.copy()
    for label in np.unique(component).tolist():
        members = component == label
        ordered = np.sort(values[members])
        relative[members] -= ordered[len(ordered) // 2]
    return relative
