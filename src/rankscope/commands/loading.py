"""How the commands read traces: the options that choose the files, and the progress bar meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rankscope.commands.output import ReadProgress

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from rankscope.model.tables import Trace

PATH_HELP = "a trace, a folder of traces or an archive of them"
PREFIX_HELP = "read only files whose names begin so, the rest of the name being the rank"


def add_reading_options(parser: ArgumentParser) -> None:
    parser.add_argument("--prefix", help=PREFIX_HELP)
    add_jobs_option(parser)


def add_jobs_option(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--jobs", type=positive_int, metavar="N", help="processes that read files (default: one per core)"
    )


def positive_int(text: str) -> int:
    from argparse import ArgumentTypeError

    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a number of processes")
    return int(text)


def load_trace(args: Namespace, transform: Callable[[Trace], None] | None = None) -> Trace:
    return load_paths(args.paths, args.prefix, args.jobs, transform)


def load_paths(
    paths: Sequence[str],
    prefix: str | None = None,
    jobs: int | None = None,
    transform: Callable[[Trace], None] | None = None,
) -> Trace:
    """The process is the command's own: while it reads, its memory may be limited."""
    from rankscope import pipeline

    with ReadProgress() as progress:
        return pipeline.load(
            paths, prefix=prefix, jobs=jobs, progress=progress, transform=transform, may_limit_memory=True
        )
