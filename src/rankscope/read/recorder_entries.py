"""The entries of one Flight Recorder dump -> columns. Written for speed: a ring holds thousands, a job a thousand rings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np

from rankscope.model.tables import MISSING, SCHEMA, Array, Table, Text

Entry = dict[str, Any]

# Fields that repeat from call to call: their combination is looked up once per distinct value, not once per row.
_SHAPE_FIELDS = (
    "profiling_name",
    "process_group",
    "pg_id",
    "input_sizes",
    "output_sizes",
    "input_dtypes",
    "output_dtypes",
    "state",
    "is_p2p",
    "retired",
    "timeout_ms",
    "thread_name",
)
_INT_FIELDS = {
    "record_id": "record_id",
    "collective_seq_id": "seq",
    "p2p_seq_id": "p2p_seq",
    "op_id": "op_id",
    "time_created_ns": "created_ns",
}
_TIME_FIELDS = {"time_discovered_started_ns": "started_ns", "time_discovered_completed_ns": "completed_ns"}

_DTYPE_BYTES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "Float8_e4m3fn", "Float8_e5m2", "QInt8", "QUInt8"), 1),
    **dict.fromkeys(("Short", "Half", "BFloat16", "UInt16"), 2),
    **dict.fromkeys(("Int", "Float", "UInt32", "QInt32", "ComplexHalf"), 4),
    **dict.fromkeys(("Long", "Double", "UInt64", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
# Dumps of layout 2.1 wrote torch's internal number of the type.
_DTYPE_NUMBERS = ("Byte", "Char", "Short", "Int", "Long", "Half", "Float", "Double", "ComplexHalf", "ComplexFloat",
                  "ComplexDouble", "Bool", "QInt8", "QUInt8", "QInt32", "BFloat16")  # fmt: skip

_SAME_OP = {
    "_all_gather_base": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_reduce_barrier": "barrier",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "allreduce_coalesced": "all_reduce_coalesced",
    "recvAnySource": "recv",
}
_P2P_NAME = re.compile(r"(send|recv)\s+(\d+)\s*(?:->|<-)\s*(\d+|\?)")
# The trailer of a coalesced group is named after the operation in capitals, a single fused call in small letters.
_TRAILER = re.compile(r"coalesced$|[A-Z_]{3,}_coalesced$")

# More numbers in the shapes than this is no dump: shared lists can unfold a small file into billions.
_MAX_SHAPE_NUMBERS = 20_000_000


def entry_columns(entries: Sequence[Entry], rank: int, file_id: int, n_bytes: int) -> tuple[Table, Table, Table]:
    """One row per entry, and the stacks and frames it refers to (numbered within the file)."""
    try:
        _check_shapes(entries)
        shapes, shape_codes = _distinct_shapes(entries)
        ints = _int_columns(entries)
    except KeyError:  # an older layout, or the JSON variant: fill in what it leaves out
        entries = [_completed(entry) for entry in entries]
        _check_shapes(entries)
        shapes, shape_codes = _distinct_shapes(entries)
        ints = _int_columns(entries)
    described = [_describe(shape) for shape in shapes]
    columns: dict[str, Array | Text] = {**ints, **_shape_columns(described, shape_codes)}
    n_rows = len(entries)
    columns["file_id"] = np.full(n_rows, file_id, np.int32)
    columns["rank"] = np.full(n_rows, rank, np.int32)
    columns["group_id"] = np.full(n_rows, MISSING, np.int32)
    columns["match_id"] = np.full(n_rows, MISSING, np.int32)
    columns["status"] = Text.constant("", n_rows)
    columns["duration_ns"] = _durations(entries)
    columns["stack_id"], stacks, frames, sites = _stack_tables(entries)
    columns["site_id"] = sites[columns["stack_id"]] if len(sites) else np.full(n_rows, MISSING, np.int32)
    _mark_coalesced(columns, described, shape_codes)
    return Table("collectives", columns), stacks, frames


def _check_shapes(entries: Sequence[Entry]) -> None:
    """Refuses anything but lists of lists of numbers before it gets encoded: nesting could unfold without end."""
    for field in ("input_sizes", "output_sizes"):
        get = itemgetter(field)
        if max(map(len, map(get, entries)), default=0) > 1 << 20:
            raise ValueError(f"{field} has too many shapes")
        if sum(map(len, chain.from_iterable(map(get, entries)))) > _MAX_SHAPE_NUMBERS:
            raise ValueError(f"{field} has too many numbers")
        kinds = set(map(type, chain.from_iterable(chain.from_iterable(map(get, entries)))))
        if not kinds <= {int}:
            raise TypeError(f"{field} holds {_type_names(kinds)}")
    for field, allowed in (("input_dtypes", {str, int}), ("output_dtypes", {str, int}), ("process_group", {str})):
        get = itemgetter(field)
        if max(map(len, map(get, entries)), default=0) > 1 << 20:
            raise ValueError(f"{field} is too long")
        kinds = set(map(type, chain.from_iterable(map(get, entries))))
        if not kinds <= allowed:
            raise TypeError(f"{field} holds {_type_names(kinds)}")
    plain = {str, int, bool, float, type(None)}
    for field in ("profiling_name", "pg_id", "state", "is_p2p", "retired", "timeout_ms", "thread_name"):
        kinds = set(map(type, map(itemgetter(field), entries)))
        if not kinds <= plain:
            raise TypeError(f"{field} holds {_type_names(kinds)}")


def _type_names(kinds: set[type]) -> str:
    return ", ".join(sorted(kind.__name__ for kind in kinds))


def _distinct_shapes(entries: Sequence[Entry]) -> tuple[list[tuple[Any, ...]], Array]:
    """Codes by content: one binary encoding per row is the cheapest hashable form of nested lists."""
    encode = msgspec.msgpack.Encoder().encode
    get = itemgetter(*_SHAPE_FIELDS)
    pool: dict[bytes, int] = {}
    lookup = pool.setdefault
    codes = np.fromiter((lookup(encode(shape), len(pool)) for shape in map(get, entries)), np.int32, len(entries))
    return [tuple(msgspec.msgpack.decode(shape)) for shape in pool], codes


def _int_columns(entries: Sequence[Entry]) -> dict[str, Array]:
    n_rows = len(entries)
    columns = {
        column: np.fromiter(map(itemgetter(field), entries), np.int64, n_rows) for field, column in _INT_FIELDS.items()
    }
    for field, column in _TIME_FIELDS.items():
        # None in pickles, 0 in JSON: not noticed yet.
        columns[column] = np.fromiter((entry[field] or MISSING for entry in entries), np.int64, n_rows)
    return columns


def _durations(entries: Sequence[Entry]) -> Array:
    milliseconds = [entry.get("duration_ms") for entry in entries]
    if not any(milliseconds):
        return np.full(len(entries), MISSING, np.int64)
    return np.fromiter((MISSING if ms is None else int(ms * 1e6) for ms in milliseconds), np.int64, len(entries))


def _completed(entry: Entry) -> Entry:
    """Older layouts and the JSON variant, field by field in today's terms."""
    name = str(entry.get("profiling_name", ""))
    pg_id = entry.get("pg_id", 0)
    sequence = entry.get("seq_id", MISSING)
    group = entry.get("process_group")
    return {
        "record_id": entry.get("record_id", entry.get("id", 0)),
        "pg_id": pg_id,
        "process_group": group if isinstance(group, (list, tuple)) else (str(pg_id), ""),
        "collective_seq_id": entry.get("collective_seq_id", sequence),
        "p2p_seq_id": entry.get("p2p_seq_id", sequence if _P2P_NAME.search(name) else 0),
        "op_id": entry.get("op_id", MISSING),
        "profiling_name": name,
        "time_created_ns": entry.get("time_created_ns", entry.get("time_created_us", 0) * 1000),
        "time_discovered_started_ns": entry.get("time_discovered_started_ns"),
        "time_discovered_completed_ns": entry.get("time_discovered_completed_ns"),
        "duration_ms": entry.get("duration_ms"),
        "input_sizes": entry.get("input_sizes") or [],
        "output_sizes": entry.get("output_sizes") or [],
        "input_dtypes": entry.get("input_dtypes") or [],
        "output_dtypes": entry.get("output_dtypes") or [],
        "state": entry.get("state", "scheduled"),
        "is_p2p": entry.get("is_p2p", bool(_P2P_NAME.search(name))),
        "retired": entry.get("retired", entry.get("state") == "completed"),
        "timeout_ms": entry.get("timeout_ms", 0),
        "thread_name": entry.get("thread_name", ""),
        "frames": entry.get("frames") or [],
    }


