"""The columnar containers and the declared schema."""

from __future__ import annotations

import re

import numpy as np
import pytest

from rankscope.model.tables import MISSING, SCHEMA, Table, Text, Trace, concat


def frames(*rows: tuple[int, str]) -> Table:
    return Table.from_rows("frames", [{"frame_id": number, "file": file} for number, file in rows])


def test_every_column_is_declared_with_a_kind_and_a_sentence() -> None:
    for spec in SCHEMA.values():
        assert spec.doc.endswith(".")
        for column in spec.columns:
            assert re.fullmatch(r"[a-z][a-z0-9_]*", column.name)
            assert column.doc.endswith("."), f"{spec.name}.{column.name}"
            if not column.is_text:
                np.dtype(column.kind)


def test_times_and_counts_say_so_in_their_names() -> None:
    for spec in SCHEMA.values():
        for column in spec.columns:
            if column.name.endswith(("_ns", "_bytes")):
                assert column.kind == "int64", f"{spec.name}.{column.name}"


def test_rows_go_in_and_come_out() -> None:
    given = {"frame_id": 3, "file": "a.py", "line": 7, "function": "f", "is_user": True, "language": "python"}
    table = Table.from_rows("frames", [given])
    assert list(table.rows()) == [given]
    assert table.array("line").dtype == np.int32


def test_what_a_row_leaves_out_is_missing() -> None:
    (row,) = frames((1, "a.py")).rows()
    assert (row["line"], row["function"], row["is_user"]) == (MISSING, "", False)


def test_columns_of_different_length_are_refused() -> None:
    whole = frames((1, "a.py"), (2, "b.py"))
    with pytest.raises(ValueError, match="columns of frames differ in length"):
        whole.replaced({"line": np.zeros(1, np.int32)})


def test_an_undeclared_table_or_an_absent_column_is_refused() -> None:
    with pytest.raises(KeyError):
        Table("nonsense", {})
    with pytest.raises(KeyError):
        Table("stacks", {"stack_id": np.zeros(0, np.int32)})


def test_text_is_stored_once_per_value() -> None:
    text = Text.encode(["a", "b", "a", "a"])
    assert (text.values, text.codes.tolist()) == (["a", "b"], [0, 1, 0, 0])
    assert (text[2], len(text), text.tolist()) == ("a", 4, ["a", "b", "a", "a"])
    assert text.take(np.array([1, 3])).tolist() == ["b", "a"]
    assert text.equals("a").tolist() == [True, False, True, True]
    assert text.equals("c").tolist() == [False] * 4
    assert text.to_objects().tolist() == text.tolist()


def test_empty_text_behaves() -> None:
    text = Text.encode([])
    assert (text.tolist(), text.equals("a").tolist(), text.to_objects().tolist()) == ([], [], [])


def test_text_and_numbers_are_not_confused() -> None:
    table = frames((1, "a.py"))
    with pytest.raises(AssertionError, match=r"frames\.file is text"):
        table.array("file")
    with pytest.raises(AssertionError, match=r"frames\.line is not text"):
        table.text("line")


def test_take_and_replaced_leave_the_table_as_it_was() -> None:
    table = frames((1, "a.py"), (2, "b.py"))
    assert [row["file"] for row in table.take(np.array([1])).rows()] == ["b.py"]
    changed = table.replaced({"file": Text.constant("c.py", 2)})
    assert (changed.text("file").tolist(), table.text("file").tolist()) == (["c.py"] * 2, ["a.py", "b.py"])


def test_concat_joins_values_under_common_codes() -> None:
    whole = concat("frames", [frames((1, "a.py"), (2, "b.py")), frames((3, "b.py"), (4, "c.py")), frames()])
    assert whole.text("file").tolist() == ["a.py", "b.py", "b.py", "c.py"]
    assert whole.text("file").values == ["a.py", "b.py", "c.py"]
    assert whole.array("frame_id").tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("name", SCHEMA)
def test_concat_of_nothing_is_an_empty_table_of_the_declared_types(name: str) -> None:
    table = concat(name, [])
    assert len(table) == 0
    for column in SCHEMA[name].columns:
        if not column.is_text:
            assert table.array(column.name).dtype == np.dtype(column.kind)


def test_a_trace_has_a_table_only_when_it_holds_rows() -> None:
    trace = Trace(("x",), {"frames": frames((1, "a.py")), "stacks": concat("stacks", [])})
    assert (trace.has("frames"), trace.has("stacks"), trace.has("ranks")) == (True, False, False)
    assert len(trace.table("ranks")) == 0
