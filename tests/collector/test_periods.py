"""Where a sequence of calls begins anew."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from rankscope.collect.profile.periods import _N_SEARCHES, Periods


def beginnings(calls: list[int]) -> list[int]:
    periods = Periods()
    return [number for number, call in enumerate(calls) if periods.begins(call)]


@pytest.mark.parametrize("step", [[1], [1, 2, 3], [1] * 10 + [2], list(range(100)), [1, 2] * 30 + [3]])
def test_the_period_is_one_step(step: list[int]) -> None:
    found = beginnings(step * (2000 // len(step)))
    assert len(found) > 3
    assert {after - before for before, after in pairwise(found[-4:])} == {len(step)}


def test_what_comes_before_the_loop_does_not_matter() -> None:
    found = beginnings([7, 8, 9, 9, 7, *[1, 2, 3, 4] * 100])
    assert found
    assert {after - before for before, after in pairwise(found)} == {4}


def test_a_long_step_of_many_equal_calls() -> None:
    """At first a single call looks like the whole step."""
    found = beginnings(([1] * 100 + [2]) * 40)
    assert [after - before for before, after in pairwise(found[-4:])] == [101] * 3


def test_a_job_that_never_repeats_itself_is_left_in_peace() -> None:
    chance, periods = random.Random(0), Periods()
    assert not any(periods.begins(chance.randrange(1000)) for _ in range(100_000))
    assert periods._n_searches_left == 0 < _N_SEARCHES
