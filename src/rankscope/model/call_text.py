"""A call in words: shapes and types as people write them, from the JSON that the tables hold."""

from __future__ import annotations

import math

import msgspec

_SHORT_TYPES = {
    "BFloat16": "bf16",
    "Bool": "bool",
    "Byte": "u8",
    "Char": "i8",
    "Double": "f64",
    "Float": "f32",
    "Float8_e4m3fn": "f8e4m3",
    "Float8_e5m2": "f8e5m2",
    "Half": "f16",
    "Int": "i32",
    "Long": "i64",
    "Short": "i16",
}


def decode_shapes(encoded: str) -> list[list[int]]:
    return msgspec.json.decode(encoded, type=list[list[int]]) if encoded else []


def count_elements(shapes: list[list[int]]) -> int:
    return sum(math.prod(shape) for shape in shapes)


def describe_shapes(inputs: str, outputs: str) -> str:
    """`[8192]`, `[8192] x3`, `[128] -> [1024]`: the inputs, and the outputs where they differ."""
    before, after = _shapes_text(decode_shapes(inputs)), _shapes_text(decode_shapes(outputs))
    return f"{before} -> {after}" if before and after and before != after else before or after


def _shapes_text(shapes: list[list[int]]) -> str:
    if not shapes:
        return ""
    first = f"[{','.join(map(str, shapes[0]))}]"
    if len(shapes) == 1:
        return first
    return (
        f"{first} x{len(shapes)}"
        if all(shape == shapes[0] for shape in shapes)
        else f"{first} and {len(shapes) - 1} more"
    )


def describe_types(inputs: str, outputs: str) -> str:
    kinds = _decode_types(inputs) or _decode_types(outputs)
    return "/".join(dict.fromkeys(_SHORT_TYPES.get(kind, kind) for kind in kinds))


def _decode_types(encoded: str) -> list[str]:
    return [str(kind) for kind in msgspec.json.decode(encoded)] if encoded else []
