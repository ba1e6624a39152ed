"""The entries of one Flight Recorder dump -> columns. Written for speed: a job may hold millions of them.

All work per entry is done by functions of the standard library and numpy that loop in C; Python looks only at distinct
values. The input is not trusted: nothing walks into a nested value before its shape and size were checked.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from operator import itemgetter
from typing import Any

import numpy as np

from rankscope.model.numbers import whole
from rankscope.model.tables import MISSING, SCHEMA, Array, Table, Text
from rankscope.read.coalesced import mark_coalesced
from rankscope.read.files import Source
from rankscope.read.recorder_shapes import SHAPE_FIELDS, completed_entry, describe_shape, frame_row, plain_text

Entry = dict[str, Any]
Fields = dict[str, Sequence[Any]]

_INT_COLUMNS = {
    "record_id": "record_id",
    "collective_seq_id": "seq",
    "p2p_seq_id": "p2p_seq",
    "op_id": "op_id",
    "time_created_ns": "created_ns",
}
_TIME_COLUMNS = {"time_discovered_started_ns": "started_ns", "time_discovered_completed_ns": "completed_ns"}
_FIELDS = (*SHAPE_FIELDS, *_INT_COLUMNS, *_TIME_COLUMNS, "frames")
_get_fields = itemgetter(*_FIELDS)

# No genuine dump has more; lists that are shared in a pickle could unfold a small file into billions of numbers.
_MIN_ENCODED_LIMIT = 1 << 25
_MAX_ENCODED_RATIO = 20
_MAX_NUMBERS = 1 << 22
_MAX_FRAMES = 1 << 25
_HASH_FACTOR = 0x9E3779B97F4A7C15  # odd and without pattern: its powers weigh the positions in a stack
_PLAIN: frozenset[type] = frozenset((str, int, bool, float, type(None)))
_INTEGERS: frozenset[type] = frozenset((int,))  # not True, which is 1 to Python and another text to whoever compares
_NAMES: frozenset[type] = frozenset((str, int))
_LISTS: frozenset[type] = frozenset((list, tuple))


def entry_columns(entries: Sequence[Entry], source: Source) -> tuple[Table, Table, Table]:
    """One row per entry, and the stacks and frames it refers to (numbered within the file)."""
    fields = _transposed(entries)
    shapes, shape_codes = _distinct_shapes(fields, _MIN_ENCODED_LIMIT + _MAX_ENCODED_RATIO * source.n_bytes)
    described = [describe_shape(shape) for shape in shapes]
    n_rows = len(entries)
    columns: dict[str, Array | Text] = {
        **_int_columns(fields),
        **_shape_columns(described, shape_codes),
        "file_id": np.full(n_rows, source.file_id, np.int32),
        "rank": np.full(n_rows, source.rank, np.int32),
        "group_id": np.full(n_rows, MISSING, np.int32),
        "match_id": np.full(n_rows, MISSING, np.int32),
        "status": Text.constant("", n_rows),
        "status_inferred": np.zeros(n_rows, bool),
        "duration_ns": _durations(entries),
    }
    stack_ids, stacks, frames, sites = stack_tables(fields["frames"])
    columns["stack_id"] = stack_ids
    columns["site_id"] = sites[stack_ids]
    mark_coalesced(columns, described, shape_codes)
    return Table("collectives", columns), stacks, frames


def _transposed(entries: Sequence[Entry]) -> Fields:
    if not entries:
        return dict.fromkeys(_FIELDS, ())
    try:
        return dict(zip(_FIELDS, zip(*map(_get_fields, entries), strict=True), strict=True))
    except KeyError:  # an older layout, or the JSON variant: fill in what it leaves out
        entries = [completed_entry(entry) for entry in entries]
        return dict(zip(_FIELDS, zip(*map(_get_fields, entries), strict=True), strict=True))


def _distinct_shapes(fields: Fields, n_most: int) -> tuple[list[tuple[Any, ...]], Array]:
    """Codes by content. marshal writes an object that is shared once only, so no file can unfold in it."""
    rows = zip(*(fields[name] for name in SHAPE_FIELDS), strict=True)
    encoded: list[bytes] = []
    n_bytes = 0
    while chunk := list(map(marshal.dumps, islice(rows, 32))):
        n_bytes += sum(map(len, chunk))
        if n_bytes > n_most:
            raise ValueError("names or shapes are longer than any dump's")
        encoded += chunk
    code = {shape: number for number, shape in enumerate(dict.fromkeys(encoded))}
    shapes: list[tuple[Any, ...]] = [marshal.loads(shape) for shape in code]
    _check_shapes(shapes)
    return shapes, np.fromiter(map(code.__getitem__, encoded), np.int32, len(encoded))


def _check_shapes(shapes: Sequence[tuple[Any, ...]]) -> None:
    """Refuses anything but flat values, lists of them, and for sizes lists of lists, before these are written out."""
    n_total = 0
    for name, group, pg_id, in_sizes, out_sizes, in_types, out_types, *plain in shapes:
        lists = (group, in_sizes, out_sizes, in_types, out_types)
        _expect(_LISTS, lists)
        n_total += sum(map(len, lists))
        if n_total <= _MAX_NUMBERS:  # else walking into them would already take too long
            _expect(_LISTS, chain(in_sizes, out_sizes))
            n_total += sum(map(len, chain(in_sizes, out_sizes)))
        if n_total > _MAX_NUMBERS:
            raise ValueError("shapes have more numbers than any dump's")
        _expect(_INTEGERS, chain.from_iterable(chain(in_sizes, out_sizes)))
        _expect(_NAMES, chain(in_types, out_types))
        _expect(_PLAIN, chain(group, (name, pg_id, *plain)))


def _expect(allowed: frozenset[type], values: Iterable[Any]) -> None:
    kinds = set(map(type, values))
    if not kinds <= allowed:
        raise TypeError(f"an entry holds {', '.join(sorted(kind.__name__ for kind in kinds - allowed))}")


def _int_columns(fields: Fields) -> dict[str, Array | Text]:
    columns: dict[str, Array | Text] = {
        column: np.fromiter(fields[field], np.int64, len(fields[field])) for field, column in _INT_COLUMNS.items()
    }
    for field, column in _TIME_COLUMNS.items():
        times = fields[field]
        if None in times or 0 in times:  # not noticed yet: None in pickles, 0 in JSON
            times = [time or MISSING for time in times]
        columns[column] = np.fromiter(times, np.int64, len(times))
    return columns


def _durations(entries: Sequence[Entry]) -> Array:
    """Only recorded with timing on, and then only for calls that ended."""
    if len(set(map(len, entries))) < 2 and not any("duration_ms" in entry for entry in entries[:1]):
        return np.full(len(entries), MISSING, np.int64)  # the usual case, told without looking into every entry
    milliseconds = [entry.get("duration_ms") for entry in entries]
    if milliseconds.count(None) == len(milliseconds):
        return np.full(len(milliseconds), MISSING, np.int64)
    return np.fromiter((MISSING if ms is None else whole(ms * 1e6) for ms in milliseconds), np.int64, len(milliseconds))


def _shape_columns(described: Sequence[dict[str, Any]], codes: Array) -> dict[str, Array | Text]:
    columns: dict[str, Array | Text] = {}
    names = described[0] if described else describe_shape(("", ("", ""), 0, [], [], [], [], "", False, False, 0, ""))
    for name in names:
        values = [row[name] for row in described]
        kind = SCHEMA["collectives"].kinds[name]
        if kind == "text":
            text = Text.encode(values)
            columns[name] = Text(text.codes[codes], text.values)
        else:
            columns[name] = np.array(values, dtype=kind)[codes]
    return columns


def stack_tables(stacks: Sequence[Sequence[Any]]) -> tuple[Array, Table, Table, Array]:
    """Stack per row, the tables of stacks and frames, and per stack the frame that is the user's own line."""
    examples, row_codes = _distinct_stacks(stacks)
    frame_ids: dict[tuple[str, int, str], int] = {}
    stack_ids: dict[tuple[int, ...], int] = {}
    numbers = [
        stack_ids.setdefault(
            tuple(frame_ids.setdefault(_frame_key(frame), len(frame_ids)) for frame in stacks[example]), len(stack_ids)
        )
        for example in examples
    ]
    rows = [frame_row(number, *site) for site, number in frame_ids.items()]
    is_user = [row["is_user"] for row in rows]
    sites = [next((frame for frame in stack if is_user[frame]), stack[0] if stack else MISSING) for stack in stack_ids]
    frames = Table.from_rows("frames", rows)
    return np.array(numbers, np.int32)[row_codes], stack_table(stack_ids), frames, np.array(sites, np.int32)


