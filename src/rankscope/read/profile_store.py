"""Keeps what was made of a profiler trace in its folder of the cache, and gives it back as tables and parts."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from rankscope.errors import BadFileError
from rankscope.model.tables import Part, Table
from rankscope.read import cache
from rankscope.read.files import Source
from rankscope.read.profile_tables import Written

CUT_HINT = "the process ended while writing it, or the copy is incomplete: copy it again if the original is complete"


class Profile(msgspec.Struct):
    """One traced process: what is said about it in `profiles` and `devices`, and what was written of it.

    The parts are TABLE.parquet in the folder, or in its subfolder `subfolder` where a file holds several processes.
    """

    rank: int
    host: str
    columns: dict[str, Any]
    devices: list[dict[str, Any]]
    written: Written
    problem: str = ""
    subfolder: str = ""


Convert = Callable[[Source, Path], Iterator[Profile]]


def store_profiles(source: Source, reader: str, convert: Convert) -> Iterator[Table | Part]:
    """The tables and parts of a trace: from the cache, where a whole entry of it is there, else made now."""
    entry = cache.stored(source.workspace)
    if entry is None:
        if source.n_bytes == 0:
            raise BadFileError("is empty (0 bytes)", "the process ended before it wrote its trace")
        with cache.filling(source.workspace) as aside:
            profiles = _converted(source, reader, convert, aside)
            for scratch in (*aside.rglob("raw_*"), aside / "part.json"):
                scratch.unlink(missing_ok=True)
            cache.note_done(aside, msgspec.json.encode(profiles))
        entry = cache.kept(source.workspace)
    profiles = msgspec.json.decode(entry.note, type=list[Profile])
    yield from _small_tables(source, reader, profiles)
    for profile in profiles:
        folder = posixpath.join(entry.folder, profile.subfolder)
        for table, n_rows in profile.written.n_rows.items():
            yield Part(table, posixpath.join(folder, f"{table}.parquet"), n_rows, source.file_id, profile.rank)


def _converted(source: Source, reader: str, convert: Convert, aside: Path) -> list[Profile]:
    import duckdb

    try:
        return [_completed(profile, reader) for profile in convert(source, aside)]
    except (MemoryError, RecursionError, duckdb.OutOfMemoryException) as error:
        raise BadFileError("needs an absurd amount of memory or nesting", "it is corrupt or malicious") from error
    except duckdb.Error as error:  # values that no profiler writes: times beyond all limits, numbers where names belong
        reason = str(error).partition("\n")[0]
        raise BadFileError(f"has invalid values: {reason}", "it is corrupt: record it again") from error


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
