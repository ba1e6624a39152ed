"""Files that the collector writes line by line on each rank: a header with the rank, then one JSON object per line."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from rankscope.errors import BadFileError
from rankscope.model.tables import Table
from rankscope.read.files import Source

_CUT_HINT = "the job ended while writing it, or the copy is incomplete: copy it again if the original is complete"
_MAX_HEADER = 1 << 16


class Ranked(Protocol):
    rank: int


Header = TypeVar("Header", bound=Ranked)


@dataclass(frozen=True)
class Format(Generic[Header]):
    """What tells one of these formats from the others."""

    schema: re.Pattern[bytes]
    header: type[Header]
    foreign: str  # what is wrong with a file that has another schema
    empty: str  # why a file may have no line at all


@dataclass(frozen=True)
class RankLines(Generic[Header]):
    header: Header
    whole: bytes  # the lines that are complete
    problem: str


def read_rank_lines(source: Source, format: Format[Header]) -> RankLines[Header]:
    """The header and the complete lines; a file that was cut keeps those before the cut."""
    if source.n_bytes == 0:
        raise BadFileError("is empty (0 bytes)", format.empty)
    chunks: list[bytes] = []
    problem = ""
    try:
        with source.open() as stream:
            header = _header(stream.readline(_MAX_HEADER), format)
            while chunk := stream.read(1 << 14):
                chunks.append(chunk)
    except (OSError, EOFError, zlib.error) as error:
        if not chunks:
            raise BadFileError(f"cannot be decompressed ({error})", _CUT_HINT) from error
        problem = f"cannot be fully decompressed ({error})"
    whole, _, rest = b"".join(chunks).rpartition(b"\n")
    if rest and not problem:
        problem = "ends in the middle of a line"
    return RankLines(header, whole, problem)


def _header(line: bytes, format: Format[Header]) -> Header:
    if not format.schema.match(line):
        raise BadFileError(format.foreign, "pass the files that `rankscope record` wrote")
    try:
        return msgspec.json.decode(line, type=format.header)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise BadFileError(f"has no rank in its first line ({error})", _CUT_HINT) from error


def files_table(source: Source, name: str, lines: RankLines[Header], n_bad: int, fault: str) -> Table:
    """The row of the file; `fault` says what is wrong with lines that could not be used."""
    problem = lines.problem
    if n_bad and not problem:
        problem = f"has {n_bad:,} {'line' if n_bad == 1 else 'lines'} {fault}"
    row = {**source.file_columns(), "source": name, "rank": lines.header.rank, "host": "", "status": "read"}
    if problem:
        row.update(status="damaged", problem=problem, hint=_CUT_HINT)
    return Table.from_rows("files", [row])