def _distinct_stacks(stacks: Sequence[Sequence[Any]]) -> tuple[list[int], Array]:
    """One row per distinct stack, and which stack each row has.

    Frames are shared objects in a pickle, so a stack is known by the addresses of its frames, hashed in columns; equal
    stacks of frames that are not shared get the same number later, by content.
    """
    lengths = np.fromiter(map(len, stacks), np.int64, len(stacks))
    if whole(lengths.sum()) > _MAX_FRAMES:
        raise ValueError("stacks are deeper than any dump's")
    addresses = np.fromiter(map(id, chain.from_iterable(stacks)), np.uint64, whole(lengths.sum()))
    starts = np.cumsum(lengths) - lengths
    depth = np.arange(len(addresses)) - np.repeat(starts, lengths)
    weights = np.cumprod(np.full(whole(lengths.max(initial=0)) + 1, _HASH_FACTOR, np.uint64))
    running = np.append(np.uint64(0), np.cumsum(addresses * weights[depth], dtype=np.uint64))
    hashes = running[starts + lengths] - running[starts] + lengths.astype(np.uint64)
    _, examples, codes = np.unique(hashes, return_index=True, return_inverse=True)
    order = np.argsort(examples)  # numbered by first appearance: addresses differ from run to run
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return examples[order].tolist(), number[codes]


def stack_table(stack_ids: dict[tuple[int, ...], int]) -> Table:
    rows = [(number, depth, frame) for stack, number in stack_ids.items() for depth, frame in enumerate(stack)]
    array = np.array(rows, np.int32).reshape(-1, 3)
    return Table("stacks", {"stack_id": array[:, 0], "depth": array[:, 1], "frame_id": array[:, 2]})


def _frame_key(frame: Any) -> tuple[str, int, str]:
    line, file, function = frame.get("line"), frame.get("filename"), frame.get("name")
    is_line = type(line) is int and 0 <= line < 1 << 31
    return plain_text(file), line if is_line else 0, plain_text(function)
