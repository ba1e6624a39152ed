"""Reads all files of a capture: asks the readers which file is theirs, reads in processes, records what went wrong."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypedDict, cast

import numpy as np

from rankscope.errors import BadFileError, InputError
from rankscope.model.parts import load_module
from rankscope.model.tables import MISSING, SCHEMA, Part, Table, Trace, concat
from rankscope.read import Reader, other_readers, own_readers
from rankscope.read.backend_dumps import join_backends
from rankscope.read.batches import Claim as Claim
from rankscope.read.batches import plan_batches
from rankscope.read.border import CPU_S, OverBudget, cpu_budget, read_bounded, sniffs
from rankscope.read.cache import entry_name, is_stored, root_of
from rankscope.read.expected import Expected, expected
from rankscope.read.files import Source, add_folder_hosts, find_sources, name_source
from rankscope.read.in_processes import limited_memory, read_in_processes
from rankscope.read.manifest import drop_parts
from rankscope.read.merge import Merger, drop_duplicate_ranks
from rankscope.read.mixed_dumps import Captures, find_captures, leave_out_other_captures
from rankscope.read.profiled_worlds import profiled_captures
from rankscope.read.remote import is_url, without_secrets
from rankscope.read.stale_dumps import LeftOut
from rankscope.read.torchcomms import number_calls
from rankscope.read.two_recorders import join_recorders
from rankscope.read.walking import Unreadable
from rankscope.read.worlds import files_of_other_worlds, separate_worlds

# Below this, starting processes and sending their results back costs more than it saves.
_PARALLEL_BYTES = 64 << 20
_CONNECTIONS = 16  # to object stores, where most of the time is waiting
_PARTIAL = ".partial"  # how the collector names what it is still writing

HOW_TO_GET_TRACES = """\
rankscope reads Flight Recorder dumps, torch.profiler and Nsight Systems traces, execution traces, TORCH_TRACE and \
TORCH_LOGS logs, stack dumps, training metrics, and failures in the job's own log. Three ways to get traces:
1. rankscope record -o traces -- torchrun ... train.py
2. a job that hangs: set TORCH_FR_DUMP_TEMP_FILE=/shared/dumps/nccl_trace_rank_ TORCH_NCCL_DUMP_ON_TIMEOUT=1
3. a slow job: torch.profiler, and prof.export_chrome_trace(f"traces/trace_{rank}.json.gz") on every rank
rankscope help traces says more"""

Row = dict[str, Any]
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
    limits: bool = True  # a file may take only as much memory and time as honest ones of its size
    cache: str | None = None  # folder or URL that keeps the parts of large traces; None: only while this process runs
    with_stacks: bool = False  # also the Python functions of profiler traces
    cluster: Spread | None = None  # where to read; None: in processes of this machine
    capture: int | None = None  # which of the captures that the dumps are of; None: the newest that is whole
    one_world: bool = False  # profiles in different folders belong together: the user says so


class ReadSettings(TypedDict, total=False):
    prefix: str | None
    jobs: int | None
    progress: Progress | None
    limits: bool
    cache: str | None
    with_stacks: bool
    cluster: Spread | None
    capture: int | None
    one_world: bool


def read_capture(paths: Sequence[str], options: Options) -> Trace:
    """The raw tables of everything at the paths; bad files are rows of `files`, not exceptions."""
    sources, unreadable = find_sources(paths, options.progress)
    shown = tuple(map(without_secrets, paths))
    claims, rows = _claim(sources, options)
    rows += [_unreadable_row(item) for item in unreadable]
    if not claims:
        raise _nothing_found(shown, rows, options.prefix)
    merger = Merger()
    parts: dict[str, list[Part]] = {}
    if options.progress is not None:
        options.progress(0, len(claims), "reading")
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
        if "desync_states" in merger.parts:
            from rankscope.read.desync import reported_ranks  # with all that reads texts, which few captures need

            merger.add(reported_ranks(merger.parts))
        trace = Trace(shown, merger.tables(), parts)
    _finish_files(trace, rows, options.capture, options.one_world)
    if not any(trace.has(spec.name) for spec in SCHEMA.values() if spec.is_source):
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


def _claim(files: Sequence[Source], options: Options) -> tuple[list[Claim], list[Row]]:
    """Asks the readers, in their order, which file is theirs."""
    prefix = options.prefix
    claimed: list[tuple[Source, Reader]] = []
    rows: list[Row] = []
    candidates: list[Source] = []
    for source in files:
        if source.shown.endswith(_PARTIAL):
            rows.append(_file_row(source, "", "ignored", "is incomplete: its process was still writing, or died"))
            continue
        named = name_source(source, prefix)
        if named is None:
            rows.append(_file_row(source, "", "ignored", f"its name does not contain {prefix} followed by a rank"))
        else:
            candidates.append(named)
    for done, (named, head) in enumerate(zip(candidates, _heads(candidates), strict=True)):
        if options.progress is not None:
            options.progress(done, len(candidates), "looking at files")
        if isinstance(head, BadFileError):
            rows.append(_file_row(named, "", "damaged", head.message, head.hint))
            continue
        try:
            reader = _reader_of(head, named)
        except BadFileError as error:
            rows.append(_file_row(named, "", "damaged", error.message, error.hint))
            continue
        due = expected(named.shown, head)
        if due is not None and (reader is None or due.reader != reader.NAME):
            rows.append(_file_row(named, due.reader, "damaged", *_not_as_named(due, head)))
        elif reader is None:
            rows.append(_file_row(named, "", "ignored", "does not have a format that rankscope reads"))
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
        wanted = replace(source, file_id=number, with_stacks=options.with_stacks, is_limited=options.limits)
        entry = entry_name(wanted.identity)
        prepared.append(
            replace(wanted, workspace=os.path.join(root, entry), scratch=os.path.join(here, f"{entry}-plain"))
        )
    return list(zip(prepared, modules, strict=True)), rows


def _not_as_named(due: Expected, head: bytes) -> tuple[str, str]:
    if not head:
        return "is empty (0 bytes)", "the process ended before it wrote it, or the copy failed: copy it again"
    return (
        f"has the name of {due.what}, but another content, or has lost its beginning",
        "copy it again; if it is something else, rename it or remove it from the folder",
    )


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


def _reader_of(head: bytes, source: Source) -> Reader | None:
    for readers in (own_readers, other_readers):
        for unloaded in readers():
            if unloaded.may_take(head, source.shown):
                reader = unloaded.load()
                if sniffs(reader, head, source):
                    return reader
    return None


def _read_all(claims: Sequence[Claim], options: Options) -> Iterator[Result]:
    if options.cluster is not None:
        yield from options.cluster(_read_one, claims)
        return
    n_jobs = min(_n_jobs(options), len(claims))
    if options.jobs is None and _work(claims) < _PARALLEL_BYTES:
        n_jobs = 1
    batches = plan_batches(claims, n_jobs)
    n_largest = max(sum(source.n_bytes for source, _ in batch) for batch in batches)
    if n_jobs > 1:
        yield from _in_order(read_in_processes(_read_batch, batches, n_jobs, n_largest))
        return
    with limited_memory(n_largest) if options.limits else nullcontext():
        yield from _in_order(map(_read_batch, batches))


def _in_order(batches: Iterable[Sequence[Result]]) -> Iterator[Result]:
    """The same files give the same tables, whichever of them were read together."""
    early: dict[int, Result] = {}
    n_given = 0
    for batch in batches:
        early.update({result[0].file_id: result for result in batch})
        while n_given in early:
            yield early.pop(n_given)
            n_given += 1


def _work(claims: Sequence[Claim]) -> int:
    """Bytes to be read, in terms of a dump's; what the cache holds already is no work."""
    costs = {module: getattr(sys.modules[module], "COST", 1) for _, module in claims}
    return sum(source.n_bytes * costs[module] for source, module in claims if not is_stored(source.workspace))


