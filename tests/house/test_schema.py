"""Table and column names are public, so each one is explained and follows the naming rules."""

from __future__ import annotations

import re

import numpy as np
import pytest

from rankscope.model.tables import SCHEMA, TableSpec

TABLES = pytest.mark.parametrize("table", SCHEMA.values(), ids=lambda table: table.name)
NAME = re.compile(r"[a-z][a-z0-9_]*")


@TABLES
def test_names_are_plain_identifiers(table: TableSpec) -> None:
    names = [table.name, *(column.name for column in table.columns)]
    assert [name for name in names if not NAME.fullmatch(name)] == []
    assert len({column.name for column in table.columns}) == len(table.columns)


@TABLES
def test_every_column_has_a_sentence_and_a_type(table: TableSpec) -> None:
    assert table.doc.endswith(".")
    assert [column.name for column in table.columns if not column.doc.endswith(".")] == []
    for column in table.columns:
        assert column.is_text or np.dtype(column.kind).kind in "biuf", column.name


@TABLES
def test_units_are_in_the_name(table: TableSpec) -> None:
    times = [column for column in table.columns if column.name.endswith("_ns")]
    assert [column.name for column in times if column.kind != "int64"] == []
    sizes = [column for column in table.columns if column.name.endswith("_bytes")]
    assert [column.name for column in sizes if column.kind != "int64"] == []
