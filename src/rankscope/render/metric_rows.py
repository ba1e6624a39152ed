"""The rows of a metric: plain values for programs, numbers in suitable units for people."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rankscope.model.tables import MISSING, Array, Table, Text

_ABSENT = "-"
_FIRST_MOMENT_NS = 10**17  # in 1973: whatever is larger is a moment, not a duration
_TIME_UNITS = ((10**3, "us"), (10**6, "ms"), (10**9, "s"))
_SIZE_UNITS = ((1, "B"), (2**10, "KiB"), (2**20, "MiB"), (2**30, "GiB"))
_LONG_TEXT = 40
_LARGEST_SHOWN = 10_000  # beyond that many of a unit the next one is used
_SMALLEST_FIXED, _LARGEST_FIXED = 0.0005, 1e9


def plain_rows(table: Table) -> Iterator[tuple[Any, ...]]:
    """As they are, nanoseconds included; None where a value is missing."""
    return zip(*(_plain(name, values) for name, values in table.columns.items()), strict=True)


def readable_rows(table: Table, zero_ns: int) -> tuple[list[str], list[tuple[str, ...]]]:
    """Heads with units, and cells of one width per column of numbers. Moments are counted from `zero_ns`.

    Columns of long texts come last, so that the numbers stay together.
    """
    heads, columns = [], []
    for name, values in sorted(table.columns.items(), key=lambda item: _is_long(item[1])):
        head, cells = _readable(name, values, zero_ns)
        if not isinstance(values, Text):
            width = max((len(head), *map(len, cells)))
            cells = [cell.rjust(width) for cell in cells]
            head = head.rjust(width)
        heads.append(head)
        columns.append(cells)
    return heads, list(zip(*columns, strict=True))


def has_moments(table: Table) -> bool:
    return any(_is_moment(name, values) for name, values in table.columns.items() if not isinstance(values, Text))


def _is_long(values: Array | Text) -> bool:
    return isinstance(values, Text) and any(len(values.values[code]) > _LONG_TEXT for code in np.unique(values.codes))


def _plain(name: str, values: Array | Text) -> Sequence[Any]:
    if isinstance(values, Text) or values.dtype == bool:
        return values.tolist()
    if values.dtype.kind == "f":
        return [None if math.isnan(value) else value for value in values.tolist()]
    return [None if value == MISSING and not _may_be_negative(name) else value for value in values.tolist()]


def _may_be_negative(name: str) -> bool:
    return name.startswith("diff_")


def _readable(name: str, values: Array | Text, zero_ns: int) -> tuple[str, list[str]]:
    plain = _plain(name, values)
    if isinstance(values, Text):
        return name, list(plain)
    if name.endswith("_ns"):
        if _is_moment(name, values):
            plain = [None if value is None else value - zero_ns for value in plain]
        return _in_units(name.removesuffix("_ns"), plain, _TIME_UNITS)
    if name.endswith("_bytes"):
        return _in_units("size" if name == "n_bytes" else name.removesuffix("_bytes"), plain, _SIZE_UNITS)
    if name.endswith("_pct"):
        return f"{name.removesuffix('_pct')} (%)", [_ABSENT if value is None else f"{value:.2f}" for value in plain]
    return name, [_cell(value) for value in plain]


def _is_moment(name: str, values: Array) -> bool:
    return name.endswith("_ns") and bool(np.any(values > _FIRST_MOMENT_NS))


def _in_units(name: str, values: Sequence[int | None], units: Sequence[tuple[int, str]]) -> tuple[str, list[str]]:
    """One unit for the whole column, so that its numbers can be compared at a glance."""
    largest = max((abs(value) for value in values if value is not None), default=0)
    size, unit = next((choice for choice in units if largest < _LARGEST_SHOWN * choice[0]), units[-1])
    digits = 3 if size > 1 else 0
    return f"{name} ({unit})", [_ABSENT if value is None else f"{value / size:.{digits}f}" for value in values]


def _cell(value: Any) -> str:
    if value is None:
        return _ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):  # a learning rate is no zero, and bytes have no thousandths
        is_large = abs(value) >= _LARGEST_FIXED
        return f"{value:.3g}" if 0 < abs(value) < _SMALLEST_FIXED else f"{value:.{0 if is_large else 3}f}"
    return str(value)
