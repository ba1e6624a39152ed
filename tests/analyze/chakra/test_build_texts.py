from __future__ import annotations

import ast
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankscope.analyze.chakra.building.texts import GroupNames, described_groups, printed_lists
from rankscope.model.tables import Text

ANY_LIST = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
).map(lambda value: [value])


def printed(text: str) -> str:
    return printed_lists(Text.encode([text]), ("cpu", "<None>")).values[0]


@pytest.mark.parametrize(
    ("recorded", "wanted"),
    [
        ("[]", "[]"),
        ("[[8,64],[]]", "[[8, 64], []]"),
        ('[[7,8,0,512,4,"cpu"],"<None>"]', "[[7, 8, 0, 512, 4, 'cpu'], '<None>']"),
        ('[[7,8,0,512,4,"cpu"],0.000000,-0.010000]', "[[7, 8, 0, 512, 4, 'cpu'], 0.0, -0.01]"),
        ('["cpu",false,true,null]', "['cpu', False, True, None]"),
        ('["GenericList[Int,Int]","it\'s"]', """['GenericList[Int,Int]', "it's"]"""),
        ("[1e5]", "[100000.0]"),
        ("[1, 2]", "[1, 2]"),
        ("[1,", "[1, "),
        ('["cut', '["cut'),
    ],
)
def test_lists_are_printed_as_python_does(recorded: str, wanted: str) -> None:
    assert printed(recorded) == wanted


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ANY_LIST)
def test_any_list_is_printed_as_python_does(value: list[object]) -> None:
    assert printed(json.dumps(value, separators=(",", ":"))) == str(value)


def test_rows_keep_their_text() -> None:
    column = printed_lists(Text.encode(["[1,2]", "[]", "[1,2]"]))
    assert column.tolist() == ["[1, 2]", "[]", "[1, 2]"]


def test_decimal_names_of_groups_stay_and_others_get_free_numbers() -> None:
    names = GroupNames(["7", "tp", "dp", "", "0"])
    assert [names.written(name) for name in ("7", "0", "", "dp", "tp")] == ["7", "0", "", "8", "9"]


def test_names_of_groups_do_not_depend_on_the_order() -> None:
    one, other = GroupNames(["a", "b", "3"]), GroupNames(["3", "b", "a", "a"])
    assert [one.written(name) for name in "ab3"] == [other.written(name) for name in "ab3"]


@pytest.mark.parametrize("desc", ["default_pg", "it's", 'the "first"', "back\\slash", "größe"])
def test_the_feeder_can_parse_the_groups(desc: str) -> None:
    text = described_groups([{"pg_name": "1", "pg_desc": desc, "ranks": [0, 1]}])
    assert (text[:2], text[-2:]) == ("['", "']")
    assert json.loads(text[2:-2]) == [{"pg_name": "1", "pg_desc": desc, "ranks": [0, 1]}]


def test_the_groups_are_a_printed_list_of_one_text() -> None:
    text = described_groups([{"pg_name": "1", "ranks": [0, 1]}])
    assert json.loads(ast.literal_eval(text)[0]) == [{"pg_name": "1", "ranks": [0, 1]}]
