"""`rankscope serve`: the page of `rankscope report` on 127.0.0.1, its data made when it is looked at."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rankscope.commands import output
from rankscope.commands.loading import PATH_HELP, add_reading_options, diagnose_trace, load_trace
from rankscope.commands.progress import Progress
from rankscope.commands.report import add_page_options, page_options, verdict_line

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from rankscope.commands.page_server import PageServer, Shown
    from rankscope.model.finding import Report
    from rankscope.model.tables import Trace
    from rankscope.render.page.contents import PageOptions

DEFAULT_PORT = 8377
_MAX_PORT = 65_535


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="+", help=PATH_HELP)
    parser.add_argument(
        "--port",
        type=_port,
        metavar="N",
        help=f"port on 127.0.0.1; 0 picks a free one (default: {DEFAULT_PORT}, or a free one)",
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    add_page_options(parser)
    parser.add_argument("--json", action="store_true", help="print the address as JSON")
    add_reading_options(parser)


def run(args: Namespace) -> int:
    from rankscope import pipeline
    from rankscope.commands.serving import serve_until_interrupted

    with listening(args.port) as server:
        trace = load_trace(args)
        report = diagnose_trace(trace)
        server.shown = shown(pipeline.shown_world(trace, report), report, page_options(args, is_served=True))
        _tell(server.url, report, args)
        serve_until_interrupted(server, args.open)
    return 0


def listening(port: int | None) -> PageServer:
    from rankscope.commands.page_server import PageServer
    from rankscope.commands.serving import listening_failed

    try:
        return PageServer(DEFAULT_PORT if port is None else port)
    except OSError as error:
        if port is not None:
            raise listening_failed(port, error, "choose another port, or --port 0 for a free one") from error
    output.tell(f"Port {DEFAULT_PORT} is in use; using another one")
    return PageServer(0)


def shown(trace: Trace, report: Report, options: PageOptions) -> Shown:
    from rankscope.commands.page_server import Shown
    from rankscope.render.page.writer import build_page

    def write(path: str) -> None:
        from rankscope.commands.timeline import MAX_EVENTS
        from rankscope.render.timeline.axis import prepare_axis
        from rankscope.render.timeline.drawing import Cut
        from rankscope.render.timeline.writer import write_timeline

        write_timeline(trace, report.shown_findings, path, Cut(prepare_axis(trace)), MAX_EVENTS)

    # A timeline is made of names of files, functions and hosts.
    with Progress() as progress:
        page = build_page(trace, report, options, progress)
    return Shown(page, None if options.redact else write)


def _tell(url: str, report: Report, args: Namespace) -> None:
    if args.json:
        output.print_json({"url": url})
        sys.stdout.flush()  # whoever waits for the address would wait until the end
    elif report.findings:
        output.tell(f"{verdict_line(report)}")
    output.tell(f"Serving the page at {url} until Ctrl-C")


def _port(text: str) -> int:
    from argparse import ArgumentTypeError

    if not text.isdecimal() or int(text) > _MAX_PORT:
        raise ArgumentTypeError(f"{text!r} is not a port (0 to {_MAX_PORT})")
    return int(text)
