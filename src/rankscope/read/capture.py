"""Reads all files of a capture: asks the readers whose each file is, reads in processes, keeps what went wrong."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypedDict, cast

from rankscope.errors import BadFileError, InputError
from rankscope.model.tables import MISSING, Part, Table, Trace, concat
from rankscope.read import Reader, entry_point_readers, own_readers
from rankscope.read.backend_dumps import join_backends
from rankscope.read.cache import entry_name, is_stored, root_of
from rankscope.read.desync import reported_ranks
from rankscope.read.files import Source, Unreadable, add_folder_hosts, find_sources, name_source
from rankscope.read.manifest import drop_parts
from rankscope.read.merge import Merger, drop_duplicate_ranks
from rankscope.read.mixed_dumps import leave_out_other_captures
from rankscope.read.remote import is_url, without_secrets
from rankscope.read.stale_dumps import LeftOut
from rankscope.read.torchcomms import number_calls
from rankscope.read.two_recorders import join_recorders

# Below this, starting processes and sending their results back costs more than it saves.
_PARALLEL_BYTES = 64 << 20
_MEMORY_PER_FILE = 200  # times its size: what the largest honest file may need while it is read
_CONNECTIONS = 16  # to object stores, where most of the time is waiting
_PARTIAL = ".partial"  # how the collector names what it is still writing
# A capture that has rows in none of these tells nothing about a job.
_TELLING_TABLES = (
    *("ranks", "profiles", "compile_logs", "et_traces"),
    *("thread_stacks", "metrics", "manifests", "desync_states"),
)

Row = dict[str, Any]
Claim = tuple[Source, str]  # the file and the module name of its reader
Result = tuple[Source, str, list["Table | Part"], BadFileError | None]
# Reads every claim with the given function, wherever that may be, and gives the results in the order of the claims.
Spread = Callable[[Callable[[Claim], Result], Sequence[Claim]], Iterator[Result]]


class Progress(Protocol):
    def __call__(self, done: int, total: int, what: str) -> None: ...


@dataclass(frozen=True)
class Options:
    """How to read. ReadSettings below names the same for callers who give only some of them."""

    prefix: str | None = None  # only files whose names begin so
    jobs: int | None = None  # processes that read
    progress: Progress | None = None
    may_limit_memory: bool = False  # the process is ours alone: a hostile file may end in a MemoryError
    cache: str | None = None  # folder or URL that keeps the parts of large traces; None: only while this process runs
    with_stacks: bool = False  # also the Python functions of profiler traces
    cluster: Spread | None = None  # where to read; None: in processes of this machine
    capture: int | None = None  # which of the captures that the dumps are of; None: the newest that is whole


class ReadSettings(TypedDict, total=False):
    prefix: str | None
    jobs: int | None
    progress: Progress | None
    may_limit_memory: bool
    cache: str | None
    with_stacks: bool
    cluster: Spread | None
    capture: int | None


def read_capture(paths: Sequence[str], options: Options) -> Trace:
    """The raw tables of everything at the paths; bad files are rows of `files`, not exceptions."""
    found, unreadable = find_sources(paths)
    shown = tuple(map(without_secrets, paths))
    claims, rows = _claim(found, options)
    rows += [_unreadable_row(item) for item in unreadable]
    if not claims:
        raise _nothing_found(shown, rows, options.prefix)
    merger = Merger()
    parts: dict[str, list[Part]] = {}
    with _without_collector():
        for done, (source, reader, results, problem) in enumerate(_read_all(claims, options), 1):
            tables = [result for result in results if isinstance(result, Table)]
            merger.add(tables)
            for part in (result for result in results if isinstance(result, Part)):
                parts.setdefault(part.table, []).append(part)
            if problem is not None:
                rows.append(_file_row(source, reader, "damaged", problem.message, problem.hint))
            elif not any(table.name == "files" for table in tables):  # a reader adds its own row for a partial file
                rows.append(_file_row(source, reader, "read"))
            if options.progress is not None:
                options.progress(done, len(claims), "reading")
        merger.add(reported_ranks(merger.parts))
        trace = Trace(shown, merger.tables(), parts)
    _finish_files(trace, rows, options.capture)
    if not any(map(trace.has, _TELLING_TABLES)):
        raise _all_damaged(trace) if _damaged(trace) else _nothing_found(shown, _rows(trace), options.prefix)
    return trace


@contextmanager
def _without_collector() -> Iterator[None]:
    """Reading makes millions of objects and no cycles: looking for cycles would cost a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _claim(found: Sequence[Source], options: Options) -> tuple[list[Claim], list[Row]]:
    """Asks the readers, in their order, whose each file is."""
    readers, prefix = own_readers(), options.prefix
    claimed: list[tuple[Source, Reader]] = []
    rows: list[Row] = []
    candidates: list[Source] = []
    for source in found:
        if source.shown.endswith(_PARTIAL):
            rows.append(_file_row(source, "", "ignored", "is unfinished: its process was still writing, or was ended"))
            continue
        named = name_source(source, prefix)
        if named is None:
            rows.append(_file_row(source, "", "ignored", f"its name has no {prefix} with a rank behind it"))
        else:
            candidates.append(named)
    for named, head in zip(candidates, _heads(candidates), strict=True):
        if isinstance(head, BadFileError):
            rows.append(_file_row(named, "", "damaged", head.message, head.hint))
            continue
        reader = _reader_of(head, named, readers)
        if reader is None:
            rows.append(_file_row(named, "", "ignored", "is of no format that rankscope reads"))
        else:
            # Logs of other tools have names of their own: the numbers in them are no ranks, and the rest is no host.
            is_named = getattr(reader, "NAMES_TELL_RANK", True)
            claimed.append((named if is_named else replace(named, rank=MISSING, host=""), reader))
    sources = add_folder_hosts([source for source, _ in claimed])
    modules = [cast(Any, reader).__name__ for _, reader in claimed]
    root = root_of(options.cache)
    here = root_of(None) if is_url(root) else root
    prepared = []
    for number, source in enumerate(sources):
        wanted = replace(source, file_id=number, with_stacks=options.with_stacks)
        entry = entry_name(wanted.identity)
        prepared.append(
            replace(wanted, workspace=os.path.join(root, entry), scratch=os.path.join(here, f"{entry}-plain"))
        )
    return list(zip(prepared, modules, strict=True)), rows


