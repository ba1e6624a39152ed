"""How a rank's calls fit those of the others again after the first difference."""

from __future__ import annotations

import pytest

from analyze.building import job
from rankscope.analyze.hangs.programs import Departure, programs_of
from rankscope.analyze.hangs.shifts import Shift, explain_shift
from rankscope.model.tables import Trace


def explain(actual: str, expected: str, previous: str | None = None, n_enough: int = 64) -> Shift | None:
    """Calls as letters."""
    codes = [[ord(letter) for letter in text] for text in (actual, expected)]
    return explain_shift(codes[0], codes[1], None if previous is None else ord(previous), n_enough)


@pytest.mark.parametrize(
    ("actual", "expected", "shift"),
    [
        ("BCDE", "ABCDE", Shift("skipped", 1, 4)),
        ("CDE", "ABCDE", Shift("skipped", 2, 3)),
        ("EFG", "ABCDEFG", Shift("skipped", 4, 3)),
        ("FGHI", "ABCDEFGHI", Shift("skipped", 5, 4)),
        ("Z", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", Shift("skipped", 25, 1)),
        ("ABCDEFGHXY", "XYZ", Shift("repeated", 8, 2)),
        ("XABC", "ABC", Shift("repeated", 1, 3)),
        ("XYABC", "ABC", Shift("repeated", 2, 3)),
        ("BACD", "ABCD", Shift("swapped", 1, 4)),
        ("BA", "AB", Shift("swapped", 1, 2)),
        ("XBCD", "ABCD", Shift("replaced", 1, 3)),
    ],
)
def test_each_way_to_leave_the_path(actual: str, expected: str, shift: Shift) -> None:
    assert explain(actual, expected) == shift


def test_the_same_call_twice_in_a_row_is_a_repetition_even_if_nothing_follows() -> None:
    assert explain("A", "BC", previous="A") == Shift("repeated", 1, 0)
    assert explain("A", "BC", previous="X") is None


@pytest.mark.parametrize(("actual", "expected"), [("XYZW", "ABCD"), ("XFGHI", "ABCDEFGHI"), ("", "AB")])
def test_what_fits_nowhere_is_not_explained(actual: str, expected: str) -> None:
    assert explain(actual, expected) is None


@pytest.mark.parametrize(
    ("actual", "expected", "shift"),
    [
        # Four equal layers and an update, over and over: one layer left out, or made once more.
        ("BAAAABAAAAB", "ABAAAABAAAAB", ("skipped", 1)),
        ("ABAAAABAAAAB", "BAAAABAAAAB", ("repeated", 1)),
        ("CABCABCABC", "BCABCABCABC", ("skipped", 1)),
    ],
)
def test_programs_that_repeat_themselves(actual: str, expected: str, shift: tuple[str, int]) -> None:
    found = explain(actual, expected)
    assert found is not None
    assert (found.kind, found.n_calls) == shift


def test_a_shift_has_to_fit_to_the_end_unless_less_is_enough() -> None:
    # An evaluation follows three calls after the skipped one: the past step had none.
    assert explain("BCDE", "ABCXY") is None
    assert explain("BCDE", "ABCXY", n_enough=2) == Shift("skipped", 1, 2)


def test_the_smaller_of_two_equal_shifts_wins() -> None:
    found = explain("AAB", "BAAB")
    assert found is not None
    assert (found.kind, found.n_calls) == ("skipped", 1)


STEP = [f"dp:1 all_reduce done @loop.py:{line}" for line in (10, 11, 12)]


def departure_of(rank: int, trace: Trace) -> Departure | None:
    return programs_of(trace).departure(rank)


def test_a_departure_is_found_beside_siblings() -> None:
    whole = STEP * 4
    trace = job({0: whole, 1: whole, 2: [*whole[:7], *whole[8:]], 3: whole})
    found = departure_of(2, trace)
    assert found is not None
    assert (found.shift.kind, found.expected.basis) == ("skipped", "siblings")
    assert trace.table("collectives").array("record_id")[found.row] == 7
    assert departure_of(0, trace) is None  # one sibling that differs is no majority


def test_ranks_of_another_role_are_no_measure() -> None:
    other_role = [call.replace("loop.py", "stage.py") for call in STEP * 4]
    trace = job({0: STEP * 4, 1: other_role, 2: other_role, 3: other_role})
    assert departure_of(0, trace) is None


def test_siblings_that_differ_from_the_first_calls_on_are_of_another_role() -> None:
    with_warm_up = ["dp:1 all_reduce done @loop.py:9", *STEP * 4]
    trace = job({0: STEP * 4, 1: with_warm_up, 2: with_warm_up, 3: with_warm_up})
    assert departure_of(0, trace) is None


def test_without_siblings_the_ranks_own_past_is_the_measure() -> None:
    whole = STEP * 4
    trace = job({0: [*whole[:7], *whole[8:]], 1: []})
    found = programs_of(trace).departure(0)
    assert found is not None
    assert (found.shift.kind, found.expected.basis) == ("skipped", "history")


def test_what_is_usual_is_known_from_the_same_calls_before() -> None:
    trace = job({0: [*STEP * 3, STEP[0], STEP[2]]})
    programs = programs_of(trace)
    *_, odd = rows = programs.view.rows_of(0).tolist()
    assert [programs.is_usual(row) for row in rows[6:9]] == [True, True, True]
    assert not programs.is_usual(odd)  # line 12 never followed line 10
    assert programs.is_known(odd)


def test_groups_of_one_description_and_size_play_one_role() -> None:
    programs = {rank: [f"tp:{rank // 2} all_reduce done"] for rank in range(4)}
    classes = programs_of(job({**programs, 4: ["tp:9 all_reduce"], 5: ["dp:8 all_reduce"]})).group_class
    names = {"0": 0, "1": 1, "8": 2, "9": 3}
    assert classes[names["0"]] == classes[names["1"]]
    assert len({int(classes[names[name]]) for name in ("0", "8", "9")}) == 3


def test_groups_without_description_are_siblings_of_nobody() -> None:
    programs = {rank: [f"{rank // 2} all_reduce done"] for rank in range(4)}
    classes = programs_of(job(programs)).group_class
    assert classes[0] != classes[1]
