"""Offsets of hosts' clocks from moments that they share."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope.model.clock import MIN_SHARED, POLL_NS, estimate_offsets
from rankscope.model.tables import MISSING, Array

EPOCH_NS = 1_700_000_000_000_000_000
SECOND = 1_000_000_000


def notices(offsets: list[float], n_events: int = 200, seed: int = 1) -> Array:
    """When ranks with these clock offsets (seconds) noticed common events, each polling at its own phase."""
    random = np.random.default_rng(seed)
    truth = EPOCH_NS + np.cumsum(random.integers(SECOND // 20, SECOND // 2, n_events))
    polling = random.integers(0, POLL_NS, (len(offsets), n_events))
    return truth + polling + (np.array(offsets) * SECOND).astype(np.int64)[:, None]


@pytest.mark.parametrize("seed", range(5))
def test_skewed_hosts_are_recovered_within_the_error(seed: int) -> None:
    truth = [0.0, 0.0, 3.0, -7.0, 0.0]
    found = estimate_offsets(["a", "b", "c", "d", "e"], notices(truth, seed=seed))
    assert found.offset_ns[[0, 1, 4]].tolist() == [0, 0, 0]
    for rank in (2, 3):
        assert 0 < found.error_ns[rank] < POLL_NS / 4
        assert abs(found.offset_ns[rank] - truth[rank] * SECOND) < 4 * found.error_ns[rank]


def test_differences_within_a_polling_period_are_left_alone() -> None:
    found = estimate_offsets(["a", "b", "c"], notices([0.0, 0.05, -0.04]))
    assert found.offset_ns.tolist() == [0, 0, 0]
    assert found.error_ns.tolist() == [MISSING] * 3


def test_ranks_of_one_host_share_its_clock() -> None:
    moments = notices([0.0, 0.0, 0.0, 5.0, 5.0])
    moments[4] = 0  # this rank noticed nothing; its host-mate speaks for it
    found = estimate_offsets(["a", "b", "c", "d", "d"], moments)
    assert found.offset_ns[3] == found.offset_ns[4]
    assert abs(found.offset_ns[4] - 5 * SECOND) < POLL_NS


def test_ranks_without_a_host_have_clocks_of_their_own() -> None:
    found = estimate_offsets(["", "", ""], notices([0.0, 0.0, 5.0]))
    assert found.offset_ns[:2].tolist() == [0, 0]
    assert abs(found.offset_ns[2] - 5 * SECOND) < POLL_NS


def test_the_median_host_is_the_measure() -> None:
    found = estimate_offsets(["a", "b", "c"], notices([9.0, 9.0, 4.0]))
    assert found.offset_ns[:2].tolist() == [0, 0]
    assert abs(found.offset_ns[2] + 5 * SECOND) < POLL_NS


def test_single_late_notices_do_not_move_the_clock() -> None:
    moments = notices([0.0, 0.0, 2.0, 0.0])
    moments[2, ::9] += 60 * SECOND  # its watchdog hung now and then
    found = estimate_offsets(["a", "b", "c", "d"], moments)
    assert abs(found.offset_ns[2] - 2 * SECOND) < POLL_NS


def test_too_few_shared_moments_are_no_evidence() -> None:
    few = notices([0.0, 0.0, 5.0], n_events=MIN_SHARED - 1)
    assert estimate_offsets(["a", "b", "c"], few).offset_ns.tolist() == [0, 0, 0]


def test_hosts_that_noticed_nothing_are_taken_as_they_are() -> None:
    found = estimate_offsets(["a", "b"], np.zeros((2, 4), np.int64))
    assert (found.offset_ns.tolist(), found.error_ns.tolist()) == ([0, 0], [MISSING, MISSING])


def test_one_host_needs_no_estimate() -> None:
    found = estimate_offsets(["a", "a"], notices([0.0, 8.0]))
    assert found.offset_ns.tolist() == [0, 0]
