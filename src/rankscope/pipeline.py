"""The order of the stages: load(paths) -> Trace, diagnose(trace) -> Report. Nobody else knows it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from rankscope.analyze import run_rules
from rankscope.analyze.clocks import align_clocks
from rankscope.analyze.groups import resolve_groups
from rankscope.analyze.matching import match_collectives
from rankscope.analyze.view import derived, signatures_of
from rankscope.errors import BadFileError, InputError
from rankscope.model.finding import SCHEMA_NAME, Capture, Report
from rankscope.model.tables import MISSING, Table, Trace, concat
from rankscope.read import Reader, entry_point_readers, own_readers
from rankscope.read.files import Source, Unreadable, add_folder_hosts, find_sources, name_source
from rankscope.read.merge import Merger, drop_duplicate_ranks

# Below this, starting processes costs more than it saves.
_PARALLEL_BYTES = 8 << 20


class Progress(Protocol):
    def __call__(self, done: int, total: int, what: str) -> None: ...


def load(
    paths: Sequence[str | os.PathLike[str]],
    *,
    prefix: str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Reads every trace at the given paths and matches what belongs together."""
    given = [os.fspath(path) for path in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]
    found, unreadable = find_sources(given)
    claimed, rows = _claim(found, prefix)
    rows += [_lost_row(item) for item in unreadable]
    if not claimed:
        raise _nothing_found(given, rows, prefix)
    merger = Merger()
    for done, (source, tables, problem) in enumerate(_read_all(claimed, jobs), 1):
        if problem is None:
            merger.add(tables)
            has_problem = any(table.name == "files" for table in tables)
            if not has_problem:
                rows.append(_file_row(source, "flight_recorder", "read"))
        else:
            rows.append(_file_row(source, "flight_recorder", "damaged", problem.message, problem.hint))
        if progress is not None:
            progress(done, len(claimed), "reading dumps")
    trace = Trace(tuple(given), merger.tables())
    _finish_files(trace, rows)
    if not trace.has("ranks"):
        raise _all_damaged(trace)
    _derive(trace)
    return trace


def _derive(trace: Trace) -> None:
    """The shared steps: who is in which group, whose clock is off, which calls belong together."""
    trace.tables.update(resolve_groups(trace))
    trace.tables.update(align_clocks(trace))
    trace.tables.update(match_collectives(trace, derived(trace, signatures_of)))


def diagnose(trace: Trace) -> Report:
    """Runs all rules; the first finding is the root cause."""
    findings, effects, checks = run_rules(trace)
    return Report(SCHEMA_NAME, describe_capture(trace), tuple(findings), tuple(checks), tuple(effects))


def describe_capture(trace: Trace) -> Capture:
    files, ranks, calls = trace.table("files"), trace.table("ranks"), trace.table("collectives")
    present = set(ranks.array("rank").tolist())
    members = set(trace.table("group_members").array("rank").tolist())
    sources: dict[str, int] = {}
    for name, status in zip(files.text("source").tolist(), files.text("status").tolist(), strict=True):
        if name and status != "ignored":
            sources[name] = sources.get(name, 0) + 1
    created = calls.array("created_ns")
    return Capture(
        paths=trace.paths,
        ranks=tuple(sorted(present)),
        world_size=max(present | members, default=-1) + 1,
        sources=sources,
        hosts=tuple(sorted({host for host in ranks.text("host").tolist() if host})),
        n_groups=len(trace.table("groups")),
        n_calls=len(calls),
        first_ns=int(created.min()) if len(calls) else None,
        last_ns=int(created.max()) if len(calls) else None,
    )


def _claim(found: Sequence[Source], prefix: str | None) -> tuple[list[tuple[Source, Reader]], list[dict[str, Any]]]:
    """Asks the readers, in their order, whose each file is."""
    readers = own_readers()
    claimed: list[tuple[Source, Reader]] = []
    rows: list[dict[str, Any]] = []
    for source in found:
        named = name_source(source, prefix)
        if named is None:
            rows.append(_file_row(source, "", "ignored", f"its name does not begin with {prefix}"))
            continue
        try:
            head = named.head()
        except BadFileError as error:
            rows.append(_file_row(named, "", "damaged", error.message, error.hint))
            continue
        reader = next((reader for reader in readers if reader.sniff(head, named.shown)), None)
        reader = reader or next((reader for reader in entry_point_readers() if reader.sniff(head, named.shown)), None)
        if reader is None:
            rows.append(_file_row(named, "", "ignored", "is of no format that rankscope reads"))
        elif named.rank < 0:
            rows.append(
                _file_row(
                    named, "", "damaged", "has no rank in its name", "rename it so that its name ends in the rank"
                )
            )
        else:
            claimed.append((named, reader))
    hosts = add_folder_hosts([source for source, _ in claimed])
    numbered = [replace(source, file_id=number) for number, source in enumerate(hosts)]
    return list(zip(numbered, (reader for _, reader in claimed), strict=True)), rows


