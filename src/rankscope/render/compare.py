"""Two or more sides of the evidence next to each other, aligned so that the eye finds the difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankscope.model.finding import Comparison, Side, ranks_phrase
from rankscope.render.escape import escape

KEY_GAP = "   "
SIDE_GAP = "  "


def comparison_lines(comparison: Comparison, width: int | None) -> Iterator[tuple[str, bool]]:
    """The heading and the rows, each with whether it is the marked one. Sides beyond `width` follow below."""
    keys = [escape(key) for key in (comparison.heading, *comparison.keys)]
    key_width = max(map(len, keys))
    columns = _columns(comparison.sides)
    for chunk in _chunks(columns, width and width - key_width - len(KEY_GAP)):
        for row, key in enumerate(keys):
            cells = SIDE_GAP.join(column[row] for column in chunk)
            yield f"{key:{key_width}}{KEY_GAP}{cells}".rstrip(), 0 <= row - 1 == comparison.mark


def _columns(sides: Sequence[Side]) -> list[list[str]]:
    """One padded column per side, its label first."""
    columns = []
    for side in sides:
        column = [escape(side.label or ranks_phrase(side.ranks)), *map(escape, side.cells)]
        widest = max(map(len, column))
        columns.append([cell.ljust(widest) for cell in column])
    return columns


def _chunks(columns: list[list[str]], width: int | None) -> Iterator[list[list[str]]]:
    chunk: list[list[str]] = []
    used = 0
    for column in columns:
        n_cells = len(column[0]) + len(SIDE_GAP)
        if chunk and width and used + n_cells - len(SIDE_GAP) > width:
            yield chunk
            chunk, used = [], 0
        chunk.append(column)
        used += n_cells
    if chunk:
        yield chunk
