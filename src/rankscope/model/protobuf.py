"""Protobuf's wire format, in both directions, as far as messages without groups need it.

A message is a run of fields: a tag (number and wire type), then a varint, or 4 or 8 bytes, or a length and its bytes.

Not protobuf's own library: whole columns are written in a third of its time (an export of 420,970 nodes takes 0.9 s of
CPU instead of 2.5 s). Chakra's files are read by the library; what is read here are the few fields of other formats.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from rankscope.model.tables import Array

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
MAX_MESSAGE_BYTES = (1 << 31) - 1  # what every implementation of protobuf takes at most

Value: TypeAlias = "float | int | bool | str | bytes"
# The tag as a number (see `key`), and what follows it: an int of VARINT, bytes of all others.
Field: TypeAlias = "tuple[int, Any]"

_MASK_32, _MASK_64 = (1 << 32) - 1, (1 << 64) - 1
_MAX_VARINT_BYTES = 10
_FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
# The least number that takes two bytes, three bytes, ...
_VARINT_LIMITS = np.array([1 << 7 * n_bytes for n_bytes in range(1, _MAX_VARINT_BYTES)], np.uint64)
_SHIFTS = np.arange(0, 7 * _MAX_VARINT_BYTES, 7, dtype=np.uint64)


class WireError(ValueError):
    """Bytes that are not a message; the text says what was found in them."""


class Scalar(NamedTuple):
    """How the values of one scalar type are written."""

    wire: int
    layout: str = ""  # of those with a fixed size, as struct and numpy name it
    n_bits: int = 64
    is_signed: bool = False
    is_zigzag: bool = False  # small negative numbers are short, too


SCALARS: dict[str, Scalar] = {
    "double": Scalar(FIXED64, "<f8"),
    "float": Scalar(FIXED32, "<f4"),
    "int32": Scalar(VARINT, n_bits=32, is_signed=True),
    "int64": Scalar(VARINT, is_signed=True),
    "uint32": Scalar(VARINT, n_bits=32),
    "uint64": Scalar(VARINT),
    "sint32": Scalar(VARINT, n_bits=32, is_signed=True, is_zigzag=True),
    "sint64": Scalar(VARINT, is_signed=True, is_zigzag=True),
    "fixed32": Scalar(FIXED32, "<u4"),
    "fixed64": Scalar(FIXED64, "<u8"),
    "sfixed32": Scalar(FIXED32, "<i4"),
    "sfixed64": Scalar(FIXED64, "<i8"),
    "bool": Scalar(VARINT, n_bits=1),
    "string": Scalar(LENGTH),
    "bytes": Scalar(LENGTH),
}
_STRUCT_CODES = {"<f8": "<d", "<f4": "<f", "<u4": "<I", "<u8": "<Q", "<i4": "<i", "<i8": "<q"}
_STRUCTS = {layout: struct.Struct(code) for layout, code in _STRUCT_CODES.items()}


# Writing, value by value


def encode_varint(value: int) -> bytes:
    """Negative numbers are written as the 64 bits of their two's complement."""
    value &= _MASK_64
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def key(number: int, wire: int) -> int:
    return number << 3 | wire


def tag(number: int, wire: int) -> bytes:
    return encode_varint(key(number, wire))


def delimited(number: int, content: bytes) -> bytes:
    """A field of text, bytes, or a message."""
    return tag(number, LENGTH) + encode_varint(len(content)) + content


def scalar_field(number: int, kind: str, value: Value) -> bytes:
    if SCALARS[kind].wire == LENGTH:
        return delimited(number, _as_bytes(value))
    return tag(number, SCALARS[kind].wire) + _encode_number(kind, value)


def repeated_field(number: int, kind: str, values: Iterable[Value]) -> bytes:
    """Numbers are packed into one field, texts have one each."""
    if SCALARS[kind].wire == LENGTH:
        return b"".join(delimited(number, _as_bytes(value)) for value in values)
    packed = b"".join(_encode_number(kind, value) for value in values)
    return delimited(number, packed) if packed else b""


def text_bytes(text: str) -> bytes:
    """A lone surrogate, which UTF-8 cannot hold, is written as its escape."""
    return text.encode("utf-8", "backslashreplace")


def _as_bytes(value: Value) -> bytes:
    return bytes(value) if isinstance(value, bytes) else text_bytes(str(value))