Result = tuple[Source, list[Table], BadFileError | None]


def _read_all(claimed: Sequence[tuple[Source, Reader]], jobs: int | None) -> Iterator[Result]:
    n_bytes = sum(source.n_bytes for source, _ in claimed)
    n_jobs = min(jobs or os.cpu_count() or 1, len(claimed))
    if n_jobs == 1 or (jobs is None and n_bytes < _PARALLEL_BYTES):
        yield from map(_read_one, claimed)
        return
    yield from _read_parallel([(source, reader.__name__) for source, reader in claimed], n_jobs)  # type: ignore[attr-defined]


def _read_parallel(claimed: Sequence[tuple[Source, str]], n_jobs: int) -> Iterator[Result]:
    """In processes: unpickling holds the interpreter's lock. Forked where possible, as that imports nothing again."""
    import multiprocessing
    import sys
    import warnings
    from concurrent.futures import ProcessPoolExecutor

    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    chunk = max(1, min(16, len(claimed) // (4 * n_jobs)))
    with warnings.catch_warnings(), ProcessPoolExecutor(n_jobs, mp_context=context) as pool:
        # The child only unpickles and makes arrays: no lock that another thread may hold is ever taken there.
        warnings.simplefilter("ignore", DeprecationWarning)
        yield from pool.map(_read_named, claimed, chunksize=chunk)


def _read_named(claim: tuple[Source, str]) -> Result:
    import importlib
    from typing import cast

    return _read_one((claim[0], cast(Reader, importlib.import_module(claim[1]))))


def _read_one(claim: tuple[Source, Reader]) -> Result:
    source, reader = claim
    try:
        return source, list(reader.read(source)), None
    except BadFileError as error:
        return source, [], error


def _file_row(source: Source, reader: str, status: str, problem: str = "", hint: str = "") -> dict[str, Any]:
    return {
        "file_id": source.file_id,
        "path": source.shown,
        "source": reader,
        "rank": source.rank,
        "host": source.host,
        "n_bytes": source.n_bytes,
        "status": status,
        "problem": problem,
        "hint": hint,
    }


def _lost_row(item: Unreadable) -> dict[str, Any]:
    return {"path": item.shown, "rank": MISSING, "status": "damaged", "problem": item.problem, "hint": item.hint}


def _finish_files(trace: Trace, rows: list[dict[str, Any]]) -> None:
    """One row per file; files that another one of the same rank replaced are marked."""
    files = concat("files", [trace.table("files"), Table.from_rows("files", rows)])
    trace.tables["files"] = files.take(np.argsort(files.array("file_id"), kind="stable"))
    if not trace.has("ranks"):
        return
    dropped = drop_duplicate_ranks(trace.tables)
    if dropped:
        paths = {row["file_id"]: row["path"] for row in trace.table("files").rows()}
        replaced = [
            {**row, "status": "duplicate", "problem": f"was left out for {paths[dropped[row['file_id']]]}"}
            if row["file_id"] in dropped
            else row
            for row in trace.table("files").rows()
        ]
        trace.tables["files"] = Table.from_rows("files", replaced)


def _nothing_found(given: Sequence[str], rows: Sequence[dict[str, Any]], prefix: str | None) -> InputError:
    where = ", ".join(given)
    broken = [row for row in rows if row["status"] == "damaged"]
    if broken:
        return InputError(f"{broken[0]['path']}: {broken[0]['problem']}", broken[0]["hint"])
    if prefix is not None and rows:
        return InputError(
            f"{where}: no file's name begins with {prefix}", "leave out --prefix to see what is found by looking"
        )
    if rows:
        names = ", ".join(row["path"].rsplit("/", 1)[-1] for row in rows[:3])
        return InputError(
            f"{where}: no trace among {len(rows)} files ({names}{', ...' if len(rows) > 3 else ''})",
            "give the folder that TORCH_FR_DUMP_TEMP_FILE points to; its files are named like nccl_trace_rank_0",
        )
    return InputError(
        f"{where}: the folder is empty",
        "Flight Recorder dumps appear when a job times out: see docs/sources/flight_recorder.md",
    )


def _all_damaged(trace: Trace) -> InputError:
    row = next(trace.table("files").rows())
    return InputError(
        f"none of {len(trace.table('files'))} files is usable; {row['path']} {row['problem']}", row["hint"]
    )
