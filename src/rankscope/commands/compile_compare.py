"""`rankscope compile --compare OLD NEW`: what torch.compile does otherwise than before."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from rankscope.commands import output
from rankscope.commands.loading import load_trace
from rankscope.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rankscope.model.compile_changes import CompileChanges
    from rankscope.model.tables import Trace

FORMATS = ("json", "txt")
DEFAULT_OUTPUT = "tl_out"  # of the report folder; here nothing is written unless a file is named


def run_compare(args: Namespace) -> int:
    """Exit code 1 when the new run has graph breaks, recompilations or failures that the old one had not."""
    from rankscope.analyze.compare.compiling import compare_runs

    if args.paths:
        raise UsageError(
            f"--compare takes two paths, and {args.paths[0]!r} is a third", "rankscope compile --compare OLD NEW"
        )
    destination = "" if args.output in (None, DEFAULT_OUTPUT) else args.output
    chosen = output.output_format(destination, FORMATS) if destination else "json" if args.json else "txt"
    if destination:
        output.check_writable(destination, args.force)
    old, new = (_load(path, args) for path in args.compare)
    changes = compare_runs(old, new)
    lines = _lines(changes, chosen, None if destination else output.text_width(sys.stdout))
    if destination:
        output.write_file(destination, lines, args.force)
        output.tell(f"Wrote the comparison to {destination}")
    else:
        output.print_lines(lines)
    return int(changes.is_worse)


def _load(path: str, args: Namespace) -> Trace:
    trace = load_trace(Namespace(**{**vars(args), "paths": [path]}))
    if not trace.has("compile_logs"):
        raise InputError(f"no torch.compile log in {path}", "record one: TORCH_TRACE=traces python train.py")
    return trace


def _lines(changes: CompileChanges, chosen: str, width: int | None) -> Iterable[str]:
    if chosen == "json":
        import msgspec

        from rankscope.render.as_json import dumps

        return [dumps(msgspec.to_builtins(changes))]
    from rankscope.render.compile_changes import change_lines

    return change_lines(changes, width)
