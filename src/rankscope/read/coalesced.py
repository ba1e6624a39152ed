"""Coalesced groups in a dump: members carry no state, the trailer no shapes; here each gets the other's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from rankscope.model.tables import Array, Text
from rankscope.read.recorder_shapes import to_json

Columns = dict[str, Any]


def mark_coalesced(columns: Columns, described: Sequence[dict[str, Any]], codes: Array) -> None:
    """Members of a coalesced group get their role and state from its trailer; the trailer gets its members' shapes."""
    trailer_shapes = [number for number, row in enumerate(described) if row["role"] == "batch"]
    if not trailer_shapes:
        return
    trailers = np.flatnonzero(np.isin(codes, trailer_shapes))
    role, state, is_p2p = columns["role"], columns["state"], columns["is_p2p"]
    keys = np.stack([columns[name] for name in ("pg_id", "seq", "p2p_seq")], axis=1).tolist()
    inherited = [columns[name] for name in ("retired", "completed_ns", "started_ns")]
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
        for column in inherited:
            column[members] = column[trailer]
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
    return "+".join(operations) + "_coalesced", to_json(inputs), to_json(outputs), to_json(types)


def _rewrite_trailers(columns: Columns, rewritten: dict[int, tuple[str, str, str, str]]) -> None:
    for position, name in enumerate(("op", "input_sizes", "output_sizes", "input_dtypes")):
        text: Text = columns[name]
        pool = {value: code for code, value in enumerate(text.values)}
        for row, summary in rewritten.items():
            text.codes[row] = pool.setdefault(summary[position], len(pool))
        text.values = list(pool)
