"""A whole database as files: DuckDB, SQLite, folders of Parquet or CSV, JSON, or a pickle of plain containers.

The result is written beside its destination and takes the name only when it is complete.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rankscope.errors import OutputError
from rankscope.model.sql import quote_name, quote_text
from rankscope.render.query_rows import FORMULA_STARTS

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Progress = Callable[[int, int, str], None]
# What is to be written: the name that a table gets, and the name under which the connection knows it.
Tables = Mapping[str, str]

EXTENSIONS = {
    ".duckdb": "duckdb",
    ".db": "duckdb",
    ".sqlite": "sqlite",
    ".sqlite3": "sqlite",
    ".json": "json",
    ".pickle": "pickle",
    ".pkl": "pickle",
    ".parquet": "parquet",
    "": "parquet",
}
FORMATS = ("duckdb", "sqlite", "parquet", "json", "csv", "pickle")
FOLDER_FORMATS = ("parquet", "csv")
_BATCH_ROWS = 20_000


def write_database(
    connection: DuckDBPyConnection, tables: Tables, path: str, chosen: str, progress: Progress
) -> dict[str, int]:
    """Writes the tables and returns how many rows each has."""
    from duckdb import Error

    path = path.rstrip(os.sep) or path
    try:
        with _beside(path) as part:
            _WRITERS[chosen](connection, tables, part, progress)
    except (OSError, Error) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise OutputError(f"cannot write {path}: {reason}", "choose a writable folder with free space") from error
    return {name: _scalar(connection, f"SELECT count(*) FROM {source}") for name, source in tables.items()}


@contextmanager
def _beside(path: str) -> Iterator[str]:
    import shutil

    part = f"{path}.part-{os.getpid()}"
    try:
        yield part
        if os.path.isdir(part) and os.path.isdir(path):
            # Only files of the same names are replaced: whatever else the folder holds is not ours.
            for name in os.listdir(part):
                os.replace(os.path.join(part, name), os.path.join(path, name))
        else:
            os.replace(part, path)
    finally:
        if os.path.isdir(part):
            shutil.rmtree(part)
        elif os.path.lexists(part):
            os.unlink(part)


def _write_duckdb(connection: DuckDBPyConnection, tables: Tables, part: str, progress: Progress) -> None:
    _run(connection, f"ATTACH {quote_text(part)} AS written")
    try:
        for name, source in _each(tables, progress):
            _run(connection, f"CREATE TABLE written.{quote_name(name)} AS FROM {source}")
    finally:
        _run(connection, "DETACH written")


def _write_parquet(connection: DuckDBPyConnection, tables: Tables, part: str, progress: Progress) -> None:
    os.mkdir(part)
    for name, source in _each(tables, progress):
        target = quote_text(os.path.join(part, f"{name}.parquet"))
        _run(connection, f"COPY (FROM {source}) TO {target} (FORMAT parquet, COMPRESSION zstd)")


def guarded_tables(connection: DuckDBPyConnection, tables: Tables) -> dict[str, str]:
    """The same tables, with an apostrophe before text that a spreadsheet would run as a formula."""
    guarded = {}
    for name, source in tables.items():
        columns = connection.execute(f"DESCRIBE FROM {source}").fetchall()
        texts = [f'"{column}"' for column, kind, *_ in columns if kind == "VARCHAR"]
        begins = f"CASE WHEN left({{0}}, 1) IN ({', '.join(map(quote_text, FORMULA_STARTS))})"
        changed = [f"{begins} THEN chr(39) || {{0}} ELSE {{0}} END AS {{0}}".format(text) for text in texts]
        guarded[name] = f"(SELECT * REPLACE ({', '.join(changed)}) FROM {source})" if changed else source
    return guarded


def _write_csv(connection: DuckDBPyConnection, tables: Tables, part: str, progress: Progress) -> None:
    os.mkdir(part)
    for name, source in _each(tables, progress):
        target = quote_text(os.path.join(part, f"{name}.csv"))
        _run(connection, f"COPY (FROM {source}) TO {target} (FORMAT csv, HEADER)")


def _write_json(connection: DuckDBPyConnection, tables: Tables, part: str, progress: Progress) -> None:
    """One object of arrays, one row per line; the rows are turned into JSON by DuckDB, on all cores."""
    with open(part, "x", encoding="utf-8") as file:
        between_tables = "{\n"
        for name, source in _each(tables, progress):
            file.write(f'{between_tables}"{name}": [')
            between_rows = "\n"
            rows = f"({_finite_rows(connection, source)}) AS row"
            for batch in _batches(connection, f"SELECT CAST(to_json(row) AS VARCHAR) FROM {rows}"):
                file.write(between_rows + ",\n".join(text for (text,) in batch))
                between_rows = ",\n"
            file.write("\n]")
            between_tables = ",\n"
        file.write("\n}\n")


def _write_sqlite(connection: DuckDBPyConnection, tables: Tables, part: str, progress: Progress) -> None:
    import sqlite3

    written = sqlite3.connect(part, isolation_level=None)
    try:
        # A file that is only renamed into place when complete needs no journal.
        written.execute("PRAGMA journal_mode = OFF")
        written.execute("PRAGMA synchronous = OFF")
        written.execute("BEGIN")
        for name, source in _each(tables, progress):
            columns = _columns(connection, source)
            written.execute(f"CREATE TABLE {quote_name(name)} ({', '.join(map(_sqlite_column, columns))})")
            marks = ", ".join("?" * len(columns))
            for batch in _batches(connection, f"SELECT {', '.join(map(_flat_column, columns))} FROM {source}"):
                written.executemany(f"INSERT INTO {quote_name(name)} VALUES ({marks})", batch)
        written.execute("COMMIT")
    except sqlite3.Error as error:
        raise OSError(str(error)) from error
    finally:
        written.close()


def _write_pickle(connection: DuckDBPyConnection, tables: Tables, part: str, progress: Progress) -> None:
    """{table: {column: [value, ...]}} of plain Python values: any Python reads it, without this package."""
    import pickle

    content: dict[str, dict[str, list[Any]]] = {}
    for name, source in _each(tables, progress):
        columns = [column for column, _ in _columns(connection, source)]
        content[name] = {column: [] for column in columns}
        seen: dict[str, str] = {}  # equal texts as one object: a pickle stores an object once
        for batch in _batches(connection, f"FROM {source}"):
            for values, column in zip(content[name].values(), zip(*batch, strict=True), strict=True):
                values.extend(seen.setdefault(value, value) if type(value) is str else value for value in column)
    with open(part, "xb") as file:
        pickle.dump(content, file, protocol=4)


_WRITERS: dict[str, Callable[[DuckDBPyConnection, Tables, str, Progress], None]] = {
    "duckdb": _write_duckdb,
    "sqlite": _write_sqlite,
    "parquet": _write_parquet,
    "json": _write_json,
    "csv": _write_csv,
    "pickle": _write_pickle,
}


def _each(tables: Tables, progress: Progress) -> Iterator[tuple[str, str]]:
    for done, (name, source) in enumerate(tables.items()):
        progress(done, len(tables), f"writing {name}")
        yield name, source


def _columns(connection: DuckDBPyConnection, source: str) -> list[tuple[str, str]]:
    """Name and type of each column."""
    rows = connection.execute(f"DESCRIBE FROM {source}").fetchall()
    return [(row[0], row[1]) for row in rows]


def _finite_rows(connection: DuckDBPyConnection, source: str) -> str:
    """JSON has neither NaN nor infinity: they become null."""
    floats = [quote_name(name) for name, kind in _columns(connection, source) if kind in ("FLOAT", "DOUBLE")]
    finite = ", ".join(f"CASE WHEN isfinite({name}) THEN {name} END AS {name}" for name in floats)
    return f"SELECT *{f' REPLACE ({finite})' if finite else ''} FROM {source}"


def _sqlite_column(column: tuple[str, str]) -> str:
    name, kind = column
    is_integer = kind in ("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT")
    return f"{quote_name(name)} {'INTEGER' if is_integer else 'REAL' if kind in ('FLOAT', 'DOUBLE') else 'TEXT'}"


def _flat_column(column: tuple[str, str]) -> str:
    """SQLite has no lists: they are stored as JSON."""
    name, kind = column
    is_nested = kind.endswith("]") or kind.startswith("STRUCT")
    return f"CAST(to_json({quote_name(name)}) AS VARCHAR)" if is_nested else quote_name(name)


def _batches(connection: DuckDBPyConnection, sql: str) -> Iterator[list[tuple[Any, ...]]]:
    result = connection.execute(sql)
    while batch := result.fetchmany(_BATCH_ROWS):
        yield batch


def _run(connection: DuckDBPyConnection, sql: str) -> None:
    connection.execute(sql).fetchall()


def _scalar(connection: DuckDBPyConnection, sql: str) -> int:
    row = connection.execute(sql).fetchall()[0]
    return int(row[0])
