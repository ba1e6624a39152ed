"""The tables of a trace as a DuckDB database, under the names that the schema gives them."""

from __future__ import annotations

import functools
import os
import re
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

from rankscope.model.schema import PART_KEYS
from rankscope.model.sql import as_pattern, quote_name, quote_path, quote_text
from rankscope.model.tables import MISSING, SCHEMA, Array, Column, Part, TableSpec, Text, Trace

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Row = tuple[Any, ...]
Result = TypeVar("Result")
Values: TypeAlias = "dict[str, Any] | None"
Fetch: TypeAlias = Callable[["DuckDBPyConnection", str, Values], Result]
SQL_TYPES = {"text": "VARCHAR", "bool": "BOOLEAN", "int8": "TINYINT", "int32": "INTEGER", "int64": "BIGINT"}
SQL_TYPES |= {"float32": "FLOAT", "float64": "DOUBLE"}
_WORD = re.compile(r"\w+")
_NO_TABLE = re.compile(r'Table with name "?([^"\s]+)"? does not exist')
_CHANGES = frozenset(("CREATE", "INSERT", "UPDATE", "DELETE", "MERGE_INTO", "DROP", "ALTER"))
_PARTS = "_parts"  # which file and rank the rows of each Parquet file belong to, or those of a process in it
# Opening a Parquet file costs more than reading a few thousand rows of it, and some forty statements ask each table.
_ROWS_IN_MEMORY = 500_000


class _Shown(NamedTuple):
    kind: Literal["TABLE", "VIEW"]
    rows: Any  # the table or the parts as they were then


class Database:
    """The connection of one trace. Each table appears in it when a statement first names it."""

    def __init__(self, trace: Trace) -> None:
        self._of = weakref.ref(trace)  # the trace holds it: a cycle would keep large columns until the next collection
        self._connection = _instance(os.getpid()).cursor()
        self._shown: dict[str, _Shown] = {}
        self._stream: _Stream | None = None
        # A name that is no table would else be taken for a variable of the caller.
        self._connection.execute("SET python_enable_replacements = false").fetchall()
        if trace.parts:
            _register_remote_files(self._connection, trace)
            _register_parts(self._connection, trace)

    def fetch(self, query: str, parameters: Mapping[str, Any], fetched: Fetch[Result]) -> Result:
        """What is fetched of a statement. A parameter that is a mapping of arrays is a table of that name."""
        given = {name: value for name, value in parameters.items() if isinstance(value, Mapping)}
        values = {name: value for name, value in parameters.items() if name not in given}
        self._bring_up_to_date()
        for name, columns in given.items():
            _create_view(self._connection, name, columns)
        try:
            result = self._run(query, values or None, fetched)
            if given and isinstance(result, _Stream):
                result.take_rest()  # its tables go now
            return result
        finally:
            for name in given:
                self._connection.execute(f"DROP VIEW temp.{quote_name(name)}").fetchall()
                self._connection.unregister(f"_{name}")

    def batches(self, query: str, parameters: Mapping[str, Any], n_rows: int) -> Iterator[list[Row]]:
        """Rows as they come; the rest is taken at once when another statement needs the connection."""
        self._stream = stream = self.fetch(query, parameters, _Stream)
        while rows := stream.take(n_rows):
            yield rows

    def n_statements(self, query: str) -> int:
        return len(self._connection.extract_statements(query))

    def is_change(self, query: str) -> bool:
        return any(statement.type.name in _CHANGES for statement in self._connection.extract_statements(query))

    def _bring_up_to_date(self) -> None:
        if self._stream is not None:
            self._stream.take_rest()
            self._stream = None
        for name, shown in list(self._shown.items()):
            if shown.rows is not self._held(name):
                self._show(name)

    def _run(self, query: str, values: Values, fetched: Fetch[Result]) -> Result:
        from duckdb import CatalogException

        while True:
            try:
                return fetched(self._connection, query, values)
            except CatalogException as error:
                name = missing_table(error)
                if name not in SCHEMA or name in self._shown:
                    raise
            self._show(name)  # no statement is under way here: a table may ask for others while it is made

    @property
    def _trace(self) -> Trace:
        trace = self._of()
        assert trace is not None, "an answer holds its trace"
        return trace

    def _held(self, name: str) -> Any:
        return self._trace.parts.get(name) or self._trace.tables.get(name)

    def _show(self, name: str) -> None:
        trace = self._trace
        table = None if name in trace.parts else trace.table(name)
        if name in self._shown:
            self._connection.execute(f"DROP {self._shown[name].kind} temp.{quote_name(name)}").fetchall()
        kind: Literal["TABLE", "VIEW"] = "VIEW"
        if table is None:
            kind = "TABLE" if sum(map(trace.n_rows, trace.parts)) <= _ROWS_IN_MEMORY else "VIEW"
            self._connection.execute(_parts_statement(SCHEMA[name], trace.parts[name], kind)).fetchall()
        elif len(table):
            _create_view(self._connection, name, table.columns)
        else:
            kind = "TABLE"
            self._connection.execute(_create_statement(SCHEMA[name], "TEMP TABLE")).fetchall()
        self._shown[name] = _Shown(kind, self._held(name))


