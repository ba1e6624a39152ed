"""`rankscope fr`: Flight Recorder dumps in detail, with the flags of torch's own analyzer."""

from __future__ import annotations

import os
from argparse import SUPPRESS, ArgumentTypeError
from typing import TYPE_CHECKING, Any, NamedTuple

from rankscope.commands import output
from rankscope.commands.diagnose import exit_code, next_command
from rankscope.commands.export import OUTPUT_HELP, check_destination, database_format, report_written, save_database
from rankscope.commands.loading import (
    PREFIX_HELP,
    add_scale_options,
    diagnose_trace,
    load_trace,
    positive_int,
    replica_shift,
)
from rankscope.errors import UsageError
from rankscope.render.escape import escape

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

    from rankscope.model.finding import Report
    from rankscope.model.tables import Array, Trace

MISMATCH_CAP = 10
TORCH_LAYOUT = "torch"
VERBOSE_TABLES = ("groups", "memberships", "collectives", "ncclcalls")


class Selection(NamedTuple):
    """The part of the capture that is to be shown."""

    ranks: frozenset[int]
    groups: frozenset[int]
    calls: Array
    """Rows of the table collectives."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="+", help="a dump, a folder, a pattern, an archive or a URL")
    _add_flag(parser, "-j", "--just-print-entries", action="store_true", help="print all calls, ranks side by side")
    parser.add_argument(
        "--raw", action="store_true", help="with -j: show torch's own names and states (scheduled, started)"
    )
    _add_flag(
        parser,
        "--selected-ranks",
        nargs="+",
        type=parse_ranks,
        metavar="R",
        help="show only these ranks: 0 3 or 0-7,12",
    )
    _add_flag(
        parser, "--pg-filters", nargs="+", metavar="NAME", help="show only groups with these names or descriptions"
    )
    _add_flag(parser, "--print-stack-trace", action="store_true", help="also print the call stacks, numbered")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="print every group and the tables of the flat database"
    )
    parser.add_argument("--all", action="store_true", help="show every finding in full, with whole stacks and effects")
    parser.add_argument("-o", "--output", metavar="OUT", help=f"write the flat database: {OUTPUT_HELP}")
    parser.add_argument(
        "--torch-layout", action="store_true", help="write OUT as torchfrtrace does: a pickle of torch's own types"
    )
    parser.add_argument("--force", action="store_true", help="overwrite OUT if it exists")
    _add_flag(parser, "-p", "--prefix", help=PREFIX_HELP)
    _add_flag(parser, "--allow-incomplete-ranks", action="store_true", help="do not warn about ranks without a dump")
    _add_flag(
        parser,
        "--mismatch-cap",
        type=_count,
        default=MISMATCH_CAP,
        metavar="N",
        help=f"list up to N mismatches per group and count the rest (default: {MISMATCH_CAP})",
    )
    _add_flag(
        parser, "--transform-ft", action="store_true", help="torchft: convert ranks within replicas to global ranks"
    )
    _add_flag(parser, "--group-world-size", type=positive_int, metavar="N", help="torchft: ranks per replica")
    output.add_output_options(parser)
    add_scale_options(parser)


def _add_flag(parser: ArgumentParser, *names: str, **options: Any) -> None:
    """Adds an option, and its spelling with underscores, which torchfrtrace has for some, without showing it."""
    parser.add_argument(*names, **options)
    underscored = f"--{names[-1][2:].replace('-', '_')}"
    if underscored != names[-1]:
        hidden = {**options, "dest": underscored[2:], "help": SUPPRESS, "default": SUPPRESS}
        parser.add_argument(underscored, **hidden)


def parse_ranks(text: str) -> list[int]:
    """`3`, `0-7`, `0-7,12`."""
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ArgumentTypeError(f"{text!r} is not a list of ranks; write it like 0-7,12")
        ranks += range(int(first), int(last if dash else first) + 1)
    return ranks


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a number")
    return int(text)


def run(args: Namespace) -> int:
    if args.raw and not args.just_print_entries:
        raise UsageError("--raw needs -j", f"rankscope fr {_quoted(args.paths)} -j --raw")
    destination = _destination(args)
    trace = load_trace(args, replica_shift(args))
    selection = _select(trace, args)
    if destination:  # first: who reads only the beginning of what is printed still gets the file
        _save(trace, destination, args.output)
    if args.just_print_entries:
        return _print_entries(trace, selection, args)
    return _print_analysis(trace, selection, args)


def _destination(args: Namespace) -> str:
    """The format of OUT, which is refused before the work is done."""
    if args.torch_layout and not args.output:
        raise UsageError("--torch-layout needs an output file", "add -o flat.pickle")
    if not args.output:
        return ""
    if args.torch_layout:
        output.check_writable(args.output, args.force)
        return TORCH_LAYOUT
    chosen = database_format(args.output)
    check_destination(args.output, chosen, args.force)
    return chosen


def _save(trace: Trace, chosen: str, path: str) -> None:
    if chosen == TORCH_LAYOUT:
        _save_for_torch(trace, path)
        return
    from rankscope.model.database import connect
    from rankscope.render.flat_database import build_flat_database

    connection = connect(trace)
    report_written(path, chosen, save_database(connection, build_flat_database(connection, trace), path, chosen))


def _save_for_torch(trace: Trace, path: str) -> None:

    from rankscope.model.finding import count_noun
    from rankscope.render.torch_layout import torch_database
    from rankscope.render.torch_types import dump_for_torch
    from rankscope.render.whole_file import whole_file

    database = torch_database(trace)
    with whole_file(path) as part, open(part, "xb") as file:
        dump_for_torch(database, file)
    n_collectives, n_calls = len(database.collectives), len(database.ncclcalls)
    output.tell(
        f"Wrote {count_noun(n_collectives, 'collective')} of {count_noun(n_calls, 'call')} to {path} (torch's layout)\n"
        f'Next, where torch is installed: python -c "import pickle; '
        f"types, db = pickle.load(open({path!r}, 'rb')); print(db.collectives[-1])\""
    )


# What is to be shown


def _select(trace: Trace, args: Namespace) -> Selection:
    import numpy as np

    ranks = _selected_ranks(trace, args.selected_ranks)
    groups = _selected_groups(trace, args.pg_filters)
    members = trace.table("group_members")
    of_ranks = np.isin(members.array("rank"), list(ranks))
    if args.selected_ranks:
        groups &= set(members.array("group_id")[of_ranks].tolist())
    calls = trace.table("collectives")
    is_shown = np.isin(calls.array("rank"), list(ranks)) & np.isin(calls.array("group_id"), list(groups))
    return Selection(ranks, groups, np.flatnonzero(is_shown))


def _selected_ranks(trace: Trace, asked: list[list[int]] | None) -> frozenset[int]:
    from rankscope.model.finding import format_ranks, ranks_phrase

    present = frozenset(trace.table("ranks").array("rank").tolist())
    if asked is None:
        return present
    wanted = frozenset(rank for part in asked for rank in part)
    if not wanted <= present:
        raise UsageError(
            f"no dump of {ranks_phrase(sorted(wanted - present))}",
            f"the dumps are of ranks {format_ranks(sorted(present), limit=8)}",
        )
    return wanted


def _selected_groups(trace: Trace, filters: list[str] | None) -> frozenset[int]:
    from rankscope.errors import did_you_mean

    groups = trace.table("groups")
    if filters is None:
        return frozenset(range(len(groups)))
    labels = list(zip(groups.text("name").tolist(), groups.text("description").tolist(), strict=True))
    for word in filters:
        if not any(word in label for label in labels):
            known = sorted({desc or name for name, desc in labels})
            raise UsageError(
                f"no process group is called {word!r}",
                did_you_mean(word, known) or f"the groups are {', '.join(known[:8])}",
            )
    return frozenset(number for number, label in enumerate(labels) if not set(filters).isdisjoint(label))


# All calls


def _print_entries(trace: Trace, selection: Selection, args: Namespace) -> int:
    import sys

    from rankscope.render.group_status import completion_notes
    from rankscope.render.side_by_side import place_side_by_side, side_by_side_lines
    from rankscope.render.stack_list import stack_lines, stack_records

    # The notes say what `done` rests on, a word that torch does not use.
    notes = [] if args.raw else completion_notes(trace, selection.calls)
    table = place_side_by_side(trace, selection.calls, with_stacks=args.print_stack_trace, as_recorded=args.raw)
    if args.json:
        rows = [
            {"group": table.families[row.family].label, "seq": row.label, "cells": cells}
            for row, cells in zip(table.rows, zip(*table.cells, strict=True), strict=True)
        ]
        stacks = {"stacks": stack_records(trace, selection.calls)} if args.print_stack_trace else {}
        output.print_json({"columns": table.columns, "rows": rows, "notes": notes, **stacks})
        return 0
    output.print_lines(map(escape, side_by_side_lines(table, output.text_width(sys.stdout))))
    if args.print_stack_trace:
        output.print_lines(map(escape, ["", *stack_lines(trace, selection.calls)]))
    output.print_lines([*(["", *notes] if notes else []), "", f"Next: rankscope {_quoted(args.paths)}"])
    return 0


def _quoted(paths: list[str]) -> str:
    import shlex

    return " ".join(map(shlex.quote, paths))


# What fits together and what does not


def _print_analysis(trace: Trace, selection: Selection, args: Namespace) -> int:
    from rankscope.render.group_status import completion_notes, group_statuses, list_mismatches
    from rankscope.render.stack_list import stack_records

    notes = completion_notes(trace, selection.calls)
    report = _without_known_holes(diagnose_trace(trace), args.allow_incomplete_ranks)
    statuses = group_statuses(trace, selection.groups)
    mismatches, n_left = list_mismatches(trace, selection.groups, args.mismatch_cap)
    if args.json:
        stacks = {"stacks": stack_records(trace, selection.calls)} if args.print_stack_trace else {}
        left = [{"group_id": group, "n_mismatches": n} for group, n in n_left.items()]
        record = {"groups": statuses, "notes": notes, "mismatches": mismatches, "not_listed": left, **stacks}
        output.print_json({**record, "report": report})
    else:
        from rankscope.render.group_status import mismatch_lines

        sections = [[*_status_section(statuses, args), *notes]]
        sections.append(list(mismatch_lines(mismatches, n_left, statuses, os.getcwd())))
        sections += _detail_sections(trace, selection, args)
        for section in filter(None, sections):
            output.print_lines(map(escape, [*section, ""]))
        _print_verdict(report, args)
    return exit_code(report, "error")


def _status_section(statuses: list[Any], args: Namespace) -> Iterator[str]:
    import sys

    from rankscope.render.group_status import status_lines

    return status_lines(statuses, args.verbose, output.text_width(sys.stdout))


def _detail_sections(trace: Trace, selection: Selection, args: Namespace) -> Iterator[list[str]]:
    from rankscope.render.stack_list import stack_lines

    if args.print_stack_trace:
        yield list(stack_lines(trace, selection.calls))
    if args.verbose:
        yield from _table_sections(trace, selection)


def _table_sections(trace: Trace, selection: Selection) -> Iterator[list[str]]:
    """The flat database's tables, limited to the selected groups and ranks."""
    import sys

    from rankscope.model.database import connect
    from rankscope.render.flat_database import build_flat_database
    from rankscope.render.plain_table import table_lines

    connection = connect(trace)
    sources = build_flat_database(connection, trace)
    groups, ranks = (", ".join(map(str, sorted(numbers))) or "NULL" for numbers in (selection.groups, selection.ranks))
    for name in VERBOSE_TABLES:
        group_column = "id" if name == "groups" else "group_id"
        of_ranks = f" AND global_rank IN ({ranks})" if name in ("memberships", "ncclcalls") else ""
        result = connection.execute(f"FROM {sources[name]} WHERE {group_column} IN ({groups}){of_ranks}")
        heads = [column[0] for column in result.description or ()]
        yield [f"{name}:", *table_lines(heads, result.fetchall(), output.text_width(sys.stdout))]


def _without_known_holes(report: Report, are_known: bool) -> Report:
    """Who says that ranks are missing on purpose needs no warning of it."""
    import msgspec

    if not are_known:
        return report
    return msgspec.structs.replace(
        report, findings=tuple(finding for finding in report.findings if finding.rule != "dump-missing")
    )


def _print_verdict(report: Report, args: Namespace) -> None:
    from rankscope.render import load_renderer

    following = next_command(report) if report.findings else f"rankscope fr {_quoted(args.paths)} -j"
    output.print_lines(load_renderer("txt")(report, output.terminal_options(args, following)))