def _describe(shape: tuple[Any, ...]) -> dict[str, Any]:
    """One distinct combination of repeating fields -> the values of its columns."""
    name, group, pg_id, in_sizes, out_sizes, in_types, out_types, state, is_p2p, retired, timeout_ms, thread = shape
    backend, _, operation = str(name).rpartition(":")
    transfer = _P2P_NAME.search(operation)
    in_types, out_types = _type_list(in_types), _type_list(out_types)
    return {
        "name": str(name),
        "backend": backend,
        "op": transfer.group(1) if transfer else _SAME_OP.get(operation, operation),
        # Group-local until the groups are known; see analyze/groups.py.
        "peer": int(transfer.group(3)) if transfer and transfer.group(3) != "?" else MISSING,
        "is_p2p": bool(is_p2p) or transfer is not None,
        "role": "batch" if _TRAILER.search(operation) else "call",
        "pg_id": int(pg_id),
        "group_name": str(group[0]) if group else str(pg_id),
        "group_desc": str(group[1]) if len(group) > 1 else "",
        "state": str(state),
        "retired": bool(retired),
        "timeout_ns": int(timeout_ms or 0) * 1_000_000,
        "input_sizes": _json(in_sizes),
        "output_sizes": _json(out_sizes),
        "input_dtypes": _json(in_types),
        "output_dtypes": _json(out_types),
        "n_input_bytes": _n_bytes(in_sizes, in_types),
        "n_output_bytes": _n_bytes(out_sizes, out_types),
        "thread": str(thread or ""),
    }


