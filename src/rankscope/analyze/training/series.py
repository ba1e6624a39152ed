"""One metric of one rank over the steps, and how it changes from block to block of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from rankscope.model.tables import MISSING, Array, Trace


@dataclass(frozen=True)
class Series:
    """In order of steps, or of time if there are no steps."""

    name: str
    rank: int  # MISSING where the log does not say
    step: Array
    time_ns: Array
    value: Array

    def __len__(self) -> int:
        return len(self.value)


def series_of(trace: Trace, wanted: Callable[[str], bool]) -> Iterator[Series]:
    """Those whose names are wanted, by name, rank and file: two logs of one rank are not one series."""
    table = trace.table("metrics")
    names = table.text("name")
    chosen = np.fromiter(map(wanted, names.values), bool, len(names.values))
    rows = np.flatnonzero(chosen[names.codes]) if len(chosen) else np.zeros(0, np.int64)
    if not len(rows):
        return
    code, rank, file = names.codes[rows], table.array("rank")[rows], table.array("file_id")[rows]
    step, time_ns = table.array("step")[rows], table.array("time_ns")[rows]
    order = np.lexsort((time_ns, step, file, rank, code))
    rows = rows[order]
    is_new = np.zeros(len(rows), bool)
    for column in (code[order], rank[order], file[order]):
        is_new[1:] |= column[1:] != column[:-1]
    for same in np.split(rows, np.flatnonzero(is_new)):
        yield Series(
            names[same[0]],
            int(table.array("rank")[same[0]]),
            table.array("step")[same],
            table.array("time_ns")[same],
            table.array("value")[same],
        )


def by_rank(trace: Trace, name: str) -> dict[int, Series]:
    """For each rank the longest series of that name; those without a rank are left out."""
    longest: dict[int, Series] = {}
    for series in series_of(trace, name.__eq__):
        if series.rank != MISSING and len(series) > len(longest.get(series.rank, ())):
            longest[series.rank] = series
    return longest


def blocks(values: Array, n_blocks: int, measure: Callable[[Array], float]) -> Array:
    """What `measure` says of each of equally long stretches."""
    return np.array([measure(part) for part in np.array_split(values, n_blocks)])
