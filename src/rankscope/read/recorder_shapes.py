"""What one Flight Recorder entry says about its call: names, groups, sizes and types, put into the model's terms."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from rankscope.model.comm_names import DTYPE_BYTES, SAME_OP
from rankscope.model.numbers import rank_number, whole
from rankscope.model.tables import MISSING

# Fields that repeat from call to call: their combination is looked up once per distinct value, not once per row.
SHAPE_FIELDS = (
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

# Dumps of layout 2.1 wrote torch's internal number of the type.
_DTYPE_NUMBERS = ("Byte", "Char", "Short", "Int", "Long", "Half", "Float", "Double", "ComplexHalf", "ComplexFloat",
                  "ComplexDouble", "Bool", "QInt8", "QUInt8", "QInt32", "BFloat16")  # fmt: skip

_P2P_NAME = re.compile(r"(send|recv)\s+(\d+)\s*(?:->|<-)\s*(\d+|\?)")
# The trailer of a coalesced group is named after the operation in capitals, a single fused call in small letters.
_TRAILER = re.compile(r"^(coalesced|[A-Z_]{3,}_coalesced)$")


def completed_entry(entry: dict[str, Any]) -> dict[str, Any]:
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


def describe_shape(shape: tuple[Any, ...]) -> dict[str, Any]:
    """One distinct combination of repeating fields -> the values of its columns."""
    name, group, pg_id, in_sizes, out_sizes, in_types, out_types, state, is_p2p, retired, timeout_ms, thread = shape
    backend, _, operation = str(name).rpartition(":")
    transfer = _P2P_NAME.search(operation)
    in_types, out_types = _type_list(in_types), _type_list(out_types)
    return {
        "name": str(name),
        "backend": backend,
        "op": transfer.group(1) if transfer else SAME_OP.get(operation, operation),
        # Group-local until the groups are known; see analyze/groups.py.
        "peer": rank_number(transfer.group(3)) if transfer else MISSING,
        # torchcomms names neither the other side of a transfer nor, in its field, that it is one.
        "is_p2p": bool(is_p2p) or transfer is not None or operation in ("send", "recv"),
        "role": "batch" if _TRAILER.search(operation) else "call",
        "pg_id": whole(pg_id),
        "group_name": str(group[0]) if group else str(pg_id),
        "group_desc": str(group[1]) if len(group) > 1 else "",
        "state": str(state),
        "retired": bool(retired),
        "timeout_ns": whole(timeout_ms or 0) * 1_000_000,
        "input_sizes": to_json(in_sizes),
        "output_sizes": to_json(out_sizes),
        "input_dtypes": to_json(in_types),
        "output_dtypes": to_json(out_types),
        "n_input_bytes": _n_bytes(in_sizes, in_types),
        "n_output_bytes": _n_bytes(out_sizes, out_types),
        "thread": str(thread or ""),
    }


def _type_list(types: Sequence[str | int]) -> list[str]:
    return [
        kind if isinstance(kind, str) else _DTYPE_NUMBERS[kind] if 0 <= kind < len(_DTYPE_NUMBERS) else str(kind)
        for kind in types
    ]


def plain_text(value: Any) -> str:
    """Text as it is, and nothing of anything else: a nested value could unfold without end when written out."""
    return value if isinstance(value, str) else ""


def to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _n_bytes(sizes: Sequence[Sequence[int]], types: Sequence[str]) -> int:
    """Bytes of a list of tensors; a single type applies to all of them."""
    if sizes and not types:
        return MISSING
    n_total = 0
    for position, size in enumerate(sizes):
        n_item = DTYPE_BYTES.get(types[min(position, len(types) - 1)], 0)
        n_elements = 1
        for extent in size:
            n_elements *= extent
        if not n_item or not 0 <= n_elements < 1 << 48:
            return MISSING
        n_total += n_elements * n_item
    return n_total if n_total < 1 << 62 else MISSING


_NOT_USER = re.compile(
    r"(^|/)torch/|(^|/)rankscope/collect/|(^|/)torchrun$|/lib/python\d[^/]*/(?!site-packages|dist-packages)|^<|^\?\?"
    r"|(^|/)(runpy|threading)\.py$|\.(c|cc|cpp|cu|cuh|h|hpp|S|so)(\.\d+)*$"
)


_NATIVE = re.compile(r"^\?\?|\.(c|cc|cpp|cu|cuh|h|hpp|S|so)(\.\d+)*$")


def frame_row(number: int, file: str, line: int, function: str) -> dict[str, object]:
    """A row of the table frames."""
    is_python = file.startswith("<") or file.endswith(".py")
    # Programs have no ending by which to know them, but a frame of Python has its line.
    is_native = not is_python and bool(file) and (line <= 0 or bool(_NATIVE.search(file)))
    language = "c++" if is_native else "python" if file else ""
    is_user = not is_native and is_user_frame(file)
    return {
        "frame_id": number,
        "file": file,
        "line": line,
        "function": function,
        "is_user": is_user,
        "language": language,
    }


@functools.lru_cache(maxsize=1 << 16)  # the same few files are on every stack
def is_user_frame(file: str) -> bool:
    """False for frames of torch, of Python's own library and of launchers."""
    return bool(file) and not _NOT_USER.search(file)
