"""A map as the page's script reads it: one byte per cell and layer, and thinned where it would be too large."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from rankscope.model.tables import MISSING, Array
from rankscope.render.page.blocks import Block

# States of a cell. Where several cells share a pixel, the one with the largest number is shown.
STATES = (
    "not involved",
    "overwritten in its ring buffer",
    "done",
    "done, from a different line than most",
    "waiting",
    "aborted",
    "failed",
    "no dump",
    "not joined",
    "mismatch: a different call than most",
)
NOTHING, DROPPED, DONE, OTHER_LINE, WAITING, ABORTED, FAILED, NO_DUMP, NOT_JOINED, MISMATCH = range(10)
# A time is stored by its logarithm: a step is 10%. The script knows both numbers.
STEPS_PER_DECADE = 24
ON_TIME = 1
NEVER = 255  # not joined, or not finished
COARSE_STEPS = 6  # 16 levels over four decades
UNKNOWN_CALL = 65_535
LAST_COLUMNS = 200
COLUMNS_AROUND = 50
MAX_TIMES = 200_000  # moments are exact and do not compress
_MAX_MERGED = 4096
_SAMPLED_ROWS = 32
_SAMPLED_CELLS = 2_000_000


@dataclass(frozen=True)
class Matrix:
    """One row per rank, one column per collective. The ranks of several groups of one kind may share a map."""

    ranks: Array
    group_of_row: Array  # position in the choice's groups
    seqs: Array  # per group and column; a single row where all groups have the same
    state: Array
    late: Array  # levels
    duration: Array  # levels
    calls: Array  # number in the pool of calls
    starts_ns: Array | None  # when the first rank joined, per group and column; 0 where there is none
    n_merged: Array | None = None  # collectives per column, where it is more than one

    @property
    def n_columns(self) -> int:
        return int(self.state.shape[1])

    def columns_of(self, seq: int, rank: int = MISSING) -> Array:
        """The column of a collective; a transfer has its number within a pair of ranks, so it needs one of them."""
        row = np.flatnonzero(self.ranks == rank)
        if len(self.seqs) == 1 or not len(row):
            return np.flatnonzero((self.seqs == seq).any(0))
        is_call = (self.seqs[self.group_of_row[row[0]]] == seq) & (self.state[row[0]] != NOTHING)
        return np.flatnonzero(is_call)


class Thinned(NamedTuple):
    matrix: Matrix
    is_coarse: bool  # times are coarser than they were recorded
    n_merged: int  # collectives per column outside the kept ones


def levels(microseconds: Array) -> Array:
    """1 for no time at all, up to 254; 0 for cells whose time is unknown."""
    scaled = np.log10(np.maximum(microseconds, 0).astype(np.float32) + 1) * STEPS_PER_DECADE
    level: Array = np.clip(np.ceil(scaled), ON_TIME, NEVER - 1).astype(np.uint8)
    return level


def level_ns(level: int) -> int:
    return 0 if level <= ON_TIME else int((10 ** (level / STEPS_PER_DECADE) - 1) * 1000)


def thinnings(matrix: Matrix, kept: Array) -> Iterator[Thinned]:
    """As it is, then ever smaller. Columns that are `kept` lose no more than the last digits of their times."""
    yield Thinned(matrix, False, 1)
    coarse = replace(matrix, late=_coarsened(matrix.late), duration=_coarsened(matrix.duration))
    yield Thinned(coarse, True, 1)
    calm = ~kept & (coarse.late.max(0, initial=0) < NEVER)
    coarse = replace(coarse, late=_calmed(coarse.late, calm), duration=_calmed(coarse.duration, calm))
    yield Thinned(coarse, True, 1)
    n_merged = 2
    while n_merged <= _MAX_MERGED and n_merged < 2 * matrix.n_columns:
        yield Thinned(_merged(coarse, kept, n_merged), True, n_merged)
        n_merged *= 2


def kept_columns(matrix: Matrix, marked: Array) -> Array:
    """The newest, and those around findings."""
    kept = np.zeros(matrix.n_columns, bool)
    kept[-LAST_COLUMNS:] = True
    for column in marked.tolist():
        kept[max(0, column - COLUMNS_AROUND) : column + COLUMNS_AROUND + 1] = True
    return kept


def _coarsened(level: Array) -> Array:
    rounded = (level.astype(np.uint16) + COARSE_STEPS - 1) // COARSE_STEPS * COARSE_STEPS
    is_exact = (level == NEVER) | (level <= ON_TIME)
    return np.where(is_exact, level, np.minimum(rounded, NEVER - 1)).astype(np.uint8)


def _calmed(level: Array, calm: Array) -> Array:
    """In calm columns only what is within half a decade of their longest stands out; the rest is at most that."""
    longest = np.where(level == NEVER, 0, level).max(0, initial=0)[calm]
    if not len(longest):
        return level
    floor = int(np.sort(longest)[len(longest) // 2]) - STEPS_PER_DECADE // 2
    is_below = calm & (level > 0) & (level < floor)
    return np.where(is_below, np.uint8(max(floor, ON_TIME)), level)


def _merged(matrix: Matrix, kept: Array, n_merged: int) -> Matrix:
    """Neighboring columns that are not kept become one, with the worst cell of each row."""
    position = np.arange(matrix.n_columns)
    is_edge = np.append(True, kept[1:] | kept[:-1])
    run_start = np.maximum.accumulate(np.where(is_edge, position, 0))
    starts = np.flatnonzero(is_edge | ((position - run_start) % n_merged == 0))
    state, late, duration = (
        np.maximum.reduceat(layer, starts, axis=1) for layer in (matrix.state, matrix.late, matrix.duration)
    )
    calls = matrix.calls[:, starts]
    width = np.diff(np.append(starts, matrix.n_columns))
    calls[:, width > 1] = UNKNOWN_CALL
    starts_ns = None if matrix.starts_ns is None else matrix.starts_ns[:, starts]
    return replace(
        matrix,
        seqs=matrix.seqs[:, starts],
        state=state,
        late=late,
        duration=duration,
        calls=calls,
        starts_ns=starts_ns,
        n_merged=width.astype(np.int32),
    )


def block_of(matrix: Matrix, hosts: dict[int, str], worst_first: Array, about: dict[str, Any]) -> Block:
    """`hosts` by rank; `worst_first` are rows. Calls and numbers are stored by what differs from the row above."""
    names = sorted(set(hosts.values()) - {""})
    number = {name: position for position, name in enumerate(names)}
    host_of_row = [number.get(hosts.get(rank, ""), MISSING) for rank in matrix.ranks.tolist()]
    position = np.empty(len(matrix.ranks), np.int32)
    position[worst_first] = np.arange(len(worst_first))
    arrays: dict[str, Array] = {
        "ranks": matrix.ranks.astype(np.int32),
        "groups": matrix.group_of_row.astype(np.int32),
        "hosts": np.asarray(host_of_row, np.int32),
        "worst": position,
        "state": matrix.state.ravel(),
        "late": matrix.late.ravel(),
        "duration": matrix.duration.ravel(),
        "calls": _against_above(matrix.calls.astype(np.uint16)).ravel(),
        "seqs": _against_above(matrix.seqs.astype(np.int32)).ravel(),
    }
    if matrix.starts_ns is not None and matrix.starts_ns.size <= MAX_TIMES:
        arrays["starts"] = (matrix.starts_ns / 1e6).ravel()  # milliseconds, as scripts count
    if matrix.n_merged is not None:
        arrays["merged"] = matrix.n_merged
    return Block({**about, "columns": matrix.n_columns, "hosts": names}, arrays)


def _against_above(rows: Array) -> Array:
    against = rows.copy()
    against[1:] ^= rows[:-1]
    return against


def estimated_size(matrix: Matrix) -> int:
    """Characters in the page, by some of its rows; a small matrix is not worth an estimate."""
    if matrix.state.size < _SAMPLED_CELLS:
        return 0
    step = max(1, len(matrix.ranks) // _SAMPLED_ROWS)
    sampled = [layer[::step] for layer in (matrix.state, matrix.late, matrix.duration)]
    n_bytes = sum(len(zlib.compress(np.ascontiguousarray(layer).tobytes(), 6)) for layer in sampled)
    return int(n_bytes * len(matrix.ranks) / len(sampled[0]) * 4 / 3)