def _type_list(types: Sequence[str | int]) -> list[str]:
    return [
        kind if isinstance(kind, str) else _DTYPE_NUMBERS[kind] if 0 <= kind < len(_DTYPE_NUMBERS) else str(kind)
        for kind in types
    ]


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _n_bytes(sizes: Sequence[Sequence[int]], types: Sequence[str]) -> int:
    """Bytes of a list of tensors; a single type stands for all of them."""
    if sizes and not types:
        return MISSING
    n_total = 0
    for position, size in enumerate(sizes):
        n_item = _DTYPE_BYTES.get(types[min(position, len(types) - 1)], 0)
        n_elements = 1
        for extent in size:
            n_elements *= extent
        if not n_item or not 0 <= n_elements < 1 << 48:
            return MISSING
        n_total += n_elements * n_item
    return n_total if n_total < 1 << 62 else MISSING


def _shape_columns(described: Sequence[dict[str, Any]], codes: Array) -> dict[str, Array | Text]:
    columns: dict[str, Array | Text] = {}
    if not described:
        described = [_describe(("", ("", ""), 0, [], [], [], [], "", False, False, 0, ""))]
    for column in SCHEMA["collectives"].columns:
        if column.name not in described[0]:
            continue
        values = [row[column.name] for row in described]
        if column.is_text:
            text = Text.encode(values)
            columns[column.name] = Text(text.codes[codes], text.values)
        else:
            columns[column.name] = np.array(values, dtype=column.kind)[codes]
    return columns


def _stack_tables(entries: Sequence[Entry]) -> tuple[Array, Table, Table, Array]:
    """Frames of a pickle are shared objects, so identity is a cheap key; equal ones that are not shared still merge."""
    by_identity: dict[tuple[int, ...], int] = {}
    lookup = by_identity.setdefault
    codes = [lookup(tuple(map(id, entry.get("frames") or ())), len(by_identity)) for entry in entries]
    first_rows = {code: row for row, code in reversed(list(enumerate(codes)))}
    frames: dict[tuple[str, int, str], int] = {}
    stacks: dict[tuple[int, ...], int] = {}
    merged = np.empty(len(by_identity), np.int32)
    for code in range(len(by_identity)):
        stack = tuple(
            frames.setdefault(_frame_key(frame), len(frames)) for frame in entries[first_rows[code]].get("frames") or ()
        )
        merged[code] = stacks.setdefault(stack, len(stacks))
    is_user = [is_user_frame(file) for file, _, _ in frames]
    sites = [next((frame for frame in stack if is_user[frame]), stack[0] if stack else MISSING) for stack in stacks]
    frame_table = Table.from_rows(
        "frames",
        [
            {"frame_id": number, "file": file, "line": line, "function": function, "is_user": is_user[number]}
            for (file, line, function), number in frames.items()
        ],
    )
    stack_rows = [(number, depth, frame) for stack, number in stacks.items() for depth, frame in enumerate(stack)]
    stack_array = np.array(stack_rows, np.int32).reshape(-1, 3)
    stack_table = Table(
        "stacks", {"stack_id": stack_array[:, 0], "depth": stack_array[:, 1], "frame_id": stack_array[:, 2]}
    )
    row_stacks = merged[np.array(codes, np.int32)] if codes else np.empty(0, np.int32)
    return row_stacks, stack_table, frame_table, np.array(sites, np.int32)


