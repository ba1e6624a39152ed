"""Keys and values of the desync state in a store: as torch's own tracker writes them, and one key more with details."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Kind = Literal["trace_start", "trace_end", "rankscope"]

_KEY = re.compile(r"(?P<prefix>(?:.*/)?)(?P<group>[^/]+)_(?P<rank>\d{1,9})_(?P<kind>trace_start|trace_end|rankscope)")
_SEQ_BYTES = 8
_MAX_OP_BYTES = 256
_OP_NAME = re.compile(r"[ -~]{1,256}")
# What torch's OpType calls the operations that its recorder writes in small letters.
_OP_TYPES = {
    "all_reduce": "ALLREDUCE",
    "all_reduce_coalesced": "ALLREDUCE_COALESCED",
    "sparse_all_reduce": "_ALLREDUCE_SPARSE",
    "all_reduce_sparse": "_ALLREDUCE_SPARSE",
    "all_gather": "ALLGATHER",
    "all_gather_into_tensor": "_ALLGATHER_BASE",
    "all_gather_into_tensor_coalesced": "ALLGATHER_COALESCED",
    "_all_gather_base": "_ALLGATHER_BASE",
    "reduce_scatter_tensor": "_REDUCE_SCATTER_BASE",
    "all_to_all": "ALLTOALL",
    "all_to_all_single": "ALLTOALL_BASE",
    "recv_any_source": "RECVANYSOURCE",
}
_PEERS = re.compile(r"\s+\d+\s*(?:->|<-).*")


class StateKey(NamedTuple):
    prefix: str  # what the store and the prefixes around it put before the tracker's own name
    group: str
    rank: int  # in the group
    kind: Kind


class State(NamedTuple):
    seq: int
    op: str


def start_key(group: str, rank: int) -> str:
    return f"{group}_{rank}_trace_start"


def end_key(group: str, rank: int) -> str:
    return f"{group}_{rank}_trace_end"


def detail_key(group: str, rank: int) -> str:
    return f"{group}_{rank}_rankscope"


def parse_key(key: str) -> StateKey | None:
    """None for other keys: a store has much else."""
    match = _KEY.fullmatch(key)
    return StateKey(match["prefix"], match["group"], int(match["rank"]), match["kind"]) if match else None  # type: ignore[arg-type]


def op_type(profiling_name: str) -> str:
    """`gloo:all_reduce` -> ALLREDUCE, `gloo:send 0->1` -> SEND."""
    operation = _PEERS.sub("", profiling_name.rpartition(":")[2])
    return _OP_TYPES.get(operation, operation.upper())


def encode_state(seq: int, op: str) -> bytes:
    return seq.to_bytes(_SEQ_BYTES, "little") + op.encode() + b"\0"


def decode_state(value: bytes) -> State:
    """ValueError: it is not what a tracker writes."""
    if len(value) <= _SEQ_BYTES:
        raise ValueError(f"its value has {len(value)} bytes and no name of a collective")
    seq = int.from_bytes(value[:_SEQ_BYTES], "little")
    op = value[_SEQ_BYTES : _SEQ_BYTES + _MAX_OP_BYTES].partition(b"\0")[0].decode("latin-1")
    if seq >= 1 << 62 or not _OP_NAME.fullmatch(op):  # torch counts in 64 bits, and no job gets that far
        raise ValueError("its value is not a sequence number and the name of a collective")
    return State(seq, op)


def encode_detail(detail: Mapping[str, Any]) -> bytes:
    return json.dumps(detail, separators=(",", ":")).encode()