def _heads(sources: Sequence[Source]) -> Iterator[bytes | BadFileError]:
    if all(source.remote is None for source in sources):
        yield from map(_head, sources)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        yield from pool.map(_head, sources)


def _head(source: Source) -> bytes | BadFileError:
    try:
        return source.head()
    except BadFileError as error:
        return error


def _n_jobs(options: Options) -> int:
    return options.jobs or os.cpu_count() or 1


def _reader_of(head: bytes, source: Source, readers: Sequence[Reader]) -> Reader | None:
    for reader in readers:
        if reader.sniff(head, source.shown):
            return reader
    return next((reader for reader in entry_point_readers() if reader.sniff(head, source.shown)), None)


def _read_all(claims: Sequence[Claim], options: Options) -> Iterator[Result]:
    if options.cluster is not None:
        yield from options.cluster(_read_one, claims)
        return
    n_jobs = min(_n_jobs(options), len(claims))
    if n_jobs > 1 and (options.jobs is not None or _work(claims) >= _PARALLEL_BYTES):
        yield from _read_parallel(claims, n_jobs)
        return
    n_largest = max(source.n_bytes for source, _ in claims)
    with _limited_memory(n_largest) if options.may_limit_memory else nullcontext():
        yield from map(_read_one, claims)


def _work(claims: Sequence[Claim]) -> int:
    """Bytes to be read, in terms of a dump's; what the cache holds already is no work."""
    costs = {module: getattr(sys.modules[module], "COST", 1) for _, module in claims}
    return sum(source.n_bytes * costs[module] for source, module in claims if not is_stored(source.workspace))