def _frame_key(frame: Any) -> tuple[str, int, str]:
    line = frame.get("line", 0)
    return (
        str(frame.get("filename", "")),
        line if type(line) is int and 0 <= line < 1 << 31 else 0,
        str(frame.get("name", "")),
    )


_NOT_USER = re.compile(
    r"(^|/)torch/|(^|/)torchrun$|/lib/python\d[^/]*/(?!site-packages|dist-packages)|^<frozen|^<string>|(^|/)(runpy|threading)\.py$|\.(cpp|cc|cu|h|so)$"
)


def is_user_frame(file: str) -> bool:
    """False for frames of torch, of Python's own library and of launchers."""
    return bool(file) and not _NOT_USER.search(file)


def _mark_coalesced(columns: dict[str, Array | Text], described: Sequence[dict[str, Any]], codes: Array) -> None:
    """Members of a coalesced group get their role and state from its trailer; the trailer gets its members' shapes."""
    trailer_shapes = [number for number, row in enumerate(described) if row["role"] == "batch"]
    trailers = np.flatnonzero(np.isin(codes, trailer_shapes)) if trailer_shapes else ()
    if not len(trailers):
        return
    role, state, op = columns["role"], columns["state"], columns["op"]
    assert isinstance(role, Text) and isinstance(state, Text) and isinstance(op, Text)
    keys = np.stack([columns[name] for name in ("pg_id", "seq", "p2p_seq")], axis=1).tolist()  # type: ignore[arg-type]
    is_p2p, retired, completed = (columns[name] for name in ("is_p2p", "retired", "completed_ns"))
    assert isinstance(is_p2p, np.ndarray) and isinstance(retired, np.ndarray) and isinstance(completed, np.ndarray)
    started = columns["started_ns"]
    assert isinstance(started, np.ndarray)
    member_code = len(role.values)
    role.values.append("member")
    batch_code = role.values.index("batch")
    summaries: dict[tuple[int, ...], tuple[str, str, str, str]] = {}
    rewritten: dict[int, tuple[str, str, str, str]] = {}
    for trailer in trailers.tolist():
        first = trailer
        while first > 0 and keys[first - 1] == keys[trailer] and role.codes[first - 1] != batch_code:
            first -= 1
        members = slice(first, trailer)
        role.codes[members] = member_code
        state.codes[members] = state.codes[trailer]
        retired[members], completed[members], started[members] = retired[trailer], completed[trailer], started[trailer]
        if first < trailer and is_p2p[first]:
            is_p2p[trailer] = True
        elif first < trailer:
            shape_key = tuple(codes[members].tolist())
            rewritten[trailer] = summaries.setdefault(
                shape_key, _member_summary([described[code] for code in shape_key])
            )
    _rewrite_trailers(columns, rewritten)


def _member_summary(members: Sequence[dict[str, Any]]) -> tuple[str, str, str, str]:
    """Operation, sizes and types of a coalesced collective as a whole."""
    operations = list(dict.fromkeys(member["op"] for member in members))
    inputs = [size for member in members for size in msgspec.json.decode(member["input_sizes"])]
    outputs = [size for member in members for size in msgspec.json.decode(member["output_sizes"])]
    types = [kind for member in members for kind in msgspec.json.decode(member["input_dtypes"])]
    return "+".join(operations) + "_coalesced", _json(inputs), _json(outputs), _json(types)


def _rewrite_trailers(columns: dict[str, Array | Text], rewritten: dict[int, tuple[str, str, str, str]]) -> None:
    for position, name in enumerate(("op", "input_sizes", "output_sizes", "input_dtypes")):
        text = columns[name]
        assert isinstance(text, Text)
        pool = {value: code for code, value in enumerate(text.values)}
        for row, summary in rewritten.items():
            text.codes[row] = pool.setdefault(summary[position], len(pool))
        text.values = list(pool)
