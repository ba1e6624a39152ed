"""How one call does not fit another, in the terms and words of torch's analyzer."""

from __future__ import annotations

from typing import Any

import msgspec

from rankscope.model.call_text import count_elements, decode_shapes
from rankscope.render.torch_types import MatchInfo, MatchState

Call = dict[str, Any]
_TRANSFERS = ("send", "recv")


def call_mismatch(expected: Call, found: Call) -> MatchInfo | None:
    """None where the two fit: both as they were recorded, the expected one being what most ranks called."""
    if expected["op"] in _TRANSFERS:
        return None if _fits_transfer(expected, found) else MatchInfo(MatchState.SIZE_OR_SYNTAX_MISMATCH)
    if expected["op"] != found["op"]:
        kinds = f"'{_kind(expected)}' does not match found collective type: '{_kind(found)}'"
        return MatchInfo(MatchState.COLLECTIVE_TYPE_MISMATCH, f"Expected collective type: {kinds}")
    size = _size_mismatch(expected, found)
    if size:
        return MatchInfo(MatchState.SIZE_OR_SYNTAX_MISMATCH, size)
    dtype = _dtype_mismatch(expected, found)
    if dtype:
        return MatchInfo(MatchState.COLLECTIVE_DTYPE_MISMATCH, dtype)
    return state_mismatch(expected, found)


def state_mismatch(expected: Call, found: Call) -> MatchInfo | None:
    """A call that did not end although it did for others; what a rank has only not noticed yet counts as ended."""
    if expected["status"] == "done" != found["status"]:
        states = f"'{expected['state']}' does not match found state: '{found['state']}'"
        return MatchInfo(MatchState.COLLECTIVE_STATE_MISMATCH, f"Expected state: {states}")
    return None


def _kind(call: Call) -> str:
    return str(call["name"]).rpartition(":")[2]


def _fits_transfer(one: Call, other: Call) -> bool:
    moved = [
        {count_elements(decode_shapes(call[side])) for side in ("input_sizes", "output_sizes")} - {0}
        for call in (one, other)
    ]
    return moved[0] == moved[1] and not _dtype_mismatch(one, other)


def _size_mismatch(expected: Call, found: Call) -> str:
    op = expected["op"]
    for side, free in (("input", "scatter"), ("output", "gather")):
        mine, theirs = (decode_shapes(call[f"{side}_sizes"]) for call in (expected, found))
        if op not in ("all_to_all", free) and mine != theirs:
            return f"Expected {side} sizes: '{mine}' does not match found {side} sizes: '{theirs}'"
    return ""


def _dtype_mismatch(expected: Call, found: Call) -> str:
    """A call of a layout without types fits any."""
    kinds = [
        set(msgspec.json.decode(call[f"{side}_dtypes"])) for call in (expected, found) for side in ("input", "output")
    ]
    mine, theirs = (kinds[0] or kinds[1]), (kinds[2] or kinds[3])
    if not mine or not theirs or mine == theirs:
        return ""
    return f"Expected dtypes: '{kinds[0]}' does not match found dtype: '{kinds[1]}/{kinds[2]}/{kinds[3]}'"