def _read_parallel(claims: Sequence[Claim], n_jobs: int) -> Iterator[Result]:
    """In processes: unpickling holds the interpreter's lock. Forked where possible, as that imports nothing again."""
    import multiprocessing
    import warnings
    from concurrent.futures import ProcessPoolExecutor

    # A process that has threads, of the database or of a store, must not be forked: a lock could stay held for ever.
    can_fork = sys.platform == "linux" and not {"duckdb", "fsspec"} & sys.modules.keys()
    context = multiprocessing.get_context("fork" if can_fork else "spawn")
    n_largest = max(source.n_bytes for source, _ in claims)
    chunk = max(1, min(16, len(claims) // (4 * n_jobs)))
    with warnings.catch_warnings():
        # The child only unpickles and makes arrays: no lock that another thread may hold is ever taken there.
        warnings.simplefilter("ignore", DeprecationWarning)
        with ProcessPoolExecutor(n_jobs, context, _set_up_process, (n_largest,)) as pool:
            yield from pool.map(_read_one, claims, chunksize=chunk)


def _set_up_process(n_largest: int) -> None:
    gc.disable()  # a collection would copy every page that the process shares with its parent
    _limited_memory(n_largest).__enter__()


@contextmanager
def _limited_memory(n_largest: int) -> Iterator[None]:
    """The process may grow by what honest files need, many times over, and no further.

    Ten bytes suffice to make an unpickler reserve 64 GB. The limit is enforced on Linux alone.
    """
    if sys.platform != "linux":
        yield
        return
    import resource

    with open("/proc/self/statm") as status:
        n_now = int(status.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = n_now + max(4 << 30, _MEMORY_PER_FILE * n_largest)
    limits = [limit for limit in (wanted, soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _read_one(claim: Claim) -> Result:
    source, module = claim
    reader = cast(Reader, importlib.import_module(module))
    try:
        return source, reader.NAME, list(reader.read(source)), None
    except BadFileError as error:
        return source, reader.NAME, [], error


def _file_row(source: Source, reader: str, status: str, problem: str = "", hint: str = "") -> Row:
    return {**source.file_columns(), "source": reader, "status": status, "problem": problem, "hint": hint}


def _unreadable_row(item: Unreadable) -> Row:
    return {"path": item.shown, "rank": MISSING, "status": item.status, "problem": item.problem, "hint": item.hint}


def _finish_files(trace: Trace, rows: list[Row], capture: int | None) -> None:
    """One row per file; files that another one of the same rank replaced are marked."""
    files = concat("files", [trace.table("files"), Table.from_rows("files", rows)])
    trace.tables["files"] = files
    dropped: dict[int, int] = {}
    unused: set[int] = set()
    left_out: dict[int, LeftOut] = {}
    if trace.has("ranks"):
        number_calls(trace.tables)
        joined = join_backends(trace.tables)
        left_out = leave_out_other_captures(trace.tables, capture)
        join_recorders(trace.tables)
        dropped = drop_duplicate_ranks(trace.tables)
        left_out.update({file: left_out[other] for file, other in joined.items() if other in left_out})
        dropped.update({file: dropped[other] for file, other in joined.items() if other in dropped})
    if trace.has("manifests"):
        unused = drop_parts(trace.tables)
    listed = sorted(files.rows(), key=lambda row: (row["file_id"] == MISSING, row["file_id"], row["path"]))
    paths = {row["file_id"]: row["path"] for row in listed}
    for row in listed:
        if row["file_id"] in left_out:
            reason = left_out[row["file_id"]]
            row.update(status=reason.status, problem=reason.problem, hint=reason.hint)
        elif row["file_id"] in dropped:
            row.update(status="duplicate", problem=f"was left out for {paths[dropped[row['file_id']]]}")
        elif row["file_id"] in unused:
            row.update(status="ignored", problem="another manifest tells the same of its ranks")
    trace.tables["files"] = Table.from_rows("files", listed)


def _nothing_found(given: Sequence[str], rows: Sequence[Row], prefix: str | None) -> InputError:
    where = ", ".join(given)
    broken = [row for row in rows if row["status"] == "damaged"]
    if broken:
        return InputError(f"{broken[0]['path']}: {broken[0]['problem']}", broken[0]["hint"])
    if prefix is not None and rows:
        return InputError(
            f"{where}: no file whose name has {prefix} and a rank behind it",
            "leave out --prefix to read whatever is recognized by its content",
        )
    if rows and all(row["path"].endswith((".et", ".et.gz")) for row in rows):
        return InputError(f"{where}: a Chakra trace is no record of a job", f"rankscope chakra validate {where}")
    if rows:
        names = ", ".join(row["path"].rsplit("/", 1)[-1] for row in rows[:3]) + (", ..." if len(rows) > 3 else "")
        return InputError(
            f"{where}: no trace among {len(rows)} files ({names})",
            "give the folder of the Flight Recorder dumps (TORCH_FR_DUMP_TEMP_FILE), of the profiler's traces or of "
            "TORCH_TRACE",
        )
    return InputError(
        f"{where}: the folder is empty",
        "dumps appear when a job times out, traces when the profiler's schedule ends: see docs/sources",
    )


def _rows(trace: Trace) -> list[Row]:
    return list(trace.table("files").rows())


def _damaged(trace: Trace) -> list[Row]:
    return [row for row in _rows(trace) if row["status"] == "damaged"]


def _all_damaged(trace: Trace) -> InputError:
    row = _damaged(trace)[0]
    n_files = len(trace.table("files"))
    return InputError(f"none of {n_files} files is usable; {row['path']} {row['problem']}", row["hint"])
