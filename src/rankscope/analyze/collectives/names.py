"""How the parts of torch call one collective, and what the tables call it."""

from __future__ import annotations

from collections.abc import Mapping

from rankscope.model.comm_names import CPP_DTYPES, DTYPE_BYTES
from rankscope.model.sql import quote_text

# c10d::_allgather_base_, all_gather_into_tensor_coalesced and allgather begin alike once only letters are left. The
# first beginning that fits counts; names that begin with none (wait, init, coalescing) are no collectives.
_BEGINNINGS = {
    "allreducebarrier": "barrier",
    "monitoredbarrier": "barrier",
    "barrier": "barrier",
    "allreduce": "all_reduce",
    "reducescatter": "reduce_scatter",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "isend": "send",
    "recv": "recv",
    "irecv": "recv",
}
# Operations whose size is what the rank takes; that of all others is what it gives.
SIZED_BY_OUTPUT = ("scatter", "recv")
P2P = ("send", "recv")
# Operations that give and take the same tensors; others take into their first argument what they give with the second.
IN_PLACE = ("all_reduce", "broadcast", "reduce", *P2P)
# Where the operators of torch's library (c10d::...) have the root or the peer, from 1. No version has changed these.
PARTNER_AT = {"broadcast": 3, "reduce": 4, "gather": 4, "scatter": 4, "send": 3, "recv": 3}


def op_sql(name: str) -> str:
    """SQL: the operation that a name means; NULL for anything that is not a collective."""
    letters = f"regexp_replace(lower({name}), '[^a-z]', '', 'g')"
    branches = " ".join(
        f"WHEN starts_with({letters}, {quote_text(beginning)}) THEN {quote_text(op)}"
        for beginning, op in _BEGINNINGS.items()
    )
    return f"CASE {branches} END"


def dtype_sql(cpp_type: str) -> str:
    """SQL: the type that C++ calls so."""
    return _case_sql(cpp_type, {name: quote_text(dtype) for name, dtype in CPP_DTYPES.items()}, otherwise=cpp_type)


def item_bytes_sql(dtype: str) -> str:
    """SQL: the bytes of an element; NULL for types that are not known."""
    return _case_sql(dtype, {name: str(n_bytes) for name, n_bytes in DTYPE_BYTES.items()}, otherwise="NULL")


def _case_sql(value: str, results: Mapping[str, str], otherwise: str) -> str:
    branches = " ".join(f"WHEN {quote_text(name)} THEN {result}" for name, result in results.items())
    return f"CASE {value} {branches} ELSE {otherwise} END"
