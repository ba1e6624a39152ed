"""TensorBoard's event files -> the table of metrics.

A file is a run of records: length (8 bytes) and its checksum, an event as protobuf, and the event's checksum. Scalars
are taken, in both forms in which they are written; images, histograms and graphs are passed over.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

from rankscope.errors import BadFileError
from rankscope.model import protobuf
from rankscope.model.protobuf import WireError, key
from rankscope.model.tables import MISSING, Table
from rankscope.read.files import Source
from rankscope.read.metric_rows import CutError, MetricRows, to_ns, to_step

NAME = "tensorboard"
MARKS = ("brain.Event:2",)
NAMES_TELL_RANK = False

_VERSION = b"brain.Event:2"
_HINT = "pass the event files that a SummaryWriter wrote (events.out.tfevents...)"
_HEADER = struct.Struct("<QI")
_N_CHECKSUM = 4
_MAX_SCALARS = 1 << 20  # bytes of a record that is looked at: larger ones are images, graphs and the like
_HOST = re.compile(r"\.tfevents\.\d{1,19}\.(?P<host>.{1,255}?)\.\d{1,19}\.\d{1,19}(\.v2)?(\.gz|\.zst)?$")

# Fields: of the event, of a value of its summary, of a tensor.
_WALL_TIME, _STEP = key(1, protobuf.FIXED64), key(2, protobuf.VARINT)
_SUMMARY, _VALUE = key(5, protobuf.LENGTH), key(1, protobuf.LENGTH)
_TAG, _SIMPLE, _TENSOR = key(1, protobuf.LENGTH), key(2, protobuf.FIXED32), key(8, protobuf.LENGTH)
_DTYPE, _CONTENT = key(1, protobuf.VARINT), key(4, protobuf.LENGTH)
# What a tensor's type is called there: how its bytes are read.
_TYPES = {1: "float", 2: "double", 3: "int32", 9: "int64"}
_BYTES = {1: "<f", 2: "<d", 3: "<i", 9: "<q"}
_LISTS = {key(number, protobuf.LENGTH): kind for number, kind in ((5, 1), (6, 2), (7, 3), (10, 9))}
_SINGLES = {key(5, protobuf.FIXED32): 1, key(6, protobuf.FIXED64): 2, key(7, protobuf.VARINT): 3}
_SINGLES[key(10, protobuf.VARINT)] = 9


def sniff(head: bytes, name: str) -> bool:
    if len(head) < _HEADER.size:
        return False
    _, checksum = _HEADER.unpack_from(head)
    return checksum == masked_checksum(head[:8]) and _VERSION in head[: _HEADER.size + 64]


def read(source: Source) -> Iterator[Table]:
    if source.n_bytes == 0:
        raise BadFileError("is empty (0 bytes)", "the job ended before it wrote a number")
    rows = MetricRows(source, NAME)
    try:
        with source.open() as stream:
            rows.take(_records(stream), _add)
    except CutError as error:
        raise BadFileError(f"does not start like a TensorBoard event file ({error})", _HINT) from error
    match = _HOST.search(source.shown)
    yield from rows.tables(match["host"] if match else "")


def _records(stream: BinaryIO) -> Iterator[bytes]:
    """The content of each; empty for those that are too large to hold a scalar."""
    while head := stream.read(_HEADER.size):
        if len(head) < _HEADER.size:
            raise CutError("a length is truncated")
        length, checksum = _HEADER.unpack(head)
        if checksum != masked_checksum(head[:8]):
            raise CutError("a length has a wrong checksum")
        if length > _MAX_SCALARS:
            _pass_over(stream, length)
            content = b""
        else:
            content = stream.read(length)
            if len(content) < length:
                raise CutError("an event is truncated")
        if len(stream.read(_N_CHECKSUM)) < _N_CHECKSUM:
            raise CutError("a checksum is truncated")
        yield content


def _pass_over(stream: BinaryIO, length: int) -> None:
    while length:
        chunk = stream.read(min(length, 1 << 16))
        if not chunk:
            raise CutError("an event is truncated")
        length -= len(chunk)


def _add(rows: MetricRows, record: bytes) -> None:
    time_ns = step = MISSING
    summaries: list[bytes] = []
    try:
        for field, raw in protobuf.fields(record):
            if field == _WALL_TIME:
                time_ns = to_ns(_number("double", raw))
            elif field == _STEP:
                step = to_step(_number("int64", raw))
            elif field == _SUMMARY:
                summaries.append(raw)
        if step == MISSING:
            step = 0  # protobuf leaves out what is zero
        for summary in summaries:
            for field, raw in protobuf.fields(summary):
                if field == _VALUE:
                    tag, value = _tagged(raw)
                    if value is not None:
                        rows.add(tag, value, step, time_ns)
    except WireError:
        rows.n_bad += 1


def _tagged(content: bytes) -> tuple[str, float | None]:
    tag, value = "", None
    for field, raw in protobuf.fields(content):
        if field == _TAG:
            tag = raw.decode("utf-8", "replace")
        elif field == _SIMPLE:
            value = _number("float", raw)
        elif field == _TENSOR:
            value = _single(raw)
    return tag, value


def _single(tensor: bytes) -> float | None:
    """The value of a tensor of one number."""
    kind, values = 0, []
    for field, raw in protobuf.fields(tensor):
        if field == _DTYPE:
            kind = raw
        elif field == _CONTENT and kind in _BYTES and len(raw) == struct.calcsize(_BYTES[kind]):
            values.append(float(struct.unpack(_BYTES[kind], raw)[0]))
        elif field in _LISTS and len(raw) <= 16:
            values += [float(value) for value in protobuf.decode_packed(_TYPES[_LISTS[field]], raw)]
        elif field in _SINGLES:
            values.append(_number(_TYPES[_SINGLES[field]], raw))
    return values[0] if kind in _TYPES and len(values) == 1 else None


def _number(kind: str, raw: Any) -> float:
    return float(protobuf.decode_scalar(kind, raw))


def masked_checksum(data: bytes) -> int:
    """CRC-32C, rotated and shifted, as these files hold it."""
    checksum = 0xFFFFFFFF
    for byte in data:
        checksum = _CHECKSUMS[(checksum ^ byte) & 0xFF] ^ checksum >> 8
    checksum ^= 0xFFFFFFFF
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _checksum_of(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ 0x82F63B78 * (byte & 1)
    return byte


_CHECKSUMS = tuple(map(_checksum_of, range(256)))
