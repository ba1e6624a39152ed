"""Numbers that the job logged during training, one JSON object per line -> the table of metrics."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import msgspec
import numpy as np

from rankscope.model.tables import MISSING, Table, Text
from rankscope.read.files import Source
from rankscope.read.rank_lines import Format, files_table, read_rank_lines

NAME = "metrics"
MARKS = ("rankscope.metrics/",)

_SCHEMA = re.compile(rb'\s*\{\s*"schema"\s*:\s*"rankscope\.metrics/')
_MAX_NAME = 200

_Whole = Annotated[int, msgspec.Meta(ge=MISSING, le=1 << 62)]


class _Header(msgspec.Struct):
    rank: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class _Line(msgspec.Struct):
    """One value with its name, or several of one moment."""

    name: str = ""
    value: float | None = None
    values: dict[str, float | None] | None = None
    time_ns: _Whole = MISSING
    step: _Whole = MISSING


_decoder = msgspec.json.Decoder(_Line)
_FORMAT = Format(_SCHEMA, _Header, "does not start like a metrics file", "the job ended before it logged a number")


def sniff(head: bytes, name: str) -> bool:
    return bool(_SCHEMA.match(head))


def read(source: Source) -> Iterator[Table]:
    content = read_rank_lines(source, _FORMAT)
    lines, n_bad = _lines(content.whole)
    usable = [line for line in lines if line.name or line.values]
    yield _table(source, content.header.rank, [each for line in usable for each in _single(line)])
    yield files_table(source, NAME, content, n_bad + len(lines) - len(usable), "without metrics")


def _lines(content: bytes) -> tuple[list[_Line], int]:
    """All lines at once where all are in order, else one by one, with the number of those that are not."""
    try:
        return _decoder.decode_lines(content), 0
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        pass
    parsed = [_line(line) for line in content.split(b"\n") if line.strip()]
    return [line for line in parsed if line is not None], parsed.count(None)


def _line(content: bytes) -> _Line | None:
    try:
        return _decoder.decode(content)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        pass
    try:  # a loss that is not a number is written as NaN, which only Python's own parser takes
        return msgspec.convert(json.loads(content), _Line)
    except (ValueError, RecursionError, msgspec.ValidationError):
        return None


def _single(line: _Line) -> Iterator[_Line]:
    if line.values is None:
        yield line
        return
    for name, value in line.values.items():
        yield _Line(name, value, None, line.time_ns, line.step)


def _table(source: Source, rank: int, lines: list[_Line]) -> Table:
    n_rows = len(lines)
    return Table(
        "metrics",
        {
            "file_id": np.full(n_rows, source.file_id, np.int32),
            "rank": np.full(n_rows, rank, np.int32),
            "time_ns": _column((line.time_ns for line in lines), np.int64, n_rows),
            "step": _column((line.step for line in lines), np.int64, n_rows),
            "name": Text.encode(line.name[:_MAX_NAME] for line in lines),
            "value": _column((math.nan if line.value is None else line.value for line in lines), np.float64, n_rows),
        },
    )


def _column(values: Iterable[float], kind: Any, n_rows: int) -> Any:
    return np.fromiter(values, kind, n_rows)
