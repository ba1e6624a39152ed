"""Alignment by names: what is found is right, and where nothing tells two ways apart, nothing is found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyze.link.recordings import (
    BACKWARD,
    MAIN,
    Call,
    Run,
    found_calls,
    observed,
    pair_of,
    profiled,
    trace_of,
    training,
)
from rankscope.analyze.link.alignment import Track, align, align_ends

NUMBERS = st.lists(st.integers(-1, 6), max_size=40)
WORDS = st.text("abc", max_size=40)


def track(names: str | Sequence[str], seq: Sequence[int] = (), shapes: str = "") -> Track:
    """One letter per element; numbers and shapes where given."""
    codes = np.array([hash(name) % 2**31 for name in names], np.uint64)
    numbers = np.full(len(names), -1)
    numbers[: len(seq)] = seq[: len(names)]
    letters = np.array([ord(shape) for shape in shapes.ljust(len(names), "?")], np.uint64)
    return Track(codes, np.zeros(len(names), np.uint64), letters, numbers)


def matched(left: Track, right: Track) -> list[int]:
    found: list[int] = align(left, right).tolist()
    return found


def test_equal_tracks() -> None:
    assert matched(track("abcdefgh"), track("abcdefgh")) == list(range(8))


def test_a_part_of_the_other_track() -> None:
    assert matched(track("defgh"), track("abcdefghijk")) == [3, 4, 5, 6, 7]
    assert matched(track("abcdefghijk"), track("defgh")) == [-1, -1, -1, 0, 1, 2, 3, 4, -1, -1, -1]


def test_what_one_side_lacks_is_left_out() -> None:
    assert matched(track("abcdXefgh"), track("abcdefgYh")) == [0, 1, 2, 3, -1, 4, 5, 6, 8]


def test_things_in_another_order_are_not_crossed() -> None:
    found = matched(track("abcdefghPQRST"), track("PQRSTabcdefgh"))
    assert found == [5, 6, 7, 8, 9, 10, 11, 12, -1, -1, -1, -1, -1]


def test_a_pass_of_a_loop_that_nothing_tells_apart_is_not_found() -> None:
    assert matched(track("abcd" * 3), track("abcd" * 10)) == [-1] * 12
    assert matched(track("abcd" * 10), track("abcd" * 3)) == [-1] * 40


def test_numbers_tell_passes_of_a_loop_apart() -> None:
    left = track("abcd" * 3, [20, -1, -1, 21, 22, -1, -1, 23, 24, -1, -1, 25])
    numbers = [number for place in range(10) for number in (2 * place + 14, -1, -1, 2 * place + 15)]
    assert matched(left, track("abcd" * 10, numbers)) == list(range(12, 24))


def test_numbers_that_never_agree_are_other_steps() -> None:
    names = "abcdefghijkl"
    assert matched(track(names, range(12)), track(names, range(100, 112))) == [-1] * 12
    assert align_ends(track(names, range(12)), track(names, range(100, 112))).tolist() == [-1] * 12


def test_a_number_on_one_side_only_is_no_contradiction() -> None:
    assert matched(track("abcdefgh", [1, -1, 2]), track("abcdefgh", [1, 9, 2, 9])) == list(range(8))


def test_elements_with_other_numbers_are_never_the_same() -> None:
    assert matched(track("abcdefgh", [1, 2, 3]), track("abcdefgh", [1, 7, 3])) == [0, -1, 2, 3, 4, 5, 6, 7]


def test_where_something_is_missing_in_a_row_of_equal_things_none_of_them_is_taken() -> None:
    found = matched(track("abcdxxxxefgh"), track("abcdxxxefgh"))
    assert found == [0, 1, 2, 3, -1, -1, -1, -1, 7, 8, 9, 10]


def test_what_is_certain_around_it_is_taken() -> None:
    # One of the two pairs xy is missing; the z before and the w after them are not in doubt.
    found = matched(track("abcdzxyxywefgh"), track("abcdzxywefgh"))
    assert found == [0, 1, 2, 3, 4, -1, -1, -1, -1, 7, 8, 9, 10, 11]


def test_shapes_tell_equal_names_apart() -> None:
    left, right = track("abcdxxxxefgh", shapes="????1234"), track("abcdxxxefgh", shapes="????124")
    assert matched(left, right) == [0, 1, 2, 3, 4, 5, -1, 6, 7, 8, 9, 10]


def test_tracks_that_begin_and_end_together_are_the_same_loop() -> None:
    assert align_ends(track("abab" * 5), track("abab" * 5)).tolist() == list(range(20))
    assert align_ends(track("abab" * 5), track("abab" * 6)).tolist() == [-1] * 20


@pytest.mark.parametrize("find", [align, align_ends])
def test_nothing_is_in_an_empty_track(find: object) -> None:
    assert callable(find)
    assert find(track(""), track("abc")).tolist() == []
    assert find(track("abc"), track("")).tolist() == [-1, -1, -1]


@given(WORDS, WORDS, NUMBERS, NUMBERS)
def test_whatever_is_found_is_in_order_and_fits(left: str, right: str, own: list[int], others: list[int]) -> None:
    one, other = track(left, own), track(right, others)
    for partner in (align(one, other), align_ends(one, other)):
        found = np.flatnonzero(partner >= 0)
        assert (np.diff(partner[found]) > 0).all()
        assert (partner < len(right)).all()
        for place, there in zip(found.tolist(), partner[found].tolist(), strict=True):
            assert left[place] == right[there]
            numbers = {int(one.seq_id[place]), int(other.seq_id[there])} - {-1}
            assert len(numbers) < 2


@given(WORDS, NUMBERS)
def test_a_track_that_begins_and_ends_with_itself_is_found_whole(names: str, numbers: list[int]) -> None:
    same = track(names, numbers)
    assert align_ends(same, same).tolist() == list(range(len(names)))


@pytest.mark.parametrize("seed", range(5))
def test_lost_events_make_no_wrong_links(seed: int) -> None:
    calls = training(12, n_layers=12).calls
    is_kept = np.random.default_rng(seed).random(len(calls)) > 0.05
    kept = [call for call, keep in zip(calls, is_kept.tolist(), strict=True) if keep]
    found = found_calls(trace_of(observed(calls), profiled(kept, ids="absent")))
    assert {number: kept[place].number for number, place in found.items()} == {number: number for number in found}
    assert len(found) > 0.9 * len(kept)


def test_a_loop_of_many_equal_steps_takes_few_rounds() -> None:
    names = "abcdefgh" * 20_000
    partner = align_ends(track(names), track(names[:80_000] + "X" + names[80_000:]))
    assert (partner[:80_000] == np.arange(80_000)).all()
    assert (partner[80_000:] == np.arange(80_001, len(names) + 1)).all()


def busy_threads(n_steps: int, is_numbered: bool) -> list[Call]:
    """The backward thread has no numbers; only the time tells which of its passes belong to the main thread's."""
    run = Run()
    for number in range(n_steps):
        for layer in range(4):
            run.leaf("aten::linear", seq=10 * number + layer if is_numbered else -1)
        for _ in range(4):
            with run.call("backward", thread=BACKWARD):
                run.leaf("aten::mm", thread=BACKWARD)
        run.leaf("step")
    return run.calls


def test_a_thread_without_numbers_is_found_by_the_time_of_the_others() -> None:
    calls = busy_threads(20, is_numbered=True)
    per_step = len(calls) // 20
    window = calls[5 * per_step : 8 * per_step]
    found = found_calls(trace_of(observed(window), profiled(calls, ids="absent")))
    assert found == {call.number: calls.index(call) for call in window}


def test_a_part_of_a_loop_without_any_numbers_stays_unlinked() -> None:
    calls = busy_threads(20, is_numbered=False)
    per_step = len(calls) // 20
    trace = trace_of(observed(calls[5 * per_step : 8 * per_step]), profiled(calls, ids="absent"))
    assert (found_calls(trace), pair_of(trace)["why"]) == ({}, "different-run")


def test_threads_are_told_apart_by_what_they_do() -> None:
    calls = training().calls
    swapped = {MAIN: BACKWARD, BACKWARD: MAIN}
    for call in calls:
        call.ran_on = swapped[call.thread]
    trace = trace_of(observed(calls), profiled(calls, ids="absent"))
    assert found_calls(trace) == {call.number: place for place, call in enumerate(calls)}
