"""Logs that can be mapped: unpacked where they are packed, and taken apart where several ranks share one stream."""

from __future__ import annotations

import io
import re
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, cast

import msgspec

from rankscope.errors import BadFileError
from rankscope.model.numbers import rank_number
from rankscope.model.tables import MISSING
from rankscope.read import cache
from rankscope.read.files import Source

_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_RANK_PREFIX = re.compile(rb"^\[(?:rank|default)(\d+)\]:[ ]?")
_PLAIN = "plain.log"


class PlainLog(NamedTuple):
    path: str
    starts: list[int]  # byte at which the lines of each rank begin, where the lines told their ranks
    ranks: list[int]
    problem: str = ""

    def rank_at(self, position: int) -> int:
        return self.ranks[bisect_right(self.starts, position) - 1] if self.starts else MISSING


class _Note(msgspec.Struct):
    starts: list[int]
    ranks: list[int]
    problem: str


def plain_log(source: Source) -> PlainLog:
    """The file itself where that will do, else a copy of its content in the cache."""
    if source.is_plain and not _RANK_PREFIX.match(source.head()):
        return PlainLog(str(source.path), [], [])
    entry = cache.stored(source.scratch)
    if entry is None:
        with cache.filling(source.scratch) as aside:
            note = _copy(source, aside)
            cache.note_done(aside, msgspec.json.encode(note))
        entry = cache.kept(source.scratch)
    note = msgspec.json.decode(entry.note, type=_Note)
    return PlainLog(str(Path(entry.folder) / _PLAIN), note.starts, note.ranks, note.problem)


def _lines(stream: io.BufferedReader) -> Iterator[bytes]:
    """Line by line where a rank may stand before a line; else as many at once as there are."""
    while block := stream.read1(1 << 20):
        try:
            rest = b"" if block.endswith(b"\n") else stream.readline()
        except (OSError, EOFError, zlib.error):
            yield from _LINE.findall(block)
            raise
        block += rest
        yield from _LINE.findall(block) if b"\n[" in block or block.startswith(b"[") else (block,)


def _copy(source: Source, aside: Path) -> _Note:
    """All lines of rank 0, then all of rank 1, ...; lines without a rank stay after the line before them."""
    parts: dict[int, Path] = {}
    problem, rank = "", MISSING
    streams = {}
    try:
        with source.open() as stream:
            try:
                for line in _lines(cast(io.BufferedReader, stream)):
                    prefix = _RANK_PREFIX.match(line)
                    if prefix:
                        rank = rank_number(prefix.group(1))
                        line = line[prefix.end() :]
                    if rank not in streams:
                        parts[rank] = aside / f"part_{rank}"
                        streams[rank] = parts[rank].open("wb")
                    streams[rank].write(line)
            except (OSError, EOFError, zlib.error) as error:
                problem = f"cannot be fully decompressed ({error})"
    finally:
        for out in streams.values():
            out.close()
    if not parts:
        raise BadFileError(problem or "is empty once decompressed", "copy the file again")
    note = _Note([], [], problem)
    with (aside / _PLAIN).open("wb") as plain:
        for rank in sorted(parts):
            note.starts.append(plain.tell())
            note.ranks.append(rank)
            with parts[rank].open("rb") as part:
                while chunk := part.read(1 << 20):
                    plain.write(chunk)
            parts[rank].unlink()
    return note
