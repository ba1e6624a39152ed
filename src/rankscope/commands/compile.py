"""`rankscope compile`: the report on torch.compile, as a folder of pages and files or as one page."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rankscope.commands import output
from rankscope.commands.diagnose import add_fail_on, exit_code
from rankscope.commands.loading import add_reading_options, diagnose_trace, load_trace
from rankscope.commands.progress import Progress

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator, Sequence

    from rankscope.model.finding import Report
    from rankscope.model.tables import Trace
    from rankscope.render.compile_tree.outputs import RankTree, TreeOptions

RECORD_HINT = "record one: TORCH_TRACE=traces python train.py"
_MAX_LISTED = 20
_SHARING = "The report contains your model's code, but no weights: keep that in mind before you share it."


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("paths", metavar="LOG", nargs="*", help="TORCH_TRACE logs, or their folder")
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        default="tl_out",
        help="a folder, or one .html or .zip file with everything in it (default: tl_out)",
    )
    parser.add_argument("--latest", action="store_true", help="report findings of the newest run only")
    parser.add_argument("--all-ranks", action="store_true", help="one folder per rank, even for a single rank")
    parser.add_argument("--export", action="store_true", help="report on a draft export (TORCH_DTRACE)")
    parser.add_argument("--provenance", action="store_true", help="add pages that link graph nodes to generated code")
    parser.add_argument("--plain-text", action="store_true", help="write generated code as .txt files, not as pages")
    parser.add_argument("--strict", action="store_true", help="check every payload; exit with code 1 if any is damaged")
    parser.add_argument("--overwrite", "--force", dest="force", action="store_true", help="replace an older report")
    parser.add_argument("--open", action="store_true", help="open the report in a browser")
    parser.add_argument(
        "--serve", metavar="PORT", nargs="?", const=0, type=int, help="serve the report on 127.0.0.1 until Ctrl-C"
    )
    parser.add_argument("--compare", metavar=("OLD", "NEW"), nargs=2, help="report what changed between two runs")
    add_fail_on(parser)
    output.add_output_options(parser)
    output.add_finding_options(parser)
    add_reading_options(parser)


def run(args: Namespace) -> int:
    from rankscope.errors import UsageError

    if args.compare:
        from rankscope.commands.compile_compare import run_compare

        return run_compare(args)
    if not args.paths:
        raise UsageError(
            "rankscope compile needs LOG", "give TORCH_TRACE logs or their folder: rankscope compile torch_trace/"
        )
    _check_destination(args)

    trace = load_trace(args)
    _choose_run(trace, args)
    report = diagnose_trace(trace)
    damage = list(_damage(trace)) if args.strict else []
    with Progress() as progress:
        trees = _write(trace, report, args, progress)
    for line in damage[:_MAX_LISTED]:
        output.tell(f"{line}")
    if len(damage) > _MAX_LISTED:
        output.tell(f"{len(damage) - _MAX_LISTED:,} more are damaged")
    _show(trace, report, trees, args)
    _present(trees, args)
    return 1 if damage else exit_code(report, args.fail_on)


def _check_destination(args: Namespace) -> None:
    from rankscope.commands.report_folder import check_folder
    from rankscope.errors import UsageError

    if not _is_file(args.output):
        check_folder(args.output, args.force)
        return
    output.check_writable(args.output, args.force)
    if args.serve is not None:
        raise UsageError("--serve needs a folder as output", "open the file itself: it has everything in it")
    if args.export:
        raise UsageError("--export needs a folder as output", "leave .html or .zip out of its name")


def _is_file(path: str) -> bool:
    return path.lower().endswith((".html", ".htm", ".zip"))


def _choose_run(trace: Trace, args: Namespace) -> None:
    """The report covers the newest run, the findings cover all runs unless --latest is given."""
    from rankscope.errors import InputError
    from rankscope.model.finding import count_noun

    logs = trace.table("compile_logs")
    if not len(logs):
        raise InputError(f"no torch.compile log in {', '.join(args.paths)}", RECORD_HINT)
    runs = logs.array("run")
    is_earlier = runs != runs.max()
    if not is_earlier.any():
        return
    n_runs, n_logs = len(set(runs[is_earlier].tolist())), int(is_earlier.sum())
    left_out = f"{count_noun(n_logs, 'log')} of {count_noun(n_runs, 'earlier run')}"
    output.tell(f"The report covers the newest run; {left_out} {'is' if n_logs == 1 else 'are'} left out")
    if args.latest:
        _drop_files(trace, set(logs.array("file_id")[is_earlier].tolist()))


def _drop_files(trace: Trace, file_ids: set[int]) -> None:
    import numpy as np

    for name, table in trace.tables.items():
        if "file_id" in table.columns:
            trace.tables[name] = table.take(np.flatnonzero(~np.isin(table.array("file_id"), list(file_ids))))


def _damage(trace: Trace) -> Iterator[str]:
    """What --strict does not let pass: records that could not be understood, payloads that are not what was written."""
    from rankscope.model.payloads import damaged_payloads

    files = trace.table("files")
    shown = dict(zip(files.array("file_id").tolist(), files.text("path").tolist(), strict=True))
    records = trace.table("compile_records")
    for row in records.take(records.text("kind").equals("").nonzero()[0]).rows():
        yield f"{shown[row['file_id']]}: record {row['record']} at byte {row['start']:,} has an unknown layout"
    for row in damaged_payloads(trace):
        what = f"{row['kind']} {row['name']}".rstrip()
        yield f"{shown[row['file_id']]}: payload of record {row['record']} ({what}) does not match its checksum"


def _write(trace: Trace, report: Report, args: Namespace, progress: Progress) -> list[RankTree]:
    from rankscope.analyze import Meanings
    from rankscope.render.compile_tree.outputs import TreeOptions, plan_ranks
    from rankscope.render.html import Html

    options = TreeOptions(
        plain_text=args.plain_text,
        all_ranks=args.all_ranks,
        export=args.export,
        provenance=args.provenance,
        base=os.getcwd(),
        meanings=Meanings(),
        header_html=Html(getattr(args, "header_html", "")),  # of rankscope tlparse
        progress=progress,
    )
    if "trace" not in trace.table("compile_logs").text("source").tolist():
        output.tell(f"No report: TORCH_LOGS text has no graphs or code; {RECORD_HINT}")
        return []
    if _is_file(args.output):
        _write_file(trace, report, args.output, options)
        return plan_ranks(trace, options)
    from rankscope.commands.report_folder import new_folder
    from rankscope.render.compile_tree.writer import write_tree

    with new_folder(args.output, args.force) as folder:
        return write_tree(trace, report, folder, options)


def _write_file(trace: Trace, report: Report, path: str, options: TreeOptions) -> None:
    from rankscope.render.compile_tree.single_file import pack_folder, write_single, zip_folder
    from rankscope.render.whole_file import whole_file

    pack = zip_folder if path.lower().endswith(".zip") else pack_folder
    with whole_file(path) as part:  # a page that was cut off would look whole
        packed = write_single(trace, report, part, options, pack)
    if packed.note:
        output.tell(f"{path}: {packed.note}")


def _show(trace: Trace, report: Report, trees: Sequence[RankTree], args: Namespace) -> None:
    from rankscope.render import Options, load_renderer

    if args.json:
        output.print_lines(load_renderer("json")(report, Options()))
        return
    shown = output.terminal_options(args, _next_command(report, trees, args))
    if trees:
        totals = [] if args.export else _totals(trace, trees)  # an export compiles nothing
        output.print_lines([*totals, f"Report: {_entry(args)}", "", _SHARING, ""])
    output.print_lines(load_renderer("txt")(report, shown))


def _totals(trace: Trace, trees: Sequence[RankTree]) -> Iterator[str]:
    from rankscope.model.finding import count_noun, format_duration
    from rankscope.render.compile_tree.page_data import RankView, compilations_of, totals_of

    views = [RankView(trace, tree) for tree in trees]
    sums = [sum(values) for values in zip(*(totals_of(view, compilations_of(view)) for view in views), strict=True)]
    total = type(totals_of(views[0], ()))(*sums)
    ranks = f" on {count_noun(len(trees), 'rank')}" if len(trees) > 1 else ""
    failed = f", {total.n_failed:,} failed" if total.n_failed else ""
    yield f"{count_noun(total.n_compilations, 'compilation')}{ranks}{failed}, {format_duration(total.total_ns)} in all"
    again = f" ({format_duration(total.recompile_ns)})" if total.recompile_ns else ""
    yield (
        f"{count_noun(total.n_breaks, 'graph break')}, {count_noun(total.n_recompilations, 'recompilation')}{again}, "
        f"{count_noun(total.n_hits, 'cache hit')}, {count_noun(total.n_misses, 'cache miss', 'cache misses')}"
    )


def _entry(args: Namespace) -> str:
    return args.output if _is_file(args.output) else os.path.join(args.output, "index.html")


def _next_command(report: Report, trees: Sequence[RankTree], args: Namespace) -> str:
    import shlex

    if report.findings:
        return f"rankscope explain {report.findings[0].code}"
    if not trees:
        return f'rankscope query {" ".join(map(shlex.quote, args.paths[:1]))} "from log_lines"'
    again = " ".join(map(shlex.quote, ("rankscope", "compile", *args.paths, "-o", args.output)))
    return f"{again} --overwrite --open"


def _present(trees: Sequence[RankTree], args: Namespace) -> None:
    """To a browser, if asked for."""
    if not trees:
        return
    if args.serve is not None:
        from rankscope.commands.serving import serve_report

        serve_report(os.path.realpath(args.output), args.serve, args.open)
    elif args.open:
        import pathlib
        import webbrowser

        webbrowser.open(pathlib.Path(_entry(args)).resolve().as_uri())
