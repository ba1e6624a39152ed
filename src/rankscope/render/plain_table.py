"""Rows as an aligned plain table: numbers to the right, cells shortened only where a terminal ends."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rankscope.render.escape import escape

GAP = "  "
MIN_CELL = 8
_CUT = "..."


def table_lines(heads: Sequence[str], rows: Sequence[Sequence[Any]], width: int | None = None) -> Iterator[str]:
    """The heads, a rule under them, the rows. With a width, the widest columns give way first."""
    columns = [_cells(index, rows) for index in range(len(heads))]
    is_number = [_holds_numbers(index, rows) for index in range(len(heads))]
    names = [escape(head) for head in heads]
    widths = [max(len(name), *map(len, cells), 0) for name, cells in zip(names, columns, strict=True)]
    widths = _fitted(widths, width)
    for line in (names, ["-" * size for size in widths], *zip(*columns, strict=True)):
        yield GAP.join(map(_padded, line, widths, is_number)).rstrip()


def cell_text(value: Any) -> str:
    """A value for people; `NULL` where there is none."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0").rstrip(".") if 1e-3 <= abs(value) < 1e15 else f"{value:g}"
    if isinstance(value, (list, dict)):
        return json.dumps(value, default=str)
    return str(value)


def _cells(column: int, rows: Sequence[Sequence[Any]]) -> list[str]:
    return [escape(cell_text(row[column])) for row in rows]


def _holds_numbers(column: int, rows: Sequence[Sequence[Any]]) -> bool:
    values = [row[column] for row in rows if row[column] is not None]
    return bool(values) and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def _fitted(widths: list[int], width: int | None) -> list[int]:
    """The largest common limit under which all columns fit; below MIN_CELL the lines run over instead."""
    if width is None or _total(widths) <= width:
        return widths
    limit = next(
        (cap for cap in range(max(widths), MIN_CELL, -1) if _total([min(w, cap) for w in widths]) <= width), MIN_CELL
    )
    return [min(size, limit) for size in widths]


def _total(widths: list[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _padded(cell: str, width: int, is_number: bool) -> str:
    if len(cell) > width:
        return cell[: width - len(_CUT)] + _CUT
    return cell.rjust(width) if is_number else cell.ljust(width)
