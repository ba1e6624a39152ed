"""When a difference is one, on hand-made samples: values in any unit, one per rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from rankscope.analyze.compare.noise import Judgement, Samples, judge, standard_error

LEAST = 1.0


def samples(means: Sequence[float], error: float = 0.5, first: int = 0) -> Samples:
    n = len(means)
    return Samples(np.arange(first, first + n), np.array(means, np.float64), np.full(n, error), np.full(n, 2.0))


def judged(old: Samples | None, new: Samples | None) -> Judgement:
    return judge(old, new, LEAST)


def test_what_is_the_same_on_all_ranks_is_no_change() -> None:
    told = judged(samples([100] * 8), samples([101, 99, 102, 100, 98, 103, 100, 101]))
    assert (told.kind, told.units, told.old_ns) == ("same", (), 100)


def test_more_than_two_runs_of_one_job_differ_is_slower_everywhere() -> None:
    told = judged(samples([100] * 8), samples([110] * 8))
    assert (told.kind, told.units, told.old_ns, told.new_ns, told.noise_ns) == ("slower", (), 100, 110, 5)
    assert judged(samples([110] * 8), samples([100] * 8)).kind == "faster"


def test_a_change_within_the_spread_of_the_steps_is_noise() -> None:
    assert judged(samples([100] * 8, error=5), samples([115] * 8, error=5)).kind == "same"
    assert judged(samples([100] * 8, error=5), samples([130] * 8, error=5)).kind == "slower"


def test_one_step_tells_no_spread_so_more_is_asked_for() -> None:
    assert judged(samples([100] * 4, error=np.nan), samples([108] * 4, error=np.nan)).kind == "same"
    assert judged(samples([100] * 4, error=np.nan), samples([112] * 4, error=np.nan)).kind == "slower"


def test_a_single_slow_rank_is_named_with_its_own_times() -> None:
    told = judged(samples([100, 101, 99, 100]), samples([100, 101, 130, 100]))
    assert (told.kind, told.units, told.old_ns, told.new_ns) == ("slower", (2,), 99, 130)


def test_a_rank_is_compared_with_itself_not_with_busier_ones() -> None:
    told = judged(samples([100, 100, 10, 10]), samples([100, 100, 10, 20]))
    assert (told.kind, told.units) == ("slower", (3,))


def test_a_few_ranks_must_stand_out_from_how_the_others_changed() -> None:
    new = [92.0, 108.0, 91.0, 109.0, 92.0, 107.0, 94.0, 103.0, 112.0]
    assert judged(samples([100.0] * 9), samples(new)).kind == "same"


def test_captures_of_different_sizes_compare_with_what_any_rank_had() -> None:
    small, large = samples([98, 102]), samples([100] * 8)
    assert judged(small, large).kind == judged(large, small).kind == "same"
    told = judged(small, samples([100, 100, 100, 100, 100, 100, 100, 140]))
    assert (told.kind, told.units, told.old_ns, told.new_ns) == ("slower", (7,), 100, 140)


def test_what_one_capture_lacks_is_new_or_gone_unless_it_takes_no_time() -> None:
    assert judged(None, samples([50] * 2)).kind == "new"
    assert judged(samples([50] * 2), None).kind == "gone"
    assert judged(None, samples([0.5] * 2)).kind == "same"


def test_what_changes_less_than_is_worth_telling_is_the_same() -> None:
    assert judge(samples([100] * 4), samples([120] * 4), 30.0).kind == "same"


def test_ranks_that_never_did_it_do_not_count_as_unchanged() -> None:
    told = judged(samples([0, 0, 50, 50]), samples([0, 0, 80, 80]))
    assert (told.kind, told.units, told.new_ns) == ("slower", (), 80)


def test_the_error_of_a_mean() -> None:
    values = np.array([4.0, 6.0, 8.0])
    error = standard_error(np.array([3, 1]), np.array([values.sum(), 5.0]), np.array([(values**2).sum(), 25.0]))
    assert error[0] == pytest.approx(np.std(values, ddof=1) / np.sqrt(3))
    assert np.isnan(error[1])
