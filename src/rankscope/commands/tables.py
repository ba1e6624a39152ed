"""`rankscope tables`: what the database holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankscope.commands import output
from rankscope.commands.loading import add_reading_options, load_trace

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

HELP = "list every table and column that query and export know"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="*", help="traces whose rows are to be counted")
    output.add_output_options(parser)
    add_reading_options(parser)


def run(args: Namespace) -> int:
    records = _describe(_count_rows(args) if args.paths else None)
    if args.json:
        output.print_json(records)
    else:
        output.print_lines(_page(records, args))
    return 0


def _count_rows(args: Namespace) -> dict[str, int]:
    from rankscope.model.tables import SCHEMA

    trace = load_trace(args)
    return {name: len(trace.table(name)) for name in SCHEMA}


def _describe(n_rows: dict[str, int] | None) -> list[dict[str, Any]]:
    from rankscope.model.tables import SCHEMA

    return [
        {
            "table": spec.name,
            "about": spec.doc,
            **({"n_rows": n_rows[spec.name]} if n_rows is not None else {}),
            "columns": [{"name": column.name, "type": column.kind, "about": column.doc} for column in spec.columns],
        }
        for spec in SCHEMA.values()
    ]


def _page(records: list[dict[str, Any]], args: Namespace) -> Iterator[str]:
    import shlex
    import sys

    from rankscope.model.finding import count_noun

    colored = output.wants_color(args.color, sys.stdout)
    for record in records:
        name = f"\x1b[1m{record['table']}\x1b[0m" if colored else record["table"]
        count = f" ({count_noun(record['n_rows'], 'row')})" if "n_rows" in record else ""
        yield f"{name}{count}: {record['about']}"
        widths = [max(len(column[key]) for column in record["columns"]) for key in ("name", "type")]
        for column in record["columns"]:
            yield f"    {column['name']:{widths[0]}}  {column['type']:{widths[1]}}  {column['about']}"
        yield ""
    paths = " ".join(map(shlex.quote, args.paths)) or "PATH"
    yield f'Next: rankscope query {paths} "from collectives limit 10"'
