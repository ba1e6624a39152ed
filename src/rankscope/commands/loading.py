"""How the commands read traces: the options that choose what is read and where, and the progress bar meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rankscope.commands import SHARED_OPTIONS
from rankscope.commands.interrupts import keeps
from rankscope.commands.progress import Progress

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace, _ArgumentGroup
    from typing import Unpack

    from rankscope.model.finding import Report
    from rankscope.model.tables import Trace
    from rankscope.read.capture import ReadSettings

PATH_HELP = "a trace file, a job's log, a folder, a pattern, an archive, a URL, or - for standard input"
PREFIX_HELP = "read only files whose names contain PREFIX followed by the rank"


def add_reading_options(parser: ArgumentParser) -> None:
    """The options of every command that reads traces; `rankscope help reading` describes them."""
    shared = parser.add_argument_group(SHARED_OPTIONS)
    shared.add_argument("-p", "--prefix", help=PREFIX_HELP)
    shared.add_argument(
        "--capture",
        type=positive_int,
        metavar="N",
        help="which capture to diagnose, if dumps of several jobs or attempts are in one folder (default: the newest "
        "complete one, with those that ran at the same time)",
    )
    _add_scale_options(shared)


def add_replica_options(parser: ArgumentParser) -> None:
    """For jobs whose replicas count from 0, where the size of a replica cannot be inferred."""
    parser.add_argument(
        "--transform-ft", action="store_true", help="torchft: convert ranks within replicas to global ranks"
    )
    parser.add_argument("--group-world-size", type=positive_int, metavar="N", help="torchft: ranks per replica")


def replica_shift(args: Namespace) -> Callable[[Trace], None] | None:
    from rankscope.errors import UsageError
    from rankscope.model.replicas import shift_replica_ranks

    if not args.transform_ft:
        return None
    if not args.group_world_size:
        raise UsageError("--transform-ft needs to know how many ranks a replica has", "add --group-world-size N")

    def shift(trace: Trace) -> None:
        trace.tables["group_config"] = shift_replica_ranks(trace.table("group_config"), args.group_world_size)

    return shift


def add_scale_options(parser: ArgumentParser) -> None:
    """Where files are read, and where what was made of them is kept."""
    _add_scale_options(parser.add_argument_group(SHARED_OPTIONS))


def _add_scale_options(shared: _ArgumentGroup) -> None:
    shared.add_argument(
        "--jobs", type=positive_int, metavar="N", help="read files in N processes (default: one per core)"
    )
    shared.add_argument("--cluster", metavar="ADDRESS", help="read on a Dask cluster: scheduler address, or local")
    kept = shared.add_mutually_exclusive_group()
    kept.add_argument(
        "--cache",
        metavar="DIR",
        help="folder or URL that keeps the tables of large traces for the next run (default: $RANKSCOPE_CACHE, or "
        "~/.cache/rankscope)",
    )
    kept.add_argument("--no-cache", action="store_true", help="keep nothing for the next run")
    shared.add_argument(
        "--debug", action="store_true", help="stop at the first bug in rankscope and show its traceback"
    )
    shared.add_argument("--stacks", action="store_true", help="also read the Python stacks of profiler traces")


def positive_int(text: str) -> int:
    from argparse import ArgumentTypeError

    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def load_trace(args: Namespace, transform: Callable[[Trace], None] | None = None) -> Trace:
    settings: ReadSettings = {"prefix": args.prefix, "jobs": args.jobs, "with_stacks": args.stacks}
    settings["capture"] = getattr(args, "capture", None)  # fr has torch's options only
    settings["one_world"] = bool(getattr(args, "durations_from", None))
    settings["cache"] = None if args.no_cache else args.cache or default_cache()
    if args.cluster:
        from rankscope.scale import on_cluster

        settings["cluster"] = on_cluster(args.cluster, args.jobs)
    if "-" in args.paths:
        return _with_standard_input(args.paths, transform, **settings)
    return load_paths(args.paths, transform, **settings)


def _with_standard_input(
    paths: Sequence[str], transform: Callable[[Trace], None] | None, **settings: Unpack[ReadSettings]
) -> Trace:
    """`-` is an excerpt of a log, pasted or piped. Readers need a file: it has one while it is read."""
    import shutil
    import sys
    from tempfile import TemporaryDirectory

    from rankscope.errors import RankscopeError

    with TemporaryDirectory(prefix="rankscope-") as folder:
        excerpt = os.path.join(folder, "standard_input.log")
        with open(excerpt, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        try:
            trace = load_paths([excerpt if path == "-" else path for path in paths], transform, **settings)
        except RankscopeError as error:
            raise type(error)(error.message.replace(excerpt, "standard input"), error.hint) from error
    trace.paths = tuple(paths)
    return trace


def load_paths(
    paths: Sequence[str], transform: Callable[[Trace], None] | None = None, **settings: Unpack[ReadSettings]
) -> Trace:
    """As the library reads, with a progress bar."""
    from rankscope import pipeline

    cache = settings.get("cache")
    before = _entries(cache)
    with keeps(lambda: _what_is_cached(cache, before)), Progress() as progress:
        settings["progress"] = progress
        return pipeline.load(paths, transform=transform, **settings)


def diagnose_trace(trace: Trace) -> Report:
    from rankscope import pipeline

    with Progress() as progress:
        return pipeline.diagnose(trace, progress)


def _entries(cache: str | None) -> set[str]:
    try:
        return set(os.listdir(cache)) if cache else set()
    except OSError:  # not there yet, or a URL
        return set()


def _what_is_cached(cache: str | None, before: set[str]) -> str:
    """What an interrupted reading leaves for the next run."""
    from rankscope.model.finding import count_noun

    n_files = len(_entries(cache) - before)
    if not n_files:
        return ""
    return f"{count_noun(n_files, 'trace')} read so far stay in {cache}; the same command continues from there"


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
