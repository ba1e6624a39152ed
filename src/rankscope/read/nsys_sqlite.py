"""A SQLite export of Nsight Systems, copied table by table into Parquet.

The file may come from a stranger. It is opened read-only, only real tables are read (no view, virtual table, trigger
or generated column is ever touched), and what no honest file has ends in a BadFileError: cut pages, more rows than the
file can hold, text where a number belongs.
"""

from __future__ import annotations

import contextlib
import functools
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rankscope.errors import BadFileError
from rankscope.model.sql import quote_name, quote_text
from rankscope.model.tables import Array
from rankscope.read.nsys_export import EXPORT_HINT, SQLITE_MAGIC

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_BATCH_ROWS = 65536
_MAX_TEXT = 8192  # characters of a name; operators with the shapes of a hundred tensors stay below
_MAX_PAYLOAD = 128  # bytes of an NVTX payload: NCCL's have at most 88, their header included
_MAX_SMALL_ROWS = 100_000
_MIN_ROW_BYTES = 2  # a row costs at least its length and its number
_NULL = -(2**63)  # stands for NULL in integer columns on their way through numpy
# All that the statements here do; what the file itself would have done is refused.
_ALWAYS_ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ)
_ALLOWED = (
    *((sqlite3.SQLITE_FUNCTION, function) for function in ("ifnull", "substr", "hex", "typeof")),
    (sqlite3.SQLITE_PRAGMA, "table_info"),
)


class SqliteExport:
    def __init__(self, path: Path) -> None:
        _check_whole(path)
        self._max_rows = path.stat().st_size // _MIN_ROW_BYTES
        with _clear_errors():
            self._connection = _connect(path)
            self.columns = _real_tables(self._connection)

    def close(self) -> None:
        self._connection.close()

    def rows(self, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """The rows of a small table; a column that this version of nsys does not write is None."""
        known = self.columns.get(table, ())
        if not known:
            return []
        selected = ", ".join(quote_name(column) if column in known else "NULL" for column in columns)
        with _clear_errors():
            cursor = self._connection.execute(f"SELECT {selected} FROM {quote_name(table)}")
            return cursor.fetchmany(_MAX_SMALL_ROWS)

    def parts(
        self, table: str, kinds: Mapping[str, str], folder: Path, connection: DuckDBPyConnection
    ) -> Iterator[Path]:
        """Writes the known columns of a large table as Parquet files, one per batch of rows."""
        kinds = {column: kind for column, kind in kinds.items() if column in self.columns.get(table, ())}
        typed = ", ".join(_typed(column, kind) for column, kind in kinds.items())
        with _clear_errors():
            for number, batch in enumerate(self._batches(table, kinds)):
                path = folder / f"raw_{table}-{number}.parquet"
                connection.register("batch", batch)
                connection.execute(
                    f"COPY (SELECT {typed} FROM batch) TO {quote_text(str(path))} (FORMAT parquet, COMPRESSION lz4_raw)"
                ).fetchall()
                connection.unregister("batch")
                yield path

    def _batches(self, table: str, kinds: Mapping[str, str]) -> Iterator[dict[str, Array]]:
        if not kinds:
            return
        selected = ", ".join(_selected(column, kind) for column, kind in kinds.items())
        cursor = self._connection.execute(f"SELECT {selected} FROM {quote_name(table)}")
        n_rows = 0
        while rows := cursor.fetchmany(_BATCH_ROWS):
            n_rows += len(rows)
            if n_rows > self._max_rows:
                raise BadFileError(f"claims more rows in {table} than it can hold", EXPORT_HINT)
            values = zip(*rows, strict=True)
            yield {
                column: _column(table, column, kind, cells)
                for (column, kind), cells in zip(kinds.items(), values, strict=True)
            }


def _selected(column: str, kind: str) -> str:
    name = quote_name(column)
    if kind == "BIGINT":
        return f"ifnull({name}, {_NULL})"
    if kind == "BLOB":  # some versions declare it as text; the cast keeps every byte either way
        return f"CASE WHEN {name} IS NULL THEN '' ELSE substr(hex(CAST({name} AS BLOB)), 1, {2 * _MAX_PAYLOAD}) END"
    return f"ifnull(CAST(substr({name}, 1, {_MAX_TEXT}) AS TEXT), '')"


def _typed(column: str, kind: str) -> str:
    name = quote_name(column)
    if kind == "BIGINT":
        return f"nullif({name}, {_NULL}) AS {name}"
    return f"unhex(nullif({name}, '')) AS {name}" if kind == "BLOB" else f"nullif({name}, '') AS {name}"


def _column(table: str, column: str, kind: str, cells: tuple[Any, ...]) -> Array:
    if kind == "BIGINT":
        try:
            return np.fromiter(cells, np.int64, len(cells))
        except (TypeError, ValueError, OverflowError) as error:
            raise BadFileError(f"has something other than numbers in {table}.{column}", EXPORT_HINT) from error
    texts = np.empty(len(cells), dtype=object)
    texts[:] = cells
    return texts


def _check_whole(path: Path) -> None:
    """The header has the number of pages: a truncated file is noticed before SQLite misses one."""
    with open(path, "rb") as file:
        header = file.read(100)
    if not header.startswith(SQLITE_MAGIC) or len(header) < 100:
        raise BadFileError("is not a SQLite file, although its name says so", EXPORT_HINT)
    page_bytes = int.from_bytes(header[16:18], "big")
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    n_bytes = page_bytes * int.from_bytes(header[28:32], "big")
    n_found = path.stat().st_size
    is_counted = header[24:28] == header[92:96]  # else an old library wrote last, and did not keep the number of pages
    if is_counted and n_found < n_bytes:
        raise BadFileError(
            f"is truncated: {n_found} of {n_bytes} bytes",
            "copy it again if the original is complete; else " + EXPORT_HINT,
        )


def _connect(path: Path) -> sqlite3.Connection:
    # immutable: no lock, no journal and no shared memory is looked for beside the file.
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None)
    connection.text_factory = functools.partial(str, encoding="utf-8", errors="replace")
    for setting in ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0"):
        connection.execute(f"PRAGMA {setting}").fetchall()
    if sys.version_info >= (3, 11):
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 64 << 20)
    connection.set_authorizer(_authorise)
    return connection


def _authorise(action: int, first: str | None, second: str | None, _database: str | None, _cause: str | None) -> int:
    named = second if action == sqlite3.SQLITE_FUNCTION else first
    is_allowed = action in _ALWAYS_ALLOWED or (action, named) in _ALLOWED
    return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY


def _real_tables(connection: sqlite3.Connection) -> dict[str, frozenset[str]]:
    """Table -> its columns. A view has another type, a virtual table no page; generated columns are not listed."""
    names = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0 AND typeof(name) = 'text'"
    ).fetchall()
    return {
        name: frozenset(row[1] for row in connection.execute(f"PRAGMA table_info({quote_name(name)})").fetchall())
        for (name,) in names[:_MAX_SMALL_ROWS]
    }


@contextlib.contextmanager
def _clear_errors() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite's own messages quote the broken names
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise BadFileError(f"is a damaged SQLite file: {reason}", EXPORT_HINT) from error
