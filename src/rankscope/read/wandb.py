"""Folders of Weights & Biases, written offline or kept beside a run -> the table of metrics.

run-*.wandb is a log in blocks of 32 KiB: each piece of a record has a checksum, a length and a kind (whole, first,
middle, last); a record is protobuf. wandb-summary.json has the last values only: it is read where the log is not there.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rankscope.errors import BadFileError
from rankscope.model import protobuf
from rankscope.model.protobuf import WireError, key
from rankscope.model.tables import MISSING, Table
from rankscope.read.files import Source
from rankscope.read.metric_rows import CutError, MetricRows, to_ns, to_step

NAME = "wandb"
MARKS = (":W&B", '"_runtime"', '"_timestamp"', '"_step"')
NAMES_TELL_RANK = False

_MAGIC = b":W&B"
_N_IDENT = 7  # magic, a number and a version
_BLOCK = 1 << 15
_PIECE = struct.Struct("<IHB")  # checksum, length, kind
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MAX_RECORD = 8 << 20  # a larger one holds no numbers over steps
_MAX_SUMMARY = 16 << 20
_MAX_JSON = 64  # characters of a number; what is longer is a table, an image or a text
_MAX_DEPTH = 4
_HINT = "pass the folder that wandb wrote (wandb/run-... or wandb/offline-run-...)"
_SUMMARY_KEYS = (b'"_runtime"', b'"_timestamp"', b'"_step"')
_OWN = ("_step", "_timestamp", "_runtime", "_wandb")

_HISTORY, _STATS = key(2, protobuf.LENGTH), key(7, protobuf.LENGTH)
_HISTORY_ITEM, _HISTORY_STEP = key(1, protobuf.LENGTH), key(2, protobuf.LENGTH)
_STATS_TIME, _STATS_ITEM = key(2, protobuf.LENGTH), key(3, protobuf.LENGTH)
_KEY, _NESTED, _JSON = key(1, protobuf.LENGTH), key(2, protobuf.LENGTH), key(16, protobuf.LENGTH)
_FIRST_NUMBER = key(1, protobuf.VARINT)  # of a step, and the seconds of a time


def sniff(head: bytes, name: str) -> bool:
    return head.startswith(_MAGIC) or _is_summary(head)


def _is_summary(head: bytes) -> bool:
    return head.lstrip()[:1] == b"{" and all(word in head for word in _SUMMARY_KEYS) and b"\n{" not in head


def read(source: Source) -> Iterator[Table]:
    if source.n_bytes == 0:
        raise BadFileError("is empty (0 bytes)", "the job ended before it wrote a number")
    rows = MetricRows(source, NAME)
    try:
        with source.open() as stream:
            ident = stream.read(_N_IDENT)
            if not ident.startswith(_MAGIC):
                yield from _read_summary(source, rows, ident + stream.read(_MAX_SUMMARY))
                return
            n_records = rows.take(_records(stream), _add)
    except (CutError, OSError, EOFError, zlib.error) as error:
        raise BadFileError(f"cannot be read as a Weights & Biases log ({error})", _HINT) from error
    if not n_records:
        raise BadFileError("has no records", _HINT)
    yield from rows.tables()


# The log


def _records(stream: BinaryIO) -> Iterator[bytes]:
    at = _N_IDENT
    parts: list[bytes] = []
    n_bytes = 0
    while True:
        left = _BLOCK - at % _BLOCK
        if left < _PIECE.size:
            at += len(stream.read(left))
        head = stream.read(_PIECE.size)
        if not head:
            break
        if len(head) < _PIECE.size:
            raise CutError("a length is truncated")
        checksum, length, kind = _PIECE.unpack(head)
        content = stream.read(length)
        at += len(head) + len(content)
        if len(content) < length:
            raise CutError("a record is truncated")
        if checksum != zlib.crc32(content, zlib.crc32(bytes([kind]))):
            raise CutError("a record has a wrong checksum")
        if kind in (_WHOLE, _FIRST):
            parts, n_bytes = [], 0
        n_bytes += length
        parts = [*parts, content] if n_bytes <= _MAX_RECORD else []
        if kind in (_WHOLE, _LAST):
            yield b"".join(parts) if n_bytes <= _MAX_RECORD else b""
            parts = []
        elif kind not in (_FIRST, _MIDDLE):
            raise CutError(f"a piece of the unknown kind {kind}")
    if parts:
        raise CutError("the last pieces of a record are missing")


def _add(rows: MetricRows, record: bytes) -> None:
    try:
        for field, raw in protobuf.fields(record):
            if field == _HISTORY:
                _add_history(rows, raw)
            elif field == _STATS:
                _add_stats(rows, raw)
    except WireError:
        rows.n_bad += 1


def _add_history(rows: MetricRows, content: bytes) -> None:
    values: dict[str, float] = {}
    step = 0  # protobuf leaves out what is zero
    for field, raw in protobuf.fields(content):
        if field == _HISTORY_ITEM:
            values.update(_item(raw))
        elif field == _HISTORY_STEP:
            step = next((number for key, number in protobuf.fields(raw) if key == _FIRST_NUMBER), 0)
    _add_values(rows, values, to_step(values.get("_step", step)))


def _add_values(rows: MetricRows, values: dict[str, float], step: int) -> None:
    time_ns = to_ns(values.get("_timestamp", math.nan))
    for name, value in values.items():
        if name not in _OWN and not name.startswith("_wandb."):
            rows.add(name, value, step, time_ns)


def _add_stats(rows: MetricRows, content: bytes) -> None:
    """What wandb itself measures of the machine, now and then."""
    time_ns = MISSING
    values: dict[str, float] = {}
    for field, raw in protobuf.fields(content):
        if field == _STATS_TIME:
            time_ns = to_ns(next((number for key, number in protobuf.fields(raw) if key == _FIRST_NUMBER), 0))
        elif field == _STATS_ITEM:
            values.update(_item(raw))
    for name, value in values.items():
        rows.add(f"system/{name}", value, MISSING, time_ns)


def _item(content: bytes) -> Iterator[tuple[str, float]]:
    name, nested, text = "", [], b""
    for field, raw in protobuf.fields(content):
        if field == _KEY:
            name = raw.decode("utf-8", "replace")
        elif field == _NESTED:
            nested.append(raw.decode("utf-8", "replace"))
        elif field == _JSON:
            text = raw
    if len(text) <= _MAX_JSON:
        yield from _numbers(name or ".".join(nested), _decoded(text), 0)


def _numbers(name: str, value: Any, depth: int) -> Iterator[tuple[str, float]]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            yield name, float(value)
        except OverflowError:
            yield name, math.inf
    elif isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):  # as older versions write them
        yield name, float(value.replace("Infinity", "inf"))
    elif isinstance(value, dict) and "_type" not in value and depth < _MAX_DEPTH:
        for key_, inner in value.items():
            yield from _numbers(f"{name}.{key_}", inner, depth + 1)


def _decoded(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


# The summary


def _read_summary(source: Source, rows: MetricRows, content: bytes) -> Iterator[Table]:
    values = _decoded(content)
    if not isinstance(values, dict) or "_step" not in values:
        raise BadFileError("is neither a Weights & Biases log nor a summary", _HINT)
    log = _log_beside(source)
    if log:
        columns = {"source": NAME, "status": "ignored", "problem": f"{log} has the same values, step by step"}
        yield Table.from_rows("files", [{**source.file_columns(), "rank": MISSING, **columns}])
        return
    summary: dict[str, float] = {}
    for name, value in values.items():
        summary.update(_numbers(str(name), value, 0))
    _add_values(rows, summary, to_step(summary.get("_step", math.nan)))
    yield from rows.tables()


def _log_beside(source: Source) -> str:
    if source.remote is not None or source.member or source.offset >= 0:
        return ""
    return next((path.name for path in sorted(Path(source.path).parent.parent.glob("run-*.wandb"))), "")