def _read_batch(claims: Sequence[Claim]) -> list[Result]:
    if len(claims) > 1:
        reader = cast(Any, load_module(claims[0][1]))
        try:
            with cpu_budget(CPU_S if claims[0][0].is_limited else 0):
                read = reader.read_together([source for source, _ in claims])
            return [(source, reader.NAME, tables, None) for (source, _), tables in zip(claims, read, strict=True)]
        except (Exception, OverBudget):
            pass  # which of them it is shows when each is read alone
    return list(map(_read_one, claims))


def _read_one(claim: Claim) -> Result:
    source, module = claim
    reader = cast(Reader, load_module(module))
    try:
        return source, reader.NAME, read_bounded(reader, source, is_limited=source.is_limited), None
    except BadFileError as error:
        return source, reader.NAME, [], error


def _file_row(source: Source, reader: str, status: str, problem: str = "", hint: str = "") -> Row:
    return {**source.file_columns(), "source": reader, "status": status, "problem": problem, "hint": hint}


def _unreadable_row(item: Unreadable) -> Row:
    return {"path": item.shown, "rank": MISSING, "status": item.status, "problem": item.problem, "hint": item.hint}


def _finish_files(trace: Trace, rows: list[Row], chosen: int | None, one_world: bool) -> None:
    """One row per file; files that another one of the same rank replaced are marked. Worlds are taken apart."""
    trace.tables["files"] = concat("files", [trace.table("files"), Table.from_rows("files", rows)])
    files = trace.tables["files"]
    captures, joined = Captures((), 0), dict[int, int]()
    if trace.has("ranks"):
        number_calls(trace.tables)
        joined = join_backends(trace.tables)
        captures = find_captures(trace.tables, chosen)
    elif trace.has("profiles") and not one_world:
        captures = profiled_captures(trace, chosen)
    moved = separate_worlds(trace, captures, joined, is_chosen=chosen is not None)
    for world in trace.beside:
        options = replace(captures, number=world.world.number) if world.world else captures
        foreign = files_of_other_worlds(world, files)
        gone = _clean_up(world, options, joined)
        # What has no number could not be looked at: the first world tells of it.
        _list_files(world, files.take(np.flatnonzero(files.array("file_id") != MISSING)), gone, foreign)
    _list_files(trace, files, _clean_up(trace, captures, joined), moved)


