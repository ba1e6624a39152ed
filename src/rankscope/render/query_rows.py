"""The rows of a query, one line at a time, so that a large answer never has to fit into memory."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from rankscope.render.escape import escape

# Never written: the writer quotes what holds a character of it, and a field may hold either.
_LINE_END = "\r\n"
# What makes a formula of a cell in a spreadsheet, which may fetch addresses or run programs.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def csv_lines(
    heads: Sequence[str], rows: Iterable[Sequence[Any]], *, to_terminal: bool = False, is_raw: bool = False
) -> Iterator[str]:
    """A head line and the rows; NULL is an empty field. A terminal gets control characters as escapes.

    Unless it is to be raw, text that a spreadsheet would run as a formula begins with an apostrophe.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator=_LINE_END)
    for row in chain([heads], rows):
        cells = map(_csv_cell if is_raw else _safe_cell, row)
        writer.writerow([escape(cell) for cell in cells] if to_terminal else cells)
        yield buffer.getvalue().removesuffix(_LINE_END)
        buffer.seek(0)
        buffer.truncate()


def json_lines(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """An array with one object per row and line, in ASCII."""
    pending = ""
    yield "["
    for row in rows:
        if pending:
            yield f"{pending},"
        record = dict(zip(heads, map(_json_value, row), strict=True))
        pending = json.dumps(record, default=str).replace("\x7f", "\\u007f")
    if pending:
        yield pending
    yield "]"


def _csv_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, default=str) if isinstance(value, (list, dict)) else str(value)


def _safe_cell(value: Any) -> str:
    cell = _csv_cell(value)
    return f"'{cell}" if cell.startswith(FORMULA_STARTS) and isinstance(value, str) else cell


def _json_value(value: Any) -> Any:
    """JSON knows neither NaN nor infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
