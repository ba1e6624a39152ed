"""`rankscope tables`: what the database holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankscope.commands import output
from rankscope.commands.loading import add_reading_options, load_trace
from rankscope.errors import UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Collection, Iterator, Sequence


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="*", help="count the rows in these traces")
    parser.add_argument("--table", metavar="NAME", action="append", help="show only this table; repeat for more")
    output.add_output_options(parser)
    add_reading_options(parser)


def run(args: Namespace) -> int:
    names = _chosen(args.table)
    records = _describe(names, _count_rows(names, args) if args.paths else None)
    if args.json:
        output.print_json(records)
    else:
        output.print_lines(_page(records, args))
    return 0


def _chosen(asked: Sequence[str] | None) -> Collection[str]:
    from rankscope.errors import did_you_mean
    from rankscope.model.parts import other_modules
    from rankscope.model.tables import SCHEMA

    other_modules()  # may declare tables
    for name in asked or ():
        if name not in SCHEMA:
            hint = did_you_mean(name, SCHEMA) or "rankscope tables lists them all"
            raise UsageError(f"no table is called {name!r}", hint)
    return asked or SCHEMA


def _count_rows(names: Collection[str], args: Namespace) -> dict[str, int]:
    trace = load_trace(args)
    return {name: trace.n_rows(name) for name in names}


def _describe(names: Collection[str], n_rows: dict[str, int] | None) -> list[dict[str, Any]]:
    from rankscope.model.tables import SCHEMA

    return [
        {
            "table": spec.name,
            "about": spec.doc,
            **({"n_rows": n_rows[spec.name]} if n_rows is not None else {}),
            "columns": [{"name": column.name, "type": column.kind, "about": column.doc} for column in spec.columns],
        }
        for spec in map(SCHEMA.__getitem__, names)
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
    yield f'Next: rankscope query {paths} "from {_worth_a_look(records)} limit 10"'


# What most come for, if it has rows.
_FIRST_LOOKS = ("collectives", "kernels", "compilations", "et_nodes", "metrics", "ranks")


def _worth_a_look(records: list[dict[str, Any]]) -> str:
    """A table that has rows, as far as they were counted."""
    names = [record["table"] for record in records if record.get("n_rows", 1)]
    names = names or [record["table"] for record in records]
    return next((name for name in _FIRST_LOOKS if name in names), names[0])
