"""How the commands read traces: the options that choose what is read and where, and the progress bar meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rankscope.commands.output import ReadProgress

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Unpack

    from rankscope.model.tables import Trace
    from rankscope.read.capture import ReadSettings

PATH_HELP = "a trace, a folder of traces or an archive of them, here or at a URL"
PREFIX_HELP = "read only files with this in their names, followed by the rank"


def add_reading_options(parser: ArgumentParser) -> None:
    parser.add_argument("-p", "--prefix", help=PREFIX_HELP)
    parser.add_argument(
        "--capture",
        type=positive_int,
        metavar="N",
        help="where dumps of several jobs or attempts lie together: which to judge (default: the newest whole one)",
    )
    add_scale_options(parser)


def add_replica_options(parser: ArgumentParser) -> None:
    """For jobs whose replicas count from 0, where the size of a replica cannot be inferred."""
    parser.add_argument(
        "--transform-ft", action="store_true", help="torchft: turn the ranks of replicas into global ones"
    )
    parser.add_argument("--group-world-size", type=positive_int, metavar="N", help="ranks of one torchft replica")


def replica_shift(args: Namespace) -> Callable[[Trace], None] | None:
    from rankscope.errors import UsageError
    from rankscope.model.replicas import shift_replica_ranks

    if not args.transform_ft:
        return None
    if not args.group_world_size:
        raise UsageError("--transform-ft needs the size of a replica", "add --group-world-size N")

    def shift(trace: Trace) -> None:
        trace.tables["group_config"] = shift_replica_ranks(trace.table("group_config"), args.group_world_size)

    return shift


def add_scale_options(parser: ArgumentParser) -> None:
    """Where files are read, and where what was made of them is kept."""
    parser.add_argument(
        "--jobs", type=positive_int, metavar="N", help="processes that read files (default: one per core)"
    )
    parser.add_argument(
        "--cluster", metavar="ADDRESS", help="read on a Dask cluster: the address of its scheduler, or local"
    )
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument(
        "--cache",
        metavar="PLACE",
        help="folder or URL that keeps the tables of large traces (default: $RANKSCOPE_CACHE, else in ~/.cache)",
    )
    kept.add_argument("--no-cache", action="store_true", help="keep nothing for the next run")
    parser.add_argument("--stacks", action="store_true", help="also read the Python functions of profiler traces")


def positive_int(text: str) -> int:
    from argparse import ArgumentTypeError

    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a number of processes")
    return int(text)


def load_trace(args: Namespace, transform: Callable[[Trace], None] | None = None) -> Trace:
    settings: ReadSettings = {"prefix": args.prefix, "jobs": args.jobs, "with_stacks": args.stacks}
    settings["capture"] = getattr(args, "capture", None)  # fr has torch's options only
    settings["cache"] = None if args.no_cache else args.cache or default_cache()
    if args.cluster:
        from rankscope.scale import on_cluster

        settings["cluster"] = on_cluster(args.cluster, args.jobs)
    return load_paths(args.paths, transform, **settings)


def load_paths(
    paths: Sequence[str], transform: Callable[[Trace], None] | None = None, **settings: Unpack[ReadSettings]
) -> Trace:
    """The process is the command's own: while it reads, its memory may be limited."""
    from rankscope import pipeline

    with ReadProgress() as progress:
        settings["progress"], settings["may_limit_memory"] = progress, True
        return pipeline.load(paths, transform=transform, **settings)


def default_cache() -> str | None:
    """$RANKSCOPE_CACHE, else a folder among the user's caches; None where that cannot be written, as in containers."""
    chosen = os.environ.get("RANKSCOPE_CACHE")
    if chosen:
        return chosen
    folder = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "rankscope")
    existing = folder
    while not os.path.exists(existing):
        existing = os.path.dirname(existing) or os.curdir
    return folder if os.access(existing, os.W_OK) else None
