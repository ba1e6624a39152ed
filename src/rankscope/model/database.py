"""The tables of a trace as a DuckDB database, under the names that the schema gives them."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from rankscope.model.sql import quote_name, quote_text
from rankscope.model.tables import MISSING, SCHEMA, Array, Column, Table, TableSpec, Text, Trace

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_SQL_TYPES = {"text": "VARCHAR", "bool": "BOOLEAN", "int8": "TINYINT", "int32": "INTEGER", "int64": "BIGINT"}
_SQL_TYPES |= {"float32": "FLOAT", "float64": "DOUBLE"}
_WORD = re.compile(r"\w+")


def connect(trace: Trace, only: Collection[str] | None = None) -> DuckDBPyConnection:
    """Every table of the schema; those outside `only` are there without rows, which spares their conversion.

    DuckDB reads the numbers where they are and each text column only when a query touches it.
    """
    import duckdb

    connection = duckdb.connect(":memory:")
    for spec in SCHEMA.values():
        table = trace.table(spec.name)
        if len(table) and (only is None or spec.name in only):
            _create_view(connection, table)
        else:
            connection.execute(_create_statement(spec)).fetchall()
    return connection


def named_tables(sql: str) -> set[str]:
    """The tables that a statement can need: those whose names occur in it, be it in a comment."""
    words = {word.casefold() for word in _WORD.findall(sql)}
    return {name for name in SCHEMA if name in words}


def forbid_outside_access(connection: DuckDBPyConnection, may_write: str = "") -> None:
    """From here on SQL reaches neither files nor the network, but for the one file named; there is no way back."""
    connection.execute("SET python_enable_replacements = false").fetchall()
    if may_write:
        connection.execute(f"SET allowed_paths = [{quote_text(may_write)}]").fetchall()
    connection.execute("SET enable_external_access = false").fetchall()
    connection.execute("SET lock_configuration = true").fetchall()


def _create_statement(spec: TableSpec) -> str:
    columns = ", ".join(f"{quote_name(column.name)} {_sql_type(column)}" for column in spec.columns)
    return f"CREATE TEMP TABLE {quote_name(spec.name)} ({columns})"


def _sql_type(column: Column) -> str:
    return _SQL_TYPES[column.kind]


def _create_view(connection: DuckDBPyConnection, table: Table) -> None:
    """DuckDB reads the columns in place; the view turns what stands for a missing number into NULL."""
    raw = f"_{table.name}"
    columns = {
        name: _text_objects(values) if isinstance(values, Text) else values for name, values in table.columns.items()
    }
    connection.register(raw, columns)
    selected = ", ".join(_selected(column) for column in SCHEMA[table.name].columns)
    connection.execute(
        f"CREATE TEMP VIEW {quote_name(table.name)} AS SELECT {selected} FROM {quote_name(raw)}"
    ).fetchall()


def _selected(column: Column) -> str:
    name = quote_name(column.name)
    return f"nullif({name}, {MISSING}) AS {name}" if column.kind.startswith("int") else name


def _text_objects(text: Text) -> Array:
    """A dump may hold lone surrogates, which the database refuses; they become escapes."""
    return Text(text.codes, [value.encode("utf-8", "backslashreplace").decode() for value in text.values]).to_objects()
