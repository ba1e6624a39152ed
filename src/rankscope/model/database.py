"""The tables of a trace as a DuckDB database, under the names that the schema gives them."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rankscope.model.schema import PART_KEYS
from rankscope.model.sql import as_pattern, quote_name, quote_path, quote_text
from rankscope.model.tables import MISSING, SCHEMA, Array, Column, Part, Table, TableSpec, Text, Trace

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_SQL_TYPES = {"text": "VARCHAR", "bool": "BOOLEAN", "int8": "TINYINT", "int32": "INTEGER", "int64": "BIGINT"}
_SQL_TYPES |= {"float32": "FLOAT", "float64": "DOUBLE"}
_WORD = re.compile(r"\w+")
_PARTS = "_parts"  # which file and rank the rows of each Parquet file belong to, or those of a process in it
# Opening a Parquet file costs more than reading a few thousand rows of it, and some forty statements ask each table.
_ROWS_IN_MEMORY = 500_000


def database(trace: Trace) -> DuckDBPyConnection:
    """The one connection that the analyses of a trace share. Derived tables appear in it once they have been made."""
    if database not in trace.derived:
        # Temporary views stand before the empty tables that all traces of the process share.
        connection = _empty_tables(os.getpid()).cursor()
        _register_remote_files(connection, trace)
        _register_parts(connection, trace)
        is_small = sum(map(trace.n_rows, trace.parts)) <= _ROWS_IN_MEMORY
        for name, parts in trace.parts.items():
            connection.execute(_parts_statement(SCHEMA[name], parts, "TABLE" if is_small else "VIEW")).fetchall()
        trace.derived[database] = connection, {}
    connection, shown = trace.derived[database]
    for name, table in trace.tables.items():
        if name not in trace.parts and shown.get(name) is not table:
            if len(shown.get(name, ())):
                connection.execute(f"DROP VIEW temp.{quote_name(name)}").fetchall()
            if len(table):
                _create_view(connection, table)
            shown[name] = table
    return connection  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=1)
def _empty_tables(_pid: int) -> DuckDBPyConnection:
    """A database in which every table is there without rows. Made once: it takes longer than most queries."""
    import duckdb

    connection = duckdb.connect(":memory:")
    connection.execute(f"SET temp_directory = {quote_text(spill_folder())}").fetchall()
    connection.execute("; ".join(_create_statement(spec) for spec in SCHEMA.values())).fetchall()
    return connection


def connect(trace: Trace, only: Collection[str] | None = None) -> DuckDBPyConnection:
    """Every table of the schema; those outside `only` are there without rows, which spares their conversion.

    DuckDB reads the numbers where they are and each text column only when a query touches it.
    """
    import duckdb

    connection = duckdb.connect(":memory:")
    connection.execute(f"SET temp_directory = {quote_text(spill_folder())}").fetchall()
    _register_remote_files(connection, trace)
    _register_parts(connection, trace)
    for spec in SCHEMA.values():
        if only is not None and spec.name not in only:
            connection.execute(_create_statement(spec)).fetchall()
        elif spec.name in trace.parts:
            connection.execute(_parts_statement(spec, trace.parts[spec.name], "VIEW")).fetchall()
        elif len(table := trace.table(spec.name)):
            _create_view(connection, table)
        else:
            connection.execute(_create_statement(spec)).fetchall()
    return connection


def named_tables(sql: str) -> set[str]:
    """The tables that a statement can need: those whose names occur in it, be it in a comment."""
    words = {word.casefold() for word in _WORD.findall(sql)}
    return {name for name in SCHEMA if name in words}


def forbid_outside_access(connection: DuckDBPyConnection, trace: Trace, may_write: str = "") -> None:
    """From here on SQL can reach only the trace's own parts and the one output file; this cannot be undone."""
    paths = {part.path for parts in trace.parts.values() for part in parts}
    allowed = sorted(paths | set(map(as_pattern, paths)))  # the view names the pattern, the system the file
    if may_write:
        allowed.append(may_write)
    connection.execute("SET python_enable_replacements = false").fetchall()
    if allowed:
        connection.execute(f"SET allowed_paths = [{', '.join(map(quote_text, allowed))}]").fetchall()
    connection.execute("SET enable_external_access = false").fetchall()
    connection.execute("SET lock_configuration = true").fetchall()


def load_table(trace: Trace, name: str) -> Table:
    """A large table as columns in memory."""
    spec = SCHEMA[name]
    missing = ", ".join(_loaded(column) for column in spec.columns)
    rows = database(trace).execute(f"SELECT {missing} FROM {quote_name(name)}").fetchnumpy()
    return Table(name, {column.name: _as_column(column, rows[column.name]) for column in spec.columns})