def _encode_number(kind: str, value: Value) -> bytes:
    scalar = SCALARS[kind]
    if scalar.layout:
        return _STRUCTS[scalar.layout].pack(value)
    number = int(value)
    return encode_varint(number << 1 ^ number >> 63 if scalar.is_zigzag else number)


# Writing, column by column


def number_matrix(kind: str, values: Array) -> tuple[Array, Array]:
    """A row of bytes per number, and how many of them count."""
    scalar = SCALARS[kind]
    if scalar.layout:
        matrix = np.ascontiguousarray(values, scalar.layout).view(np.uint8).reshape(len(values), -1)
        return matrix, np.full(len(values), matrix.shape[1])
    if values.dtype == np.uint64 and not scalar.is_zigzag:
        return varint_matrix(values)
    signed = values.astype(np.int64)
    return varint_matrix((signed << 1 ^ signed >> 63 if scalar.is_zigzag else signed).view(np.uint64))


def varint_matrix(values: Array) -> tuple[Array, Array]:
    sizes = np.searchsorted(_VARINT_LIMITS, values, side="right") + 1
    matrix = (values[:, np.newaxis] >> _SHIFTS[: sizes.max(initial=1)]).astype(np.uint8) | np.uint8(0x80)
    matrix[np.arange(len(values)), sizes - 1] &= 0x7F
    return matrix, sizes


# Reading


def decode_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that starts at `at`, and where the next thing starts."""
    value = shift = 0
    for byte in data[at : at + _MAX_VARINT_BYTES]:
        at += 1
        if byte < 0x80:
            value |= byte << shift
            if value > _MASK_64:
                raise WireError("a number of more than 64 bits")
            return value, at
        value |= (byte & 0x7F) << shift
        shift += 7
    if shift == 7 * _MAX_VARINT_BYTES:
        raise WireError("a number of more than 10 bytes")
    raise WireError("the end in the middle of a number")


def decode_varints(data: bytes) -> list[int]:
    if data.isascii():  # all below 128: each byte is a number
        return list(data)
    values = []
    at = 0
    while at < len(data):
        value, at = decode_varint(data, at)
        values.append(value)
    return values


def fields(data: bytes) -> Iterator[Field]:
    """The fields of a message in their order, known or not. Most tags, lengths and numbers have one byte."""
    at, end = 0, len(data)
    while at < end:
        key = data[at]
        at += 1
        if key > 0x7F:
            key, at = decode_varint(data, at - 1)
        if key < 8:
            raise WireError("a field with the number 0")
        wire = key & 7
        if wire in (LENGTH, VARINT):
            if at < end and data[at] < 0x80:
                value = data[at]
                at += 1
            else:
                value, at = decode_varint(data, at)
            if wire == VARINT:
                yield key, value
                continue
        elif wire in _FIXED_BYTES:
            value = _FIXED_BYTES[wire]
        else:
            raise WireError(f"a field of the wire type {wire}")
        if value > end - at:
            raise WireError(f"a field of {value:,} bytes where {end - at:,} are left")
        yield key, data[at : at + value]
        at += value


def decode_scalar(kind: str, raw: Any) -> Value:
    """The value of a field whose wire type is that of the kind."""
    scalar = SCALARS[kind]
    if scalar.wire == VARINT:
        return _decode_integer(scalar, raw)
    if scalar.layout:
        value: float | int = _STRUCTS[scalar.layout].unpack(raw)[0]
        return value
    return decode_text(raw) if kind == "string" else bytes(raw)


def decode_packed(kind: str, raw: bytes) -> list[Value]:
    """The numbers that one field holds."""
    scalar = SCALARS[kind]
    if scalar.wire == VARINT:
        return [_decode_integer(scalar, value) for value in decode_varints(raw)]
    layout = _STRUCTS[scalar.layout]
    if len(raw) % layout.size:
        raise WireError(f"a list of {kind} in {len(raw):,} bytes")
    return [value for (value,) in layout.iter_unpack(raw)]


def _decode_integer(scalar: Scalar, raw: int) -> int | bool:
    """Bits beyond those of the type are cut off, as every implementation does."""
    if scalar.n_bits == 1:
        return raw != 0
    value = raw & _MASK_32 if scalar.n_bits == 32 else raw
    if scalar.is_zigzag:
        return value >> 1 ^ -(value & 1)
    return value - (1 << scalar.n_bits) if scalar.is_signed and value >> scalar.n_bits - 1 else value


def decode_text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise WireError("text that is not UTF-8") from None
