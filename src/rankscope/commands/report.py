"""`rankscope report`: the answer as one page that needs nothing else."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rankscope.commands import output
from rankscope.commands.diagnose import add_fail_on, exit_code
from rankscope.commands.loading import PATH_HELP, add_reading_options, diagnose_trace, load_trace
from rankscope.commands.progress import Progress

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from rankscope.model.finding import Report
    from rankscope.render.page.contents import PageOptions
    from rankscope.render.page.writer import Written

DEFAULT_OUTPUT = "report.html"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="+", help=PATH_HELP)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default=DEFAULT_OUTPUT,
        help=f"write the page to FILE (default: {DEFAULT_OUTPUT})",
    )
    parser.add_argument("--force", action="store_true", help="overwrite FILE if it exists")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    add_page_options(parser)
    parser.add_argument(
        "--max-size",
        type=_megabytes,
        metavar="MB",
        help="thin the data if the page would be larger than this (default: 10)",
    )
    parser.add_argument("--json", action="store_true", help="print a summary and the findings as JSON")
    add_fail_on(parser)
    add_reading_options(parser)


def add_page_options(parser: ArgumentParser) -> None:
    """What a page may show; `rankscope serve` has the same."""
    parser.add_argument("--no-source", action="store_true", help="do not show lines of source code")
    parser.add_argument("--redact", action="store_true", help="leave out source code, directories and host names")


def run(args: Namespace) -> int:
    from rankscope import pipeline
    from rankscope.render.page.writer import write_page

    _check_extension(args)
    output.check_writable(args.output, args.force)
    trace = load_trace(args)
    report = diagnose_trace(trace)
    with Progress() as progress:
        shown = pipeline.shown_world(trace, report)
        written = write_page(shown, report, args.output, page_options(args), progress)
    _tell(report, written, args)
    if args.open:
        import pathlib
        import webbrowser

        webbrowser.open(pathlib.Path(args.output).resolve().as_uri())
    return exit_code(report, args.fail_on)


def _check_extension(args: Namespace) -> None:
    """A browser shows a page as text if its name says that it is something else."""
    import os
    import shlex

    from rankscope.errors import UsageError

    stem, extension = os.path.splitext(args.output)
    if extension.lower() not in (".html", ".htm", ""):
        paths = shlex.join(args.paths)
        hint = f"rankscope report {paths} -o {shlex.quote(stem + '.html')}; as text or JSON: rankscope {paths} -o FILE"
        raise UsageError(f"report writes a web page, and {args.output} does not end in .html", hint)


def page_options(args: Namespace, *, is_served: bool = False) -> PageOptions:
    from rankscope.analyze import Meanings
    from rankscope.render.page.contents import MAX_BYTES, PageOptions

    return PageOptions(
        source=not args.no_source,
        redact=args.redact,
        base=os.getcwd(),
        max_bytes=getattr(args, "max_size", None) or MAX_BYTES,
        meanings=Meanings(),
        is_served=is_served,
    )


def _tell(report: Report, written: Written, args: Namespace) -> None:
    from rankscope.model.finding import SEVERITIES
    from rankscope.render.escape import escape
    from rankscope.render.finding_words import found_phrase
    from rankscope.render.listing import n_bytes_phrase

    if args.json:
        counts = {severity: report.count(severity) for severity in SEVERITIES}
        record = {"path": args.output, "n_bytes": written.n_bytes, "left_out": written.remarks, "found": counts}
        output.print_json({**record, "findings": report.findings})
        return
    output.tell(f"Wrote {args.output} ({n_bytes_phrase(written.n_bytes)}). {found_phrase(report)}.")
    for remark in written.remarks:
        output.tell(f"  = note: {escape(remark)}")
    if report.findings:
        output.tell(f"{verdict_line(report)}")
    if not args.open:
        output.tell(f"Next: open {args.output} in a browser")


def verdict_line(report: Report) -> str:
    """The first finding in one line, harmless to a terminal."""
    from rankscope.render.escape import escape
    from rankscope.render.finding_words import headline

    first = report.findings[0]
    return f"{first.severity}[{first.code}] ({first.certainty}) {escape(headline(first))}"


def _megabytes(text: str) -> int:
    from argparse import ArgumentTypeError

    try:
        size = float(text)
    except ValueError:
        size = 0.0
    if not 0.1 <= size < 10_000:
        raise ArgumentTypeError(f"{text!r} is not a size in megabytes of 0.1 or more")
    return int(size * 1e6)