def table_from_query(trace: Trace, name: str, sql: str, parameters: Sequence[Any] = ()) -> Table:
    """The rows of a query as a table of the schema: each of its columns has to be among the query's."""
    columns = ", ".join(_loaded(column) for column in SCHEMA[name].columns)
    rows = database(trace).execute(f"SELECT {columns} FROM ({sql}\n)", list(parameters)).fetchnumpy()
    return Table(name, {column.name: _as_column(column, rows[column.name]) for column in SCHEMA[name].columns})


def _loaded(column: Column) -> str:
    """As _as_column needs it: no NULL, and text as one dictionary for the whole column is made there."""
    name = quote_name(column.name)
    if column.kind == "bool":
        return f"coalesce({name}, false) AS {name}"
    if column.is_text:
        return f"coalesce({name}, '') AS {name}"
    if column.kind.startswith("float"):
        return f"coalesce({name}::{_sql_type(column)}, 'nan') AS {name}"
    return f"coalesce({name}::{_sql_type(column)}, {MISSING}) AS {name}"


def _as_column(column: Column, values: Array) -> Array | Text:
    if column.is_text:
        return Text.encode(values.tolist())
    return np.ascontiguousarray(values, dtype=column.kind)


def _register_parts(connection: DuckDBPyConnection, trace: Trace) -> None:
    columns = "filename VARCHAR, process INTEGER, file_id INTEGER, rank INTEGER"
    connection.execute(f"CREATE TEMP TABLE {_PARTS} ({columns})").fetchall()
    unique = {(part.path, part.process): part for parts in trace.parts.values() for part in parts}
    if unique:
        rows = ", ".join(
            f"({quote_text(path)}, {'NULL' if process is None else process}, {part.file_id}, {part.rank})"
            for (path, process), part in unique.items()
        )
        connection.execute(f"INSERT INTO {_PARTS} VALUES {rows}").fetchall()


def _parts_statement(spec: TableSpec, parts: Sequence[Part], kind: Literal["TABLE", "VIEW"]) -> str:
    """A view reads the parts each time it is asked; a table holds their rows in memory."""
    is_shared = {part.path: part.process is not None for part in parts}
    paths = ", ".join(map(quote_path, is_shared))
    how = "filename = true, hive_partitioning = false"
    if len({*is_shared.values()}) > 1:
        how += ", union_by_name = true"  # only the shared ones have the column `process`
    process = "p.process" if any(is_shared.values()) else "NULL"
    own = ", ".join(quote_name(column.name) for column in spec.columns if column.name not in PART_KEYS)
    return (
        f"CREATE TEMP {kind} {quote_name(spec.name)} AS "
        f"SELECT nullif({_PARTS}.file_id, {MISSING}) AS file_id, nullif({_PARTS}.rank, {MISSING}) AS rank, {own} "
        f"FROM read_parquet([{paths}], {how}) AS p "
        f"JOIN {_PARTS} ON {_PARTS}.filename = p.filename AND {_PARTS}.process IS NOT DISTINCT FROM {process}"
    )


def _register_remote_files(connection: DuckDBPyConnection, trace: Trace) -> None:
    """Parts in an object store are read through fsspec, which read them in the first place."""
    remote = {
        part.path.partition("://")[0]: part.path
        for parts in trace.parts.values()
        for part in parts
        if "://" in part.path
    }
    for protocol, path in remote.items():
        import fsspec

        if protocol in connection.list_filesystems():  # of an earlier trace of this process
            connection.unregister_filesystem(protocol)
        connection.register_filesystem(fsspec.core.url_to_fs(path)[0])


def spill_folder() -> str:
    import tempfile

    return os.path.join(tempfile.gettempdir(), f"rankscope-spill-{os.getpid()}")


def _create_statement(spec: TableSpec) -> str:
    columns = ", ".join(f"{quote_name(column.name)} {_sql_type(column)}" for column in spec.columns)
    return f"CREATE TABLE {quote_name(spec.name)} ({columns})"


def _sql_type(column: Column) -> str:
    return _SQL_TYPES[column.kind]


def _create_view(connection: DuckDBPyConnection, table: Table) -> None:
    """DuckDB reads the columns in place; the view turns the placeholder of a missing number into NULL."""
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
    if column.kind.startswith("float"):
        return f"CASE WHEN isnan({name}) THEN NULL ELSE {name} END AS {name}"
    return f"nullif({name}, {MISSING}) AS {name}" if column.kind.startswith("int") else name


def _text_objects(text: Text) -> Array:
    """A dump may hold lone surrogates, which the database refuses; they become escapes."""
    return Text(text.codes, [value.encode("utf-8", "backslashreplace").decode() for value in text.values]).to_objects()
