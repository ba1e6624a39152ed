"""What the commands about linked execution traces share: reading them, durations from clean steps, how to record."""

from __future__ import annotations

import os
import shlex
from argparse import Namespace
from typing import TYPE_CHECKING

from rankscope.commands.loading import load_trace
from rankscope.errors import InputError

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Iterator, Sequence

    from rankscope.model.tables import Trace

HOW_TO_RECORD = (
    "record one with the profiler: profile(..., execution_trace_observer="
    'ExecutionTraceObserver().register_callback("torch_et_<rank>.json")), from torch.profiler'
)


def add_durations_options(parser: ArgumentParser) -> None:
    """Clean steps of the capture itself need not be asked for."""
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--durations-from",
        metavar="PATH",
        help="take durations from these profiler traces, recorded without the observer, which slows operators down "
        "(default: from such traces in PATH)",
    )
    chosen.add_argument(
        "--raw-durations", action="store_true", help="keep the durations that were recorded with the observer"
    )


def durations_words(args: Namespace) -> str:
    """The options about durations as they were given, for the next command."""
    if args.raw_durations:
        return " --raw-durations"
    return f" --durations-from {shlex.quote(args.durations_from)}" if args.durations_from else ""


def durations_notes(args: Namespace, n_inflated: int, n_moved: int) -> Iterator[str]:
    """How many durations of linked operators come from clean steps, and how many were recorded with the observer on."""
    clean = args.durations_from
    if clean and not n_moved:
        yield f"note: no durations taken from {clean}: other ranks or steps, or recorded with the observer"
    elif n_moved:
        yield f"note: {n_moved:,} durations are from steps without the observer, {n_inflated:,} are not"
    elif n_inflated:
        yield f"note: {n_inflated:,} durations were measured with the observer on: short operators look slower;"
        if args.raw_durations:
            yield "      leave out --raw-durations to take those of steps without it"
        else:
            yield "      if you have traces of the same steps without it, add --durations-from PATH"


def load_linked(args: Namespace) -> Trace:
    """With durations from elsewhere both are read together, since a file of the one may lie among the others."""
    clean = args.durations_from
    if clean and not os.path.exists(clean):
        raise InputError(
            f"{clean}: no such file or folder", "give profiler traces that were recorded without the observer"
        )
    if clean and not any(_is_below(clean, path) for path in args.paths):
        both = Namespace(**vars(args) | {"paths": [*args.paths, clean]})
        trace = load_trace(both, lambda trace: _keep_profiles_only(trace, clean, args.paths))
    else:
        trace = load_trace(args)
    if not trace.has("et_traces"):
        raise InputError("no execution trace in " + ", ".join(trace.paths), HOW_TO_RECORD)
    if args.raw_durations:
        from rankscope.analyze.link.links import recorded_links

        trace.tables["et_links"] = recorded_links(trace)
    elif clean:
        from rankscope.analyze.link.links import transplanted_links

        trace.tables["et_links"] = transplanted_links(trace, _profiles_below(trace, clean))
    return trace


def _keep_profiles_only(trace: Trace, folder: str, paths: Sequence[str]) -> None:
    """Drops the folder's execution traces: they cover other steps than those to be linked."""
    import numpy as np

    from rankscope.model.schema_execution import EXECUTION_TABLES

    others = [
        file_id
        for file_id, path in file_paths(trace).items()
        if _is_below(_on_disk(path), folder) and not any(_is_below(_on_disk(path), given) for given in paths)
    ]
    for spec in EXECUTION_TABLES:
        if spec.name in trace.tables:
            table = trace.tables[spec.name]
            trace.tables[spec.name] = table.take(np.flatnonzero(~np.isin(table.array("file_id"), others)))
        kept = [part for part in trace.parts.pop(spec.name, ()) if part.file_id not in others]
        if kept:
            trace.parts[spec.name] = kept


def _on_disk(path: str) -> str:
    """A file in an archive is where the archive is."""
    return path.partition("!")[0]


def _profiles_below(trace: Trace, folder: str) -> set[int]:
    profiles = set(trace.table("profiles").array("file_id").tolist())
    chosen = {
        file_id
        for file_id, path in file_paths(trace).items()
        if file_id in profiles and _is_below(_on_disk(path), folder)
    }
    if not chosen:
        raise InputError(
            f"no profiler trace in {folder}", "give profiler traces that were recorded without the observer"
        )
    return chosen


def file_paths(trace: Trace) -> dict[int, str]:
    files = trace.table("files")
    return dict(zip(files.array("file_id").tolist(), files.text("path").tolist(), strict=True))


def _is_below(path: str, folder: str) -> bool:
    path, folder = os.path.realpath(path), os.path.realpath(folder)
    return path == folder or path.startswith(folder + os.sep)
