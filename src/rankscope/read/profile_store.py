"""Keeps what was made of a profiler trace in its folder of the cache, and gives it back as tables and parts."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from rankscope.errors import BadFileError
from rankscope.model.tables import Part, Table
from rankscope.read import cache
from rankscope.read.files import Source
from rankscope.read.profile_tables import Written
from rankscope.read.remote import is_url

CUT_HINT = "the process ended while writing it, or the copy is incomplete: copy it again if the original is complete"


class Profile(msgspec.Struct):
    """One traced process: what is said about it in `profiles` and `devices`, and what was written of it.

    The parts are TABLE.parquet in the folder, or in its subfolder `subfolder` where a file holds several processes, and
    hold the rows of `process` among others.
    """

    rank: int
    host: str
    columns: dict[str, Any]
    devices: list[dict[str, Any]]
    written: Written
    problem: str = ""
    subfolder: str = ""
    process: int = 0


Convert = Callable[[Sequence[Source], Path], Iterator[Profile]]


def store_profiles(source: Source, reader: str, convert: Convert) -> Iterator[Table | Part]:
    """The tables and parts of a trace: from the cache, where a whole entry of it is there, else made now."""
    entry = _stored(source)
    if entry is None:
        if source.n_bytes == 0:
            raise BadFileError("is empty (0 bytes)", "the process ended before it wrote its trace")
        with _converted([source], reader, convert) as (profiles, aside):
            cache.note_done(aside, msgspec.json.encode(profiles))
        entry = cache.kept(source.workspace)
    yield from _results(source, reader, entry)


def store_together(sources: Sequence[Source], reader: str, convert: Convert) -> list[list[Table | Part]]:
    """The same for traces of one process each, none of which is in the cache: they share the parts.

    The parts are in the entry of the first one. The other entries only say so: a trace that changes gets a new entry,
    and leaves what the others need where it is.
    """
    first, *others = sources
    with _converted(sources, reader, convert) as (profiles, aside):
        cache.note_done(aside, msgspec.json.encode(profiles[:1]))
    for source, profile in zip(others, profiles[1:], strict=True):
        profile.subfolder = posixpath.join("..", posixpath.basename(first.workspace))
        with cache.filling(source.workspace) as aside:
            cache.note_done(aside, msgspec.json.encode([profile]))
    return [list(_results(source, reader, cache.kept(source.workspace))) for source in sources]


def _stored(source: Source) -> cache.Entry | None:
    """The entry; None also when what it shares with another one was removed."""
    entry = cache.stored(source.workspace)
    if entry is not None and not is_url(source.workspace):
        profiles = msgspec.json.decode(entry.note, type=list[Profile])
        if not all(os.path.isdir(_folder(entry, profile)) for profile in profiles):
            cache.forget(source.workspace)
            return None
    return entry


def _folder(entry: cache.Entry, profile: Profile) -> str:
    folder = posixpath.join(entry.folder, profile.subfolder)
    return posixpath.normpath(folder) if profile.subfolder.startswith("..") else folder


def _results(source: Source, reader: str, entry: cache.Entry) -> Iterator[Table | Part]:
    profiles = msgspec.json.decode(entry.note, type=list[Profile])
    yield from _small_tables(source, reader, profiles)
    for profile in profiles:
        folder = _folder(entry, profile)
        for table, n_rows in profile.written.n_rows.items():
            path = posixpath.join(folder, f"{table}.parquet")
            yield Part(table, path, n_rows, source.file_id, profile.rank, profile.process)


@contextmanager
def _converted(sources: Sequence[Source], reader: str, convert: Convert) -> Iterator[tuple[list[Profile], Path]]:
    """The profiles, and the folder of their parts, which takes its place in the first one's entry afterwards."""
    import duckdb

    with cache.filling(sources[0].workspace) as aside:
        try:
            profiles = [_completed(profile, reader) for profile in convert(sources, aside)]
        except (MemoryError, RecursionError, duckdb.OutOfMemoryException) as error:
            raise BadFileError("needs an absurd amount of memory or nesting", "it is corrupt or malicious") from error
        except duckdb.Error as error:  # values that no profiler writes: times beyond limits, numbers in place of names
            reason = str(error).partition("\n")[0]
            raise BadFileError(f"has invalid values: {reason}", "it is corrupt: record it again") from error
        for scratch in (*aside.rglob("raw_*"), *aside.glob("part-*.json")):
            scratch.unlink()
        yield profiles, aside


def _completed(profile: Profile, reader: str) -> Profile:
    """Adds what the parts themselves show: the span of time, how much there is of each kind."""
    written = profile.written
    counted = {
        "n_ops": "ops",
        "n_kernels": "kernels",
        "n_calls": "runtime_calls",
        "n_steps": "steps",
        "n_comms": "comms",
    }
    profile.columns = {
        **profile.columns,
        **{column: written.n_rows.get(table, 0) for column, table in counted.items()},
        "source": reader,
        "start_ns": written.start_ns,
        "end_ns": written.end_ns,
        "has_memory": "memory" in written.n_rows,
        "has_syncs": "syncs" in written.n_rows,
        "has_stacks": profile.columns.get("has_stacks", False) or "python_calls" in written.n_rows,
    }
    return profile


def _small_tables(source: Source, reader: str, profiles: list[Profile]) -> Iterator[Table]:
    """A row for the file, and one for each process and each device of it."""
    keys = [{"file_id": source.file_id, "rank": profile.rank, "host": profile.host} for profile in profiles]
    problem = next((profile.problem for profile in profiles if profile.problem), "")
    note = next((note for profile in profiles if (note := profile.columns.get("note"))), "")
    status = (
        {"status": "damaged", "problem": problem, "hint": CUT_HINT} if problem else {"status": "read", "problem": note}
    )
    yield Table.from_rows("files", [{**source.file_columns(), **keys[0], "source": reader, **status}])
    yield Table.from_rows("profiles", [{**profile.columns, **key} for profile, key in zip(profiles, keys, strict=True)])
    yield Table.from_rows(
        "devices",
        [{**device, **key} for profile, key in zip(profiles, keys, strict=True) for device in profile.devices],
    )
