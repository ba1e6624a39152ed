"""`rankscope query`: SQL over the merged tables of all ranks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rankscope.commands import output
from rankscope.commands.loading import PATH_HELP, add_reading_options, load_trace
from rankscope.commands.progress import Progress
from rankscope.errors import OutputError, UsageError, did_you_mean

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator, Sequence

    from duckdb import DuckDBPyConnection

    from rankscope.model.tables import Trace

FORMATS = ("table", "json", "csv", "parquet")
_BATCH_ROWS = 10_000
_MAX_TABLES = 5
_TIMES_AS_TEXT = ("TIMESTAMP WITH TIME ZONE", "TIMESTAMP_NS")
# What DuckDB says about a name that it does not know.
_UNKNOWN_NAMES = (
    ("no table is called {!r}", re.compile(r"Catalog Error: Table with name \"?([^\"\s]+)\"? does not exist")),
    ("no table of this query has a column {!r}", re.compile(r'Binder Error: Referenced column "([^"]+)" not found')),
)
_QUOTED = re.compile(r'"([^"]+)"|name (\w+)')


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="+", help=PATH_HELP)
    parser.add_argument(
        "sql",
        metavar="SQL",
        help="one DuckDB SQL statement, or @FILE; rankscope tables lists the tables",
    )
    parser.add_argument("--format", choices=FORMATS, help="output format (default: table)")
    parser.add_argument("--json", action="store_true", help="same as --format json")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to FILE: .json, .csv, .parquet or .txt")
    parser.add_argument("--force", action="store_true", help="overwrite FILE if it exists")
    output.add_raw_option(parser)
    add_reading_options(parser)


def run(args: Namespace) -> int:
    chosen = _format(args)
    if args.output:
        output.check_writable(args.output, args.force)
    from duckdb import Error

    from rankscope.model.answer import check_single
    from rankscope.model.database import connect, named_tables

    args.sql = _statement(args.sql)
    trace = load_trace(args)
    connection = connect(trace, only=named_tables(args.sql))
    try:
        check_single(len(connection.extract_statements(args.sql)))
        if chosen == "parquet":
            _write_parquet(connection, trace, args)
        else:
            _write_rows(connection, trace, chosen, args)
    except Error as error:
        raise _as_usage_error(error, args.sql) from error
    return 0


def _format(args: Namespace) -> str:
    chosen = output.rows_format(args, ("json", "csv", "parquet", "txt"))
    if chosen == "parquet" and not args.output:
        raise UsageError("Parquet cannot be printed", "write it to a file: -o rows.parquet")
    return chosen


def _statement(given: str) -> str:
    """What was given, or what the file behind @ holds."""
    if not given.startswith("@"):
        return given
    try:
        with open(given[1:], encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"cannot read {given[1:]}: {reason}", "@FILE is a file that contains the statement") from error


def _write_parquet(connection: DuckDBPyConnection, trace: Trace, args: Namespace) -> None:
    import os

    from duckdb import IOException

    from rankscope.model.database import forbid_outside_access
    from rankscope.model.sql import quote_text

    path = os.path.abspath(args.output)
    part = f"{path}.part-{os.getpid()}"
    forbid_outside_access(connection, trace, may_write=part)
    try:
        with Progress() as progress:
            progress(0, 0, f"writing {args.output}")
            connection.execute(f"COPY ({_inner(args.sql)}) TO {quote_text(part)} (FORMAT parquet)").fetchall()
        os.replace(part, path)
    except (OSError, IOException) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise OutputError(f"cannot write {args.output}: {reason}", "choose a folder that you may write to") from error
    finally:
        if os.path.lexists(part):
            os.unlink(part)
    _say_written(args.output)


def _write_rows(connection: DuckDBPyConnection, trace: Trace, chosen: str, args: Namespace) -> None:
    from rankscope.model.database import forbid_outside_access

    forbid_outside_access(connection, trace)
    with Progress() as progress:
        progress(0, 0, "running the query")
        heads, batches = _run_sql(connection, args.sql)
    lines = _lines(chosen, heads, batches, args)
    if args.output:
        output.write_file(args.output, lines, args.force)
        _say_written(args.output)
    else:
        output.print_lines(lines)


def _run_sql(connection: DuckDBPyConnection, sql: str) -> tuple[list[str], Iterator[Sequence[Any]]]:
    """The names of the columns and the rows."""
    result = connection.execute(_with_plain_times(connection, sql))
    heads = [column[0] for column in result.description or ()]
    return _without_repeats(heads), _rows(result)


def _rows(result: DuckDBPyConnection) -> Iterator[Sequence[Any]]:
    while batch := result.fetchmany(_BATCH_ROWS):
        yield from batch


def _with_plain_times(connection: DuckDBPyConnection, sql: str) -> str:
    """Times become text where Python would need one package more for their zone, or lose their nanoseconds."""
    from duckdb import Error

    from rankscope.model.sql import quote_name

    try:
        columns = connection.execute(f"DESCRIBE {_inner(sql)}").fetchall()
    except Error:  # not a query, or a wrong one: running it will show
        return sql
    times = [quote_name(column[0]) for column in columns if column[1] in _TIMES_AS_TEXT]
    if not times:
        return sql
    casts = ", ".join(f"CAST({name} AS VARCHAR) AS {name}" for name in times)
    return f"SELECT * REPLACE ({casts}) FROM ({_inner(sql)})"


def _inner(sql: str) -> str:
    """The statement as part of another; a comment at its end must not swallow what follows."""
    return sql.strip().rstrip(";") + "\n"


def _without_repeats(heads: list[str]) -> list[str]:
    """JSON objects need distinct names: rank, rank_1, ..."""
    seen: dict[str, int] = {}
    distinct = []
    for head in heads:
        count = seen[head] = seen.get(head, -1) + 1
        distinct.append(f"{head}_{count}" if count else head)
    return distinct


def _lines(chosen: str, heads: list[str], rows: Iterator[Sequence[Any]], args: Namespace) -> Iterator[str]:
    import sys

    from rankscope.render.query_rows import csv_lines, json_lines

    if chosen == "json":
        yield from json_lines(heads, rows)
    elif chosen == "csv":
        to_terminal = not args.output and sys.stdout.isatty()
        yield from csv_lines(heads, rows, to_terminal=to_terminal, is_raw=args.raw_csv)
    else:
        yield from _table_lines(heads, list(rows), None if args.output else output.text_width(sys.stdout))


def _table_lines(heads: list[str], rows: list[Sequence[Any]], width: int | None) -> Iterator[str]:
    from rankscope.model.finding import count_noun
    from rankscope.render.plain_table import table_lines

    if heads:
        yield from table_lines(heads, rows, width)
    yield f"({count_noun(len(rows), 'row')})"


def _say_written(path: str) -> None:

    output.tell(f"Wrote the rows to {path}")


# What is wrong with a statement


def _as_usage_error(error: Exception, sql: str) -> UsageError:
    message = str(error).partition("\n")[0]
    return UsageError(_in_our_words(message), _hint(message, sql))


def _in_our_words(message: str) -> str:
    """A wrong name is the most common mistake, and our other errors about names are shorter than DuckDB's."""
    for words, pattern in _UNKNOWN_NAMES:
        unknown = pattern.match(message)
        if unknown:
            return words.format(unknown[1])
    return message


