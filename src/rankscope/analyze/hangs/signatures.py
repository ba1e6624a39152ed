"""What must agree between the ranks of one collective: operation, sizes by the operation's own rules, and type."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from rankscope.model.tables import MISSING, Array, Table

# These end only when every member has joined; a root of the others may finish alone.
SYNCHRONISING = frozenset(
    ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", "all_reduce_coalesced", "sparse_all_reduce")
)
_BY_INPUT = frozenset(("all_reduce", "broadcast", "reduce", "gather", "all_reduce_coalesced"))
_BY_OUTPUT = frozenset(("scatter",))
_UNKNOWN: tuple[str, ...] = ()  # the type of a call whose dump does not record types


@dataclass(frozen=True)
class Signatures:
    """Per call: codes that are equal exactly where two calls fit each other, and where they were made."""

    op: Array
    size: Array
    dtype: Array
    whole: Array  # op, size and dtype together
    point: Array  # the user's part of the call stack
    token: Array  # whole and point together: the same call of the same program


def call_signatures(calls: Table, stacks: Table, frames: Table, group_sizes: Array | None = None) -> Signatures:
    """Distinct combinations are judged once; rows get codes."""
    columns = [calls.text(name) for name in ("op", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes")]
    combined, code = _combine([column.codes for column in columns])
    sizes: dict[Any, int] = {}
    dtypes: dict[Any, int] = {}
    size_of, dtype_of = np.empty(len(combined), np.int32), np.empty(len(combined), np.int32)
    for position, row in enumerate(combined.tolist()):
        op, *shapes = (column[row] for column in columns)
        size_of[position] = sizes.setdefault(size_key(op, shapes[0], shapes[1]), len(sizes))
        dtype_of[position] = dtypes.setdefault(dtype_key(op, shapes[2], shapes[3]), len(dtypes))
    op_codes = columns[0].codes.astype(np.int64)
    size_codes, dtype_codes = size_of[code].astype(np.int64), dtype_of[code].astype(np.int64)
    if group_sizes is not None:
        size_codes = _even_where_parts_fit(calls, size_codes, list(sizes), group_sizes)
    if _UNKNOWN in dtypes and len(dtypes) > 1:
        dtype_codes = _known_by_peers(calls, dtype_codes, dtypes[_UNKNOWN])
    whole = (op_codes * (len(sizes) + 1) + size_codes) * (len(dtypes) + 1) + dtype_codes
    points = user_points(stacks, frames)
    point = points[calls.array("stack_id")].astype(np.int64) if len(calls) else np.empty(0, np.int64)
    token = whole * (int(points.max(initial=0)) + 2) + point + 1
    codes = [part.astype(np.int32) for part in (op_codes, size_codes, dtype_codes, point)]
    return Signatures(codes[0], codes[1], codes[2], whole, codes[3], token)


def _even_where_parts_fit(calls: Table, codes: Array, keys: list[Any], group_sizes: Array) -> Array:
    """Parts of different sizes fit where together they make up what is gathered; one code then stands for all."""
    of_key = np.full((len(keys), 2), MISSING, np.int64)
    for code, key in enumerate(keys):
        if isinstance(key, tuple) and key[:1] == ("part",) and max(key[1:]) < 1 << 62:
            of_key[code] = key[1:]
    rows = np.flatnonzero((of_key[codes, 1] >= 0) & ~calls.array("is_p2p") & (calls.array("group_id") >= 0))
    if not len(rows):
        return codes
    order = np.lexsort((calls.array("seq")[rows], calls.array("group_id")[rows]))
    rows = rows[order]
    group, seq = calls.array("group_id")[rows], calls.array("seq")[rows]
    starts = np.flatnonzero(np.append(True, (group[1:] != group[:-1]) | (seq[1:] != seq[:-1])))
    parts, wholes = of_key[codes[rows]].T
    is_same = [np.minimum.reduceat(side, starts) == np.maximum.reduceat(side, starts) for side in (parts, wholes)]
    bounds = np.append(starts, len(rows)).tolist()
    filled = codes.copy()
    for position in np.flatnonzero(~is_same[0] & is_same[1]).tolist():
        first, last = bounds[position], bounds[position + 1]
        if _make_up(parts[first:last], int(wholes[first]), int(group_sizes[group[first]])):
            filled[rows[first:last]] = codes[rows[first]]
    return filled


def _make_up(parts: Array, whole: int, n_members: int) -> bool:
    if len(parts) == n_members:
        return int(parts.sum()) == whole
    # Some are not recorded: it is an even collective with an odd rank if the usual part, taken by all, is the whole.
    values, counts = np.unique(parts, return_counts=True)
    return int(parts.sum()) <= whole and int(values[np.argmax(counts)]) * n_members != whole


def _known_by_peers(calls: Table, codes: Array, unknown: int) -> Array:
    """Older layouts leave out the type: such a call fits whatever its peers passed, so it counts as most of them."""
    columns = [calls.array(name) for name in ("group_id", "seq")]
    _, collective = np.unique(np.stack(columns), axis=1, return_inverse=True)
    collective, is_collective = collective.ravel(), ~calls.array("is_p2p")
    known = np.flatnonzero(is_collective & (codes != unknown))
    pairs, counts = np.unique(np.stack((collective[known], codes[known])), axis=1, return_counts=True)
    common = np.full(int(collective.max(initial=-1)) + 1, unknown, codes.dtype)
    order = np.lexsort((-pairs[1], counts))  # the most frequent is written last and stays
    common[pairs[0][order]] = pairs[1][order]
    return np.where(is_collective & (codes == unknown), common[collective], codes)


def _combine(codes: list[Array]) -> tuple[Array, Array]:
    """First row and code of each distinct combination of several code columns."""
    combined = np.zeros(len(codes[0]), np.int64)
    for column in codes:
        combined = combined * (int(column.max(initial=0)) + 1) + column
    _, rows, inverse = np.unique(combined, return_index=True, return_inverse=True)
    return rows, inverse


def size_key(op: str, inputs: str, outputs: str) -> Any:
    """Equal on all ranks of a healthy collective. Shapes may differ as long as the number of elements does not."""
    if op in _BY_INPUT:
        return _counts(inputs)
    if op in _BY_OUTPUT:
        return _counts(outputs)
    if op in ("send", "recv"):
        return sum(_counts(inputs)) or sum(_counts(outputs))
    if op.startswith("all_gather"):
        return _gathered(_counts(inputs), _counts(outputs))
    if op.startswith("reduce_scatter"):
        return _gathered(_counts(outputs), _counts(inputs))
    return None  # all_to_all, barriers, batches and what is not known: sizes may differ or do not exist


def _gathered(part: tuple[int, ...], whole: tuple[int, ...]) -> Any:
    """The gathered side has to agree; the parts only when the collective is an even one, which only all ranks tell."""
    is_uneven = len(set(whole)) > 1 or not part
    return (sum(whole),) if is_uneven else ("part", sum(part), sum(whole))


def dtype_key(op: str, inputs: str, outputs: str) -> Any:
    if op in ("barrier", "coalesced"):
        return None
    kinds: list[str] = msgspec.json.decode(inputs) or msgspec.json.decode(outputs)
    return tuple(dict.fromkeys(kinds))  # _UNKNOWN where none is recorded


def _counts(shapes: str) -> tuple[int, ...]:
    return tuple(math.prod(shape) for shape in msgspec.json.decode(shapes))


def user_points(stacks: Table, frames: Table) -> Array:
    """For each stack, the code of its user frames: ranks that only differ inside torch are at the same point."""
    is_user = frames.array("is_user")
    stack_ids, frame_ids = stacks.array("stack_id"), stacks.array("frame_id")
    n_stacks = int(stack_ids.max(initial=-1)) + 2  # the stack without frames may be the last
    user_frames: list[list[int]] = [[] for _ in range(n_stacks)]
    for stack, frame in zip(stack_ids.tolist(), frame_ids.tolist(), strict=True):
        if is_user[frame]:
            user_frames[stack].append(frame)
    pool: dict[tuple[int, ...], int] = {}
    return np.fromiter((pool.setdefault(tuple(part), len(pool)) for part in user_frames), np.int32, n_stacks)
