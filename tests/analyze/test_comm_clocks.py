"""The robust fit of clocks to the moments that they share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rankscope.analyze.comm.clocks import Moments, fit_clocks

MS = 1e6


def shared(offsets: Any, n_matches: int = 40, span: float = 1e9, drift: Any = 0.0, spread: float = 5e3) -> Moments:
    """All clocks see all moments, with ends a little apart."""
    random = np.random.default_rng(1)
    offsets = np.asarray(offsets, float)
    moments = np.sort(random.uniform(0, span, n_matches))
    match, clock = (
        column.ravel() for column in np.meshgrid(np.arange(n_matches), np.arange(len(offsets)), indexing="ij")
    )
    times = moments[match] + offsets[clock] + np.broadcast_to(drift, offsets.shape)[clock] * moments[match]
    return Moments(match, clock, times + random.normal(0, spread, len(match)), np.ones(len(match)))


def test_offsets_are_found_relative_to_the_median_clock() -> None:
    offsets = np.array([0.0, 5 * MS, -3 * MS, 40 * MS, 1 * MS])
    fit = fit_clocks(shared(offsets), len(offsets))
    assert fit.offset == pytest.approx(offsets - 1 * MS, abs=4e3)
    assert not fit.drift.any()


def test_calls_whose_ends_really_are_apart_do_not_count() -> None:
    moments = shared([0.0, 5 * MS, -3 * MS])
    late = (moments.clock == 1) & (moments.match % 3 == 0)
    moments.time[late] += 300 * MS
    fit = fit_clocks(moments, 3)
    assert fit.offset[1] - fit.offset[0] == pytest.approx(5 * MS, abs=2e4)
    assert fit.offset[2] - fit.offset[0] == pytest.approx(-3 * MS, abs=2e4)


def test_drift_is_fitted_where_the_window_shows_it() -> None:
    drift = np.array([0.0, 20e-6, -15e-6])
    fit = fit_clocks(shared([0.0, 5 * MS, -3 * MS], span=60e9, drift=drift), 3)
    assert fit.drift == pytest.approx(drift, abs=0.3e-6)
    for moment in (0.0, 60e9):
        seen = np.array([0.0, 5 * MS, -3 * MS]) + drift * moment
        assert fit.offset + fit.drift * moment == pytest.approx(seen, abs=2e4)


def test_no_drift_is_made_up_in_a_short_window() -> None:
    fit = fit_clocks(shared([0.0, 5 * MS], span=0.2e9, drift=np.array([0.0, 20e-6])), 2)
    assert not fit.drift.any()


def test_a_chain_of_pairs_ties_all_clocks() -> None:
    """The stages of a pipeline share moments only with their neighbours."""
    offsets = np.arange(12) * 7 * MS
    pairs = [(stage, stage + 1) for stage in range(11) for _ in range(5)]
    match = np.repeat(np.arange(len(pairs)), 2)
    clock = np.array(pairs).ravel()
    fit = fit_clocks(Moments(match, clock, match * 10 * MS + offsets[clock], np.ones(len(match))), 12)
    assert fit.offset - fit.offset[0] == pytest.approx(offsets, abs=1e3)
    assert len(set(fit.component.tolist())) == 1


def test_clocks_without_shared_moments_stay_apart() -> None:
    moments = shared([0.0, 5 * MS])
    fit = fit_clocks(Moments(moments.match, moments.clock + 1, moments.time, moments.weight), 4)
    assert fit.component[1] == fit.component[2]
    assert len(set(fit.component.tolist())) == 3
    assert (fit.offset[0], fit.offset[3]) == (0, 0)


@pytest.mark.parametrize("n_clocks", [0, 1, 3])
def test_nothing_to_fit_gives_no_offsets(n_clocks: int) -> None:
    nothing = Moments(*(np.empty(0, kind) for kind in (np.int64, np.int64, float, float)))
    assert fit_clocks(nothing, n_clocks).offset.tolist() == [0.0] * n_clocks
