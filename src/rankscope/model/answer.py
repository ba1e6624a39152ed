"""What a statement over the tables of a trace gives: the one way to ask, for analyses, renderers and users alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np

from rankscope.errors import UsageError, did_you_mean
from rankscope.model.database import SQL_TYPES, Fetch, Result, Row, Values, database_of, missing_table
from rankscope.model.sql import quote_name
from rankscope.model.tables import MISSING, SCHEMA, Array, Column, Table, Text, Trace

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    from duckdb import DuckDBPyConnection

_BEFORE = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)  # what may stand before a statement
_CHANGE = re.compile(r"\b(?:CREATE|INSERT|UPDATE|DELETE|DROP|ALTER|TRUNCATE|MERGE)\b", re.IGNORECASE)
_PLACEHOLDERS = {"i": MISSING, "f": np.nan, "b": False}
_HINT = "rankscope tables lists every table and column"
_OWN_TABLE = re.compile(
    r"""(?:CREATE\s+(?:OR\s+REPLACE\s+)?TEMP(?:ORARY)?\s+(?:TABLE|VIEW)\s+(?:IF\s+NOT\s+EXISTS\s+)?
        |INSERT\s+INTO\s+|UPDATE\s+|DELETE\s+FROM\s+|DROP\s+(?:TABLE|VIEW)\s+(?:IF\s+EXISTS\s+)?)"?(?P<name>\w+)\b"?(?!\s*\.)""",
    re.IGNORECASE | re.VERBOSE,
)


class Answer:
    """The rows of a statement. A question runs each time that it is fetched; a change has been made already."""

    def __init__(self, trace: Trace, query: str, parameters: Mapping[str, Any]) -> None:
        self._trace, self._query, self._parameters = trace, query, parameters
        self._database = database_of(trace)
        self._changed: list[Row] | None = None
        start = _BEFORE.match(query)
        text = query[start.end() :] if start else query
        if ";" in text or not text:
            with _explained():
                check_single(self._database.n_statements(query))
        _check_names(name for name, value in parameters.items() if isinstance(value, Mapping))
        if _CHANGE.search(text) and self._is_change():
            _check_change(text)
            self._changed = self._fetch(query, _rows)

    def _is_change(self) -> bool:
        """The word may also be text or a name, and a change may come after WITH. Parsing takes longer than looking."""
        with _explained():
            return self._database.is_change(self._query)

    def rows(self) -> list[Row]:
        """Python values; what is missing is None. Of a change: the number of its rows."""
        return self._fetch(self._query, _rows) if self._changed is None else self._changed

    def columns(self) -> dict[str, Array]:
        """One array per column. What is missing is -1 among integers, else NaN, False or an empty text."""
        arrays = self._fetch(self._query, _arrays)
        return {name: _without_nulls(values) for name, values in arrays.items()}

    def table(self, name: str) -> Table:
        """A table of the schema: each of its columns has to be among those of the statement."""
        columns = SCHEMA[name].columns
        names = {column.name: quote_name(column.name) for column in columns}
        cast = ", ".join(
            f"{names[column.name]}::{SQL_TYPES[column.kind]} AS {names[column.name]}" for column in columns
        )
        arrays = self._fetch(f"SELECT {cast} FROM ({self._query.rstrip().rstrip(';')}\n)", _arrays)
        return Table(name, {column.name: _as_column(column, _without_nulls(arrays[column.name])) for column in columns})

    def batches(self, n_rows: int) -> Iterator[list[Row]]:
        """Some rows at a time, so that not all of them have to be in memory."""
        with _explained():
            yield from self._database.batches(self._query, self._parameters, n_rows)

    def df(self) -> pandas.DataFrame:
        return self._fetch(self._query, lambda connection, query, values: connection.sql(query, params=values).df())

    def pl(self) -> polars.DataFrame:
        return self._fetch(self._query, lambda connection, query, values: connection.sql(query, params=values).pl())

    def arrow(self) -> pyarrow.Table:
        return self._fetch(
            self._query, lambda connection, query, values: connection.sql(query, params=values).to_arrow_table()
        )

    def __repr__(self) -> str:
        query = " ".join(self._query.split())
        return f"Answer to {query!r}: fetch it with rows(), columns(), table(), df(), pl() or arrow()"

    def _fetch(self, query: str, fetched: Fetch[Result]) -> Result:
        with _explained():
            return self._database.fetch(query, self._parameters, fetched)


def _rows(connection: DuckDBPyConnection, query: str, values: Values) -> list[Row]:
    return connection.execute(query, values).fetchall()


def _arrays(connection: DuckDBPyConnection, query: str, values: Values) -> dict[str, Any]:
    return connection.execute(query, values).fetchnumpy()


def check_single(n_statements: int) -> None:
    """A query has one answer, so it is one statement."""
    if n_statements != 1:
        given = "no statement" if n_statements == 0 else f"{n_statements} statements"
        raise UsageError(f"a query is one SQL statement, but this is {given}", "for example: from ranks")


def _check_change(text: str) -> None:
    """All traces of a process share one database, and a trace's tables are what was read: neither is changed."""
    match = _OWN_TABLE.match(text)
    if match is None:
        raise UsageError("only temporary tables and views can be made", "create temp table mine as select ...")
    _check_names([match["name"]])


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if name.casefold() in SCHEMA:
            raise UsageError(f"{name} is a table of the trace and stays as it is", "use another name")


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except duckdb.CatalogException as error:
        name = missing_table(error)
        raise UsageError(_first_line(error), (name and did_you_mean(name, SCHEMA)) or _HINT) from error
    except duckdb.ProgrammingError as error:
        raise UsageError(_first_line(error), _HINT) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _without_nulls(values: Any) -> Array:
    """The one place where NULL becomes the placeholder that columns in memory have for it."""
    if not isinstance(values, np.ma.MaskedArray):
        return np.asarray(values)
    if values.dtype.kind == "O":
        is_text = all(isinstance(value, str) for value in values.compressed())
        return np.asarray(values.filled("" if is_text else None))
    if values.dtype.kind == "u":
        values = values.astype(np.int64)
    return np.asarray(values.filled(_PLACEHOLDERS.get(values.dtype.kind)))


def _as_column(column: Column, values: Array) -> Array | Text:
    return Text.encode(values.tolist()) if column.is_text else np.ascontiguousarray(values, column.kind)
