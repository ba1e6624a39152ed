"""`rankscope diagnose`: the answer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rankscope.commands import output
from rankscope.commands.loading import (
    PATH_HELP,
    add_reading_options,
    add_replica_options,
    diagnose_trace,
    load_trace,
    replica_shift,
)
from rankscope.render import RENDERERS, Options, load_renderer

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from rankscope.model.finding import Report, Severity


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="+", help=PATH_HELP)
    output.add_output_options(parser)
    output.add_file_options(parser, RENDERERS)
    output.add_finding_options(parser)
    add_fail_on(parser)
    parser.add_argument(
        "--action",
        action="store_true",
        help="print only what to do with the job, for scripts: restart, restart-without HOSTS, fix-first, "
        "collect-more or none",
    )
    add_reading_options(parser)
    add_replica_options(parser)


def add_fail_on(
    parser: ArgumentParser, default: str = "error", when: str = "a finding is at least this severe"
) -> None:
    parser.add_argument(
        "--fail-on",
        choices=("error", "warning", "info", "never"),
        default=default,
        help=f"exit with code 1 if {when} (default: {default})",
    )


def run(args: Namespace) -> int:

    chosen = _format(args)
    if args.output:
        output.check_writable(args.output, args.force)
    trace = load_trace(args, replica_shift(args))
    report = diagnose_trace(trace)
    if args.action:
        output.print_lines([action_line(report)])
    else:
        show(report, chosen, args)
    return exit_code(report, args.fail_on)


def show(report: Report, chosen: str, args: Namespace) -> None:

    from rankscope.model.finding import count_noun

    lines = load_renderer(chosen)(report, _options(report, args))
    if args.output:
        output.write_file(args.output, lines, args.force)
        output.tell(f"Wrote {count_noun(len(report.findings), 'finding')} to {args.output}")
    else:
        output.print_lines(lines)


def action_line(report: Report) -> str:
    """The action of the first finding that has one: the root cause comes first."""
    chosen = next((finding for finding in report.findings if finding.action), None)
    if chosen is None:
        return "none"
    return f"{chosen.action} {','.join(chosen.action_hosts)}".rstrip()


def exit_code(report: Report, fail_on: str) -> int:
    return int(any(fails(finding.severity, fail_on) for finding in report.findings))


def fails(severity: Severity, fail_on: str) -> bool:
    """Whether something of that severity is what --fail-on asks for."""
    from rankscope.model.finding import SEVERITIES

    return fail_on != "never" and severity in SEVERITIES[: [*SEVERITIES].index(fail_on) + 1]  # type: ignore[arg-type]


def page_command(paths: Sequence[str], path: str = "report.html") -> str:
    return f"rankscope report {_typed(paths)} -o {_typed([path])}"


def _typed(paths: Sequence[str]) -> str:
    from rankscope.render.source import typed_paths

    return typed_paths(paths, os.getcwd())


def next_command(report: Report) -> str:
    """The command most worth running after this answer."""
    paths = _typed(report.capture.paths)
    is_calm = not (report.count("error") or report.count("warning"))
    if (
        is_calm and "compile_log" in report.capture.sources
    ):  # what compiling cost is worth a look even where nothing is wrong
        return f"rankscope compile {paths}"
    if report.findings:
        return f"rankscope explain {report.findings[0].code}"
    if report.capture.sources.keys() & {"kineto", "nsys"}:
        return f"rankscope metrics {paths}"
    return f"rankscope fr {paths} -j" if "flight_recorder" in report.capture.sources else f"rankscope tables {paths}"


def _format(args: Namespace) -> str:
    from rankscope.errors import UsageError

    if (args.output or "").lower().endswith((".html", ".htm")):
        raise UsageError("diagnose does not write web pages", page_command(args.paths, args.output))
    return output.answer_format(args, RENDERERS)


def _options(report: Report, args: Namespace) -> Options:
    shown = output.terminal_options(args, next_command(report))
    if report.findings:
        shown = shown._replace(page_command=page_command(report.capture.paths))
    return shown._replace(color=False, width=None) if args.output else shown