class _Stream:
    """Rows that a connection still holds."""

    def __init__(self, connection: DuckDBPyConnection, query: str, values: Values) -> None:
        self._connection: DuckDBPyConnection | None = connection.execute(query, values)
        self._kept: list[Row] = []

    def take(self, n_rows: int) -> list[Row]:
        if self._connection is not None:
            return self._connection.fetchmany(n_rows)
        rows, self._kept = self._kept[:n_rows], self._kept[n_rows:]
        return rows

    def take_rest(self) -> None:
        if self._connection is not None:
            self._kept, self._connection = self._connection.fetchall(), None


def database_of(trace: Trace) -> Database:
    """One per trace."""
    if Database not in trace.derived:
        trace.derived[Database] = Database(trace)
    database: Database = trace.derived[Database]
    return database


def missing_table(error: Exception) -> str:
    """The table that a statement names and the database has not; empty where the error is another."""
    match = _NO_TABLE.search(str(error))
    return match[1].casefold() if match else ""


@functools.lru_cache(maxsize=1)
def _instance(_pid: int) -> DuckDBPyConnection:
    """One for all traces of the process: to start one takes longer than most queries. Each trace has its own names."""
    import duckdb

    connection = duckdb.connect(":memory:")
    connection.execute(f"SET temp_directory = {quote_text(spill_folder())}").fetchall()
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
            connection.execute(_create_statement(spec, "TABLE")).fetchall()
        elif spec.name in trace.parts:
            connection.execute(_parts_statement(spec, trace.parts[spec.name], "VIEW")).fetchall()
        elif len(table := trace.table(spec.name)):
            _create_view(connection, spec.name, table.columns)
        else:
            connection.execute(_create_statement(spec, "TABLE")).fetchall()
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
    columns = ", ".join(_stored(column) for column in spec.columns if column.name not in PART_KEYS)
    return (
        f"CREATE TEMP {kind} {quote_name(spec.name)} AS "
        f"SELECT nullif({_PARTS}.file_id, {MISSING}) AS file_id, nullif({_PARTS}.rank, {MISSING}) AS rank, {columns} "
        f"FROM read_parquet([{paths}], {how}) AS p "
        f"JOIN {_PARTS} ON {_PARTS}.filename = p.filename AND {_PARTS}.process IS NOT DISTINCT FROM {process}"
    )


def _stored(column: Column) -> str:
    name = quote_name(column.name)
    return f"nullif({name}, '') AS {name}" if column.is_text else name


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


def _create_statement(spec: TableSpec, kind: Literal["TABLE", "TEMP TABLE"]) -> str:
    columns = ", ".join(f"{quote_name(column.name)} {SQL_TYPES[column.kind]}" for column in spec.columns)
    return f"CREATE {kind} {quote_name(spec.name)} ({columns})"


def _create_view(connection: DuckDBPyConnection, name: str, columns: Mapping[str, Array | Text]) -> None:
    """DuckDB reads the columns in place; the view turns the placeholder of what is missing into NULL."""
    raw = f"_{name}"
    connection.register(
        raw, {key: _text_objects(held) if isinstance(held, Text) else held for key, held in columns.items()}
    )
    selected = ", ".join(_selected(quote_name(key), held) for key, held in columns.items())
    connection.execute(f"CREATE TEMP VIEW {quote_name(name)} AS SELECT {selected} FROM {quote_name(raw)}").fetchall()


def _selected(name: str, held: Array | Text) -> str:
    kind = "O" if isinstance(held, Text) else held.dtype.kind
    if kind == "f":
        return f"CASE WHEN isnan({name}) THEN NULL ELSE {name} END AS {name}"
    missing = {"i": str(MISSING), "O": "''", "U": "''"}.get(kind)
    return f"nullif({name}, {missing}) AS {name}" if missing else name


def _text_objects(text: Text) -> Array:
    """A dump may hold lone surrogates, which the database refuses; they become escapes."""
    return Text(text.codes, [value.encode("utf-8", "backslashreplace").decode() for value in text.values]).to_objects()
