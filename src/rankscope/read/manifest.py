"""What the collector recorded about a run -> what ran where and when; what was written, and what could not be."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import numpy as np

from rankscope.errors import BadFileError
from rankscope.model.tables import MISSING, Table
from rankscope.read.expected import PARTS
from rankscope.read.files import Source

NAME = "manifest"
MARKS = ("rankscope.manifest",)

_WHOLE = re.compile(rb'\s*\{\s*"schema"\s*:\s*"rankscope\.manifest/')
_PART = re.compile(rb'\s*\{\s*"schema"\s*:\s*"rankscope\.manifest-part/')
_MAX_BYTES = 256 << 20
_HINT = "pass the manifest.json that `rankscope record` wrote"

_LAUNCHER_KILLED = {
    "what": "the exit code",
    "problem": "rankscope record was killed before the job ended",
    "hint": "check the kernel log and the scheduler for what killed it; --end-with-launcher ends the job as well",
}
_Count = Annotated[int, msgspec.Meta(ge=MISSING, lt=1 << 31)]
_Number = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]


class _Got(msgspec.Struct):
    what: str = ""
    file: str = ""
    n_bytes: _Number = MISSING


class _Problem(msgspec.Struct):
    what: str = ""
    problem: str = ""
    hint: str = ""


class _Rank(msgspec.Struct):
    rank: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    world_size: _Count = MISSING
    local_rank: _Count = MISSING
    host: str = ""
    pid: _Number = MISSING
    python: str = ""
    torch: str = ""
    platform: str = ""
    command: list[str] = []
    environment: dict[str, str] = {}
    started_ns: _Number | None = None
    ended_ns: _Number | None = None
    ending: str | None = None
    exit_code: Annotated[int, msgspec.Meta(ge=-128, lt=1 << 16)] | None = None
    clock_offset_ns: _Number | None = None
    clock_error_ns: _Number | None = None
    n_steps: _Number | None = None
    steps_by: dict[str, int] = {}
    asked: dict[str, Any] = {}
    got: list[_Got] = []
    problems: list[_Problem] = []


class _Run(msgspec.Struct):
    id: str = ""
    launcher: str = ""  # "killed" if it did not see the end of the job
    exit_code: Annotated[int, msgspec.Meta(ge=-128, lt=1 << 16)] | None = None
    n_killed_for_memory: _Number | None = None


class _Manifest(msgspec.Struct):
    ranks: list[_Rank]
    run: _Run = msgspec.field(default_factory=_Run)


def sniff(head: bytes, name: str) -> bool:
    return bool(_WHOLE.match(head) or _PART.match(head))


def read(source: Source) -> Iterator[Table]:
    manifest = _load(source)
    about = {"file_id": source.file_id}
    yield Table.from_rows("manifests", [{**about, **_described(rank, manifest.run)} for rank in manifest.ranks])
    files = [{**about, "rank": rank.rank, **msgspec.to_builtins(got)} for rank in manifest.ranks for got in rank.got]
    yield Table.from_rows("collected_files", files)
    problems = [
        {**about, "rank": rank.rank, **msgspec.to_builtins(problem)}
        for rank in manifest.ranks
        for problem in rank.problems
    ]
    if manifest.run.launcher and manifest.ranks:
        problems.append({**about, "rank": manifest.ranks[0].rank, **_LAUNCHER_KILLED})
    yield Table.from_rows("collection_problems", problems)
    own_rank = manifest.ranks[0].rank if len(manifest.ranks) == 1 else MISSING
    row = {**source.file_columns(), "source": NAME, "rank": own_rank, "host": "", "status": "read"}
    yield Table.from_rows("files", [row])


def _load(source: Source) -> _Manifest:
    try:
        with source.open() as stream:
            content = stream.read(_MAX_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise BadFileError(f"cannot be read: {error}", "copy the file again") from error
    try:
        if _WHOLE.match(content):
            return msgspec.json.decode(content, type=_Manifest)
        return _Manifest([msgspec.json.decode(content, type=_Rank)])
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise BadFileError(f"is not the manifest of a run: {error}", _HINT) from error


def _described(rank: _Rank, run: _Run) -> dict[str, Any]:
    names = ("rank", "world_size", "local_rank", "host", "pid", "python", "torch", "platform")
    row: dict[str, Any] = {name: getattr(rank, name) for name in names}
    for name in ("started_ns", "ended_ns", "clock_offset_ns", "clock_error_ns", "n_steps"):
        value = getattr(rank, name)
        row[name] = MISSING if value is None else value
    for name in ("command", "environment", "steps_by", "asked"):
        row[name] = msgspec.json.encode(getattr(rank, name)).decode()
    row["ending"] = rank.ending or ""
    row["exit_code"], row["rank_exit_code"] = _as_shell(run.exit_code), _as_shell(rank.exit_code)
    row["n_killed_for_memory"] = MISSING if run.n_killed_for_memory is None else run.n_killed_for_memory
    return {**row, "run": run.id}


def _as_shell(code: int | None) -> int:
    """A process that a signal ended is told as by a shell: a table has no negative numbers."""
    return MISSING if code is None else 128 - code if code < 0 else code


def drop_parts(tables: dict[str, Table]) -> set[int]:
    """Keeps one manifest per rank: the newest complete one, or the rank's own part where none has the rank.

    Returns the files that were dropped completely.
    """
    manifests = tables["manifests"]
    files = tables["files"]
    parts = files.array("file_id")[[f"/{PARTS}/" in path.replace("!", "/") for path in files.text("path").tolist()]]
    is_part = np.isin(manifests.array("file_id"), parts)
    rank, file = manifests.array("rank"), manifests.array("file_id")
    order = np.lexsort((file, manifests.array("started_ns"), ~is_part, rank))
    is_last = np.append(rank[order][1:] != rank[order][:-1], True)
    kept = order[is_last]
    speaker = dict(zip(rank[kept].tolist(), file[kept].tolist(), strict=True))
    for name in ("manifests", "collected_files", "collection_problems"):
        if name in tables:
            table = tables[name]
            is_kept = [
                speaker[rank] == file
                for rank, file in zip(table.array("rank").tolist(), table.array("file_id").tolist(), strict=True)
            ]
            tables[name] = table.take(np.flatnonzero(is_kept))
    return set(file.tolist()) - set(speaker.values())
