"""`rankscope export`: the whole database as files that other tools read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rankscope.commands import output
from rankscope.commands.linking import add_durations_options
from rankscope.commands.loading import PATH_HELP, add_reading_options, load_trace
from rankscope.commands.progress import Progress
from rankscope.errors import OutputError, UsageError
from rankscope.render.database_files import EXTENSIONS, FOLDER_FORMATS, FORMATS

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Mapping

    from duckdb import DuckDBPyConnection

OUTPUT_HELP = ".duckdb, .sqlite, .json, .pickle, or a folder for Parquet"
CHAKRA = "chakra"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="+", help=PATH_HELP)
    parser.add_argument("-o", "--output", metavar="OUT", help=f"output: {OUTPUT_HELP} (default: rankscope.FORMAT)")
    formats = (*FORMATS, CHAKRA)
    parser.add_argument("--to", choices=formats, help="format, if the extension of OUT does not say it")
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    parser.add_argument("--json", action="store_true", help="print a summary as JSON")
    parser.add_argument(
        "--name",
        metavar="NAME",
        default="trace",
        help="with --to chakra: name the files NAME.<rank>.et (default: trace)",
    )
    output.add_raw_option(parser)
    add_durations_options(parser)
    add_reading_options(parser)


def run(args: Namespace) -> int:
    if not args.output:
        if not args.to:
            raise UsageError("export needs an output", "add -o OUT, --to FORMAT or both; for example -o traces.duckdb")
        args.output = f"rankscope.{args.to}"
    if args.to == CHAKRA:
        from rankscope.commands.export_chakra import export_chakra

        return export_chakra(args)
    if args.durations_from or args.raw_durations:
        asked = "--durations-from" if args.durations_from else "--raw-durations"
        raise UsageError(f"{asked} works only with --to chakra", "see rankscope link --help")
    chosen = database_format(args.output, args.to)
    check_destination(args.output, chosen, args.force)
    from rankscope.model.database import connect
    from rankscope.model.tables import SCHEMA

    trace = load_trace(args)
    n_rows = save_database(connect(trace), {name: name for name in SCHEMA}, args.output, chosen, args.raw_csv)
    if args.json:
        output.print_json({"path": args.output, "format": chosen, "n_rows": n_rows})
    else:
        report_written(args.output, chosen, n_rows)
    return 0


def database_format(path: str, chosen: str | None = None) -> str:
    """The format that was asked for, else the one that the extension stands for."""
    if chosen:
        return chosen
    if path.endswith(os.sep) or os.path.isdir(path):
        return "parquet"
    extension = os.path.splitext(path)[1].lower()
    if extension not in EXTENSIONS:
        known = ", ".join(name for name in EXTENSIONS if name)
        raise UsageError(
            f"unknown file extension: {path!r}", f"use one of {known}, a folder for Parquet, or --to FORMAT"
        )
    return EXTENSIONS[extension]


def check_destination(path: str, chosen: str, force: bool) -> None:
    """Refuses before the work is done, not after."""
    path = path.rstrip(os.sep) or path
    if chosen not in FOLDER_FORMATS:
        output.check_writable(path, force)
    elif not os.path.isdir(path):
        output.check_writable(path, force=False)  # a file in the place of the folder is nobody's old export
    elif os.listdir(path) and not force:
        raise OutputError(
            f"{path} is not empty", f"choose another folder, or add --force to write {chosen} files into it"
        )


def save_database(
    connection: DuckDBPyConnection, tables: Mapping[str, str], path: str, chosen: str, is_raw: bool = False
) -> dict[str, int]:
    from rankscope.render.database_files import guarded_tables, write_database

    if chosen == "csv" and not is_raw:
        tables = guarded_tables(connection, tables)

    with Progress() as progress:
        return write_database(connection, tables, path, chosen, progress)


def report_written(path: str, chosen: str, n_rows: Mapping[str, int]) -> None:
    from rankscope.model.finding import count_noun

    n_tables = sum(count > 0 for count in n_rows.values())
    output.tell(
        f"Wrote {count_noun(sum(n_rows.values()), 'row')} in {count_noun(n_tables, 'table')} to {path} ({chosen})\n"
        f"Next: {_next_command(path.rstrip(os.sep), chosen, max(n_rows, key=lambda name: n_rows[name]))}"
    )


def _next_command(path: str, chosen: str, table: str) -> str:
    """How to look into what was written."""
    import shlex

    if chosen == "duckdb":
        return f'duckdb {shlex.quote(path)} "from {table} limit 10"'
    if chosen == "sqlite":
        return f'sqlite3 {shlex.quote(path)} "select * from {table} limit 10"'
    if chosen in FOLDER_FORMATS:
        return f"duckdb -c \"from '{os.path.join(path, f'{table}.{chosen}')}' limit 10\""
    module = "json" if chosen == "json" else "pickle"
    mode = "" if chosen == "json" else ", 'rb'"
    return f'python -c "import {module}; print({module}.load(open({path!r}{mode})).keys())"'
