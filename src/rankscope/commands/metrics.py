"""`rankscope metrics`: one measure of profiler traces as a table, or what can be measured in them."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from typing import TYPE_CHECKING, Any

from rankscope.commands import output
from rankscope.commands.fr import parse_ranks
from rankscope.commands.loading import add_reading_options, load_trace
from rankscope.commands.metric_catalog import DIFF, catalog, manual
from rankscope.commands.metric_needs import absent_tables, all_metrics, how_to_record
from rankscope.errors import InputError, UsageError, did_you_mean

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Iterable, Iterator, Sequence

    from rankscope.analyze.metric import Metric, Parameter, Selection
    from rankscope.model.tables import Table, Trace

FORMATS = ("table", "json", "csv")
DEFAULT_ROWS = 40
_READS_STACKS = ("modules",)
_NO_MODULES = "no modules in these traces: record with with_stack=True, or wrap modules in record_function"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "words",
        metavar="PATH",
        nargs="*",
        help="the traces, then the name of a metric; without a name, lists what can be measured in them",
    )
    parser.add_argument("--ranks", type=parse_ranks, metavar="R", help="measure only these ranks, for example 0,3-5")
    parser.add_argument("--steps", type=parse_steps, metavar="S", help="measure only these steps, for example 10-12")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="change a setting",
    )
    parser.add_argument(
        "--limit", type=_count, metavar="N", help=f"rows to show; 0 shows all (default: {DEFAULT_ROWS} in a table)"
    )
    parser.add_argument("--against", metavar="OTHER", help="the traces that diff compares with")
    parser.add_argument("--format", choices=FORMATS, help="output format (default: table)")
    parser.add_argument("--json", action="store_true", help="same as --format json")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to FILE: .json, .csv or .txt")
    output.add_raw_option(parser)
    parser.add_argument("--force", action="store_true", help="overwrite FILE if it exists")
    add_reading_options(parser)


def parse_steps(text: str) -> list[int]:
    try:
        return parse_ranks(text)
    except ArgumentTypeError:
        raise ArgumentTypeError(f"{text!r} is not a list of steps; write it like 10-12") from None


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a number of rows")
    return int(text)


def run(args: Namespace) -> int:
    chosen = output.rows_format(args, ("json", "csv", "txt"))
    if args.output:
        output.check_writable(args.output, args.force)
    args.paths, name = _split(args.words)
    if not name:
        lines = catalog(args, chosen)
    elif not args.paths:
        lines = manual(name, chosen)
    elif name == DIFF:
        lines = _diff(args, chosen)
    else:
        lines = _measure(args, name, chosen)
    if args.output:
        output.write_file(args.output, lines, args.force)
    else:
        output.print_lines(lines)
    return 0


def _split(words: list[str]) -> tuple[list[str], str]:
    """Paths, and the name of the metric, which is the last word. A folder that bears such a name is ./name."""
    import os

    from rankscope.analyze.metric import find_metric

    if not words:
        return [], ""
    last = words[-1]
    if last in all_metrics() or last == DIFF:
        return words[:-1], last
    if not os.path.lexists(last) and not any(sign in last for sign in (os.sep, ".", "*", "~")):
        find_metric(last)  # raises, with the closest name
    return words, ""


def _measure(args: Namespace, name: str, chosen: str) -> Iterator[str]:
    metric = all_metrics()[name]
    args.stacks = args.stacks or name in _READS_STACKS
    selection = _selection(args, metric)
    whole = load_trace(args)
    trace = _measured(whole, selection)
    absent = absent_tables(trace, metric)
    if absent:
        hint = f"record with {how_to_record(absent)}; rankscope help traces says more"
        raise InputError(f"cannot measure {name}: no {absent[0]} in {' '.join(args.paths)}", hint)
    table = metric.compute(trace, selection)
    heading = f"{name} of {_extent(trace, selection, metric)}"
    notes = [*_notes(trace, metric, table, selection), *_left_out(whole, trace)]
    return _rows(table, [heading], notes, args, chosen, _first_ns(trace))


def _measured(trace: Trace, selection: Selection) -> Trace:
    """Without the steps that the observer slowed down, unless they are asked for."""
    from rankscope.analyze.measured import measured

    chosen = measured(trace)
    _, all_steps = _ranks_and_steps(trace, selection)
    _, clean_steps = _ranks_and_steps(chosen, selection)
    return chosen if selection.steps is None or clean_steps >= all_steps else trace


def _left_out(whole: Trace, trace: Trace) -> list[str]:
    from rankscope.analyze.metric import EVERYTHING
    from rankscope.model.finding import format_ranks

    steps = _ranks_and_steps(whole, EVERYTHING)[1] - _ranks_and_steps(trace, EVERYTHING)[1]
    if not steps:
        return []
    listed = format_ranks(steps, 6)
    return [f"left out steps {listed}: the execution trace observer slowed them down (--steps {listed} shows them)"]


def _diff(args: Namespace, chosen: str) -> Iterator[str]:
    from rankscope.analyze.host.diff import compare_captures

    if not args.against:
        raise UsageError("diff needs a second capture", "add --against OTHER, the traces to compare with")
    selection = _selection(args, None)
    after = _measured(load_trace(args), selection)
    before = _measured(load_trace(Namespace(**{**vars(args), "paths": [args.against]})), selection)
    for trace, paths in ((after, args.paths), (before, [args.against])):
        if not trace.has("profiles"):
            raise InputError(
                f"no profiler trace in {' '.join(paths)}", f"diff needs traces from {how_to_record(['profiles'])}"
            )
    sizes = [tuple(map(len, _ranks_and_steps(trace, selection))) for trace in (before, after)]
    notes = [] if sizes[0] == sizes[1] else ["different numbers of ranks or steps: select with --ranks and --steps"]
    heading = [f"before: {_extent(before, selection)} ({args.against})"]
    heading += [f"after:  {_extent(after, selection)} ({' '.join(args.paths)})"]
    return _rows(compare_captures(before, after, selection), heading, notes, args, chosen)


def _selection(args: Namespace, metric: Metric | None) -> Selection:
    from rankscope.analyze.metric import Selection

    known = metric.settings if metric else {}
    settings = dict(_setting(text, known) for text in args.settings)
    return Selection(args.ranks, args.steps, settings=settings)


def _setting(text: str, known: dict[str, Parameter] | Any) -> tuple[str, Parameter]:
    key, sign, value = text.partition("=")
    if not sign or key not in known:
        listed = ", ".join(f"{name}={default}" for name, default in known.items())
        hint = did_you_mean(key, known) or (f"its settings: {listed}" if listed else "leave out --set")
        raise UsageError(f"this metric has no setting {text!r}" if listed else "this metric has no settings", hint)
    if isinstance(known[key], str):
        return key, value
    try:
        number = float(value)
    except ValueError:
        raise UsageError(f"{key} takes a number, not {value!r}", f"for example --set {key}={known[key]}") from None
    return key, int(number) if number.is_integer() else number


def _ranks_and_steps(trace: Trace, selection: Selection) -> tuple[set[int], set[int]]:

    ranks = set(trace.table("profiles").array("rank").tolist())
    steps = {step for (step,) in trace.sql("SELECT DISTINCT step FROM steps").rows()}
    ranks &= ranks if selection.ranks is None else set(selection.ranks)
    steps &= steps if selection.steps is None else set(selection.steps)
    return ranks, steps


def _extent(trace: Trace, selection: Selection, metric: Metric | None = None) -> str:
    """Which ranks and steps the answer is about."""
    from rankscope.model.finding import format_ranks, ranks_phrase

    if metric is not None and metric.needs == ("metrics",):
        return _extent_of_log(trace, selection)
    ranks, steps = _ranks_and_steps(trace, selection)
    who = ranks_phrase(ranks) if ranks else "no ranks"
    if steps:
        return f"{who}, {'step' if len(steps) == 1 else 'steps'} {format_ranks(steps, 6)}"
    return f"{who}, all that was recorded" if selection.steps is None else f"{who}, no steps"


def _extent_of_log(trace: Trace, selection: Selection) -> str:
    """As above, of what was recorded while the job trained: step by step, so only their range is shown."""
    from rankscope.model.finding import ranks_phrase

    table = trace.table("metrics")
    ranks = {rank for rank in table.array("rank").tolist() if rank >= 0}
    ranks &= ranks if selection.ranks is None else set(selection.ranks)
    steps = table.array("step") if selection.steps is None else selection.steps
    known = [step for step in steps if step >= 0]
    who = ranks_phrase(ranks) if ranks else "a log without ranks" if selection.ranks is None else "no ranks"
    return f"{who}, steps {min(known):,} to {max(known):,}" if known else f"{who}, all that was recorded"


def _notes(trace: Trace, metric: Metric, table: Table, selection: Selection) -> list[str]:
    from rankscope.model.finding import ranks_phrase

    notes = []
    if "kernels" in metric.needs:
        profiles = trace.table("profiles")
        ranks, n_kernels = profiles.array("rank"), profiles.array("n_kernels")
        without = set(ranks[n_kernels <= 0].tolist()) - set(ranks[n_kernels > 0].tolist())
        without &= without if selection.ranks is None else set(selection.ranks)
        if without:
            notes.append(f"left out {ranks_phrase(without)}: these traces have no device activity (CPU only)")
    if not len(table) and metric.table == "module_breakdown":
        notes.append(_NO_MODULES)
    return notes


def _first_ns(trace: Trace) -> int:
    started = trace.table("profiles").array("start_ns")
    return int(started.min()) if len(started) else 0


def _rows(
    table: Table, heading: list[str], notes: list[str], args: Namespace, chosen: str, zero_ns: int = 0
) -> Iterator[str]:
    import numpy as np

    from rankscope.render.metric_rows import plain_rows

    limit = args.limit if args.limit is not None else DEFAULT_ROWS if chosen == "table" and not args.output else 0
    shown = table.take(np.arange(limit)) if 0 < limit < len(table) else table
    if chosen == "table":
        return _page(shown, [*heading, *_moment_note(table, zero_ns)], notes, len(table), zero_ns)
    from rankscope.render.query_rows import json_lines

    heads, rows = list(shown.columns), plain_rows(shown)
    return json_lines(heads, rows) if chosen == "json" else _csv(heads, rows, args)


def _csv(heads: list[str], rows: Iterable[Sequence[Any]], args: Namespace) -> Iterator[str]:
    import sys

    from rankscope.render.query_rows import csv_lines

    to_terminal = not args.output and sys.stdout.isatty()
    return csv_lines(heads, rows, to_terminal=to_terminal, is_raw=args.raw_csv)


def _moment_note(table: Table, zero_ns: int) -> list[str]:
    from datetime import datetime, timezone

    from rankscope.render.metric_rows import has_moments

    if not has_moments(table):
        return []
    first = datetime.fromtimestamp(zero_ns / 1e9, timezone.utc)
    return [f"times are relative to the first event, {first:%Y-%m-%d %H:%M:%S.%f} UTC"]


def _page(shown: Table, heading: list[str], notes: list[str], n_rows: int, zero_ns: int) -> Iterator[str]:
    import sys

    from rankscope.model.finding import count_noun
    from rankscope.render.metric_rows import readable_rows
    from rankscope.render.plain_table import table_lines

    yield from heading
    yield ""
    yield from table_lines(*readable_rows(shown, zero_ns), output.text_width(sys.stdout))
    hidden = n_rows - len(shown)
    more = f", {hidden:,} more with --limit 0" if hidden else ""
    yield f"({count_noun(len(shown), 'row')}{more})"
    for note in notes:
        yield f"  = note: {note}"
