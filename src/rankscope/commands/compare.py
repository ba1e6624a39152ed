"""`rankscope compare A B`: what is new, what is gone, what is slower."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankscope.commands import output
from rankscope.commands.diagnose import add_fail_on, fails
from rankscope.commands.loading import PATH_HELP, add_reading_options, diagnose_trace

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterable

    from rankscope.analyze.compare.captures import Side
    from rankscope.model.changes import Changes

FORMATS = ("txt", "json", "html")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("old", metavar="A", help=f"the old or good run: {PATH_HELP}")
    parser.add_argument("new", metavar="B", help="the new or bad run")
    output.add_output_options(parser)
    output.add_file_options(parser, FORMATS)
    parser.add_argument("--all", action="store_true", help="also list what did not change")
    severe = "B has a new finding this severe or worse; slower counts as a warning"
    add_fail_on(parser, "warning", severe)
    add_reading_options(parser)


def run(args: Namespace) -> int:
    from rankscope.analyze.compare.captures import compare_captures, has_common_source
    from rankscope.errors import InputError
    from rankscope.render.finding_words import sources_phrase

    chosen = output.answer_format(args, FORMATS)
    if args.output:
        output.check_writable(args.output, args.force)
    old, new = (_read(path, args) for path in (args.old, args.new))
    if not has_common_source(old.trace, new.trace):
        held = [f"{side.trace.paths[0]} has {sources_phrase(side.report.capture)}" for side in (old, new)]
        raise InputError(
            f"the two captures cannot be compared: {held[0]}, {held[1]}",
            "compare traces of the same kind; rankscope PATH diagnoses one capture",
        )
    changes = compare_captures(old, new)
    lines = _lines(changes, chosen, args)
    if args.output:
        output.write_file(args.output, lines, args.force)
        output.tell(f"Wrote the comparison to {args.output}")
    else:
        output.print_lines(lines)
    return exit_code(changes, args.fail_on)


def exit_code(changes: Changes, fail_on: str) -> int:
    return int(changes.worst is not None and fails(changes.worst, fail_on))


def next_command(changes: Changes) -> str:
    """The command most worth running after this answer."""
    import shlex

    old, new = (" ".join(map(shlex.quote, capture.paths)) for capture in (changes.old, changes.new))
    is_profiled = all(capture.sources.keys() & {"kineto", "nsys"} for capture in (changes.old, changes.new))
    if changes.worst == "error" or not is_profiled:
        new_ones = [change for change in changes.findings if change.is_in_new and change.kind != "changed"]
        if new_ones:
            return f"rankscope explain {new_ones[0].code}"
    if is_profiled and changes.worst:
        return f"rankscope metrics {new} diff --against {old}"
    if changes.compile and changes.compile.is_worse:
        return f"rankscope compile --compare {old} {new}"
    return f"rankscope compare {old} {new} --all" if changes.worst is None else f"rankscope {new}"


def _read(path: str, args: Namespace) -> Side:
    from argparse import Namespace as Arguments

    from rankscope.analyze.compare.captures import Side
    from rankscope.analyze.measured import measured
    from rankscope.commands.loading import load_trace

    trace = load_trace(Arguments(**{**vars(args), "paths": [path]}))
    return Side(measured(trace), diagnose_trace(trace))


def _lines(changes: Changes, chosen: str, args: Namespace) -> Iterable[str]:
    options = output.terminal_options(args, next_command(changes))
    if args.output:
        options = options._replace(color=False, width=None)
    if chosen == "json":
        from msgspec import to_builtins

        from rankscope.render.as_json import dumps

        return [dumps(to_builtins(changes if args.all else told_only(changes)))]
    if chosen == "html":
        from rankscope.render.changes_page import changes_page

        return [changes_page(changes, options)]
    from rankscope.render.changes import render

    return render(changes, options)


def told_only(changes: Changes) -> Changes:
    """Without what is the same within noise, which can be thousands of kernels."""
    from msgspec.structs import replace

    lists = {
        name: tuple(item for item in getattr(changes, name) if item.kind != "same")
        for name in ("parts", "collectives", "kernels", "numbers")
    }
    return replace(changes, **lists)