def _hint(message: str, sql: str) -> str:
    from rankscope.model.tables import SCHEMA

    if message.startswith("Permission Error"):
        return "query can read only the tables of the traces; to join them with other data: rankscope export"
    quoted = _QUOTED.findall(message)
    word = "".join(quoted[-1]) if quoted else ""
    if message.startswith("Catalog Error: Table"):
        return did_you_mean(word, SCHEMA) or f"the tables are {', '.join(SCHEMA)}"
    if "column" in message and "(use: " not in message:
        return _column_hint(word.rpartition(".")[2], sql)
    return "rankscope tables lists every table and column"


def _column_hint(word: str, sql: str) -> str:
    """The closest column of the tables in the statement, else where a column of that name is."""
    from rankscope.model.database import named_tables
    from rankscope.model.tables import SCHEMA

    columns = {name: [column.name for column in SCHEMA[name].columns] for name in SCHEMA}
    asked = sorted(named_tables(sql))
    close = did_you_mean(word, [column for name in asked for column in columns[name]])
    elsewhere = [name for name in columns if word in columns[name] and name not in asked]
    if elsewhere:
        more = f" and {len(elsewhere) - _MAX_TABLES} more tables" if len(elsewhere) > _MAX_TABLES else ""
        return f"{word} is a column of {', '.join(elsewhere[:_MAX_TABLES])}{more}" + (f"; {close}" if close else "")
    if close or not asked:
        return close or "rankscope tables lists every column"
    return f"the columns of {asked[0]} are {', '.join(columns[asked[0]])}"