class _Gone(NamedTuple):
    """Files of which nothing is in the tables."""

    left_out: dict[int, LeftOut]
    dropped: dict[int, int]  # for another file
    unused: set[int]


def _clean_up(trace: Trace, captures: Captures, joined: Mapping[int, int]) -> _Gone:
    left_out: dict[int, LeftOut] = {}
    dropped: dict[int, int] = {}
    if trace.has("ranks"):
        left_out = leave_out_other_captures(trace.tables, captures)
        join_recorders(trace.tables)
        dropped = drop_duplicate_ranks(trace.tables)
        left_out.update({file: left_out[other] for file, other in joined.items() if other in left_out})
        dropped.update({file: dropped[other] for file, other in joined.items() if other in dropped})
    return _Gone(left_out, dropped, drop_parts(trace.tables) if trace.has("manifests") else set())


def _list_files(trace: Trace, files: Table, gone: _Gone, moved: Mapping[int, LeftOut]) -> None:
    left_out = {**gone.left_out, **moved}
    listed = sorted(files.rows(), key=lambda row: (row["file_id"] == MISSING, row["file_id"], row["path"]))
    paths = {row["file_id"]: row["path"] for row in listed}
    for row in listed:
        if row["file_id"] in left_out:
            reason = left_out[row["file_id"]]
            row.update(status=reason.status, problem=reason.problem, hint=reason.hint)
        elif row["file_id"] in gone.dropped:
            row.update(status="duplicate", problem=f"was replaced by {paths[gone.dropped[row['file_id']]]}")
        elif row["file_id"] in gone.unused:
            row.update(status="ignored", problem="another manifest has the same for its ranks")
    trace.tables["files"] = Table.from_rows("files", listed)


def _nothing_found(given: Sequence[str], rows: Sequence[Row], prefix: str | None) -> InputError:
    where = ", ".join(given)
    broken = [row for row in rows if row["status"] == "damaged"]
    if broken:
        return InputError(f"{broken[0]['path']}: {broken[0]['problem']}", broken[0]["hint"])
    if prefix is not None and rows:
        return InputError(
            f"no trace in {where}: no file name contains {prefix} followed by a rank",
            "leave out --prefix to read every file that rankscope recognizes",
        )
    if rows and all(row["path"].endswith((".et", ".et.gz")) for row in rows):
        return InputError(f"{where} is a Chakra trace, not a trace of a job", f"rankscope chakra validate {where}")
    if rows:
        return InputError(_no_trace(where, rows), HOW_TO_GET_TRACES)
    return InputError(f"no trace in {where}: the folder is empty", HOW_TO_GET_TRACES)


def _no_trace(where: str, rows: Sequence[Row]) -> str:
    """What was looked at."""
    if len(rows) == 1:
        return f"no trace in this file: {rows[0]['path']} {rows[0]['problem']}"
    names = ", ".join(row["path"].rsplit("/", 1)[-1] for row in rows[:3]) + (", ..." if len(rows) > 3 else "")
    return f"no trace in {where}: none of its {len(rows):,} files ({names}) has a format that rankscope reads"


def _rows(trace: Trace) -> list[Row]:
    return list(trace.table("files").rows())


def _damaged(trace: Trace) -> list[Row]:
    return [row for row in _rows(trace) if row["status"] == "damaged"]


def _all_damaged(trace: Trace) -> InputError:
    row = _damaged(trace)[0]
    n_files = len(trace.table("files"))
    problem = f"{row['path']} {row['problem']}"
    return InputError(problem if n_files == 1 else f"none of the {n_files:,} files can be used: {problem}", row["hint"])
