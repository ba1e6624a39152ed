"""Logs of training numbers as other tools write them: TensorBoard's events, W&B's log, CSV and JSON lines."""

from __future__ import annotations

import csv
import io
import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence

from rankscope.model import protobuf
from rankscope.read.tensorboard import masked_checksum
from read.collected_files import START_NS

START_S = START_NS / 1e9
BLOCK = 1 << 15


def tfevents(values: Sequence[tuple[int, Mapping[str, float]]], *, as_tensors: bool = False) -> bytes:
    """One event per step, each a second after the one before; floats as they are, or as tensors of one number."""
    version = protobuf.scalar_field(1, "double", START_S) + protobuf.delimited(3, b"brain.Event:2")
    events = [version]
    for step, told in values:
        summary = b"".join(
            protobuf.delimited(1, protobuf.delimited(1, name.encode()) + (_tensor if as_tensors else _simple)(value))
            for name, value in told.items()
        )
        about = protobuf.scalar_field(1, "double", START_S + step) + protobuf.scalar_field(2, "int64", step)
        events.append(about + protobuf.delimited(5, summary))
    return b"".join(map(tfrecord, events))


def tfrecord(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    checksums = [struct.pack("<I", masked_checksum(data)) for data in (length, content)]
    return length + checksums[0] + content + checksums[1]


def _simple(value: float) -> bytes:
    return protobuf.scalar_field(2, "float", value)


def _tensor(value: float) -> bytes:
    """As TensorFlow 2 does; its plugin is named beside it."""
    tensor = protobuf.scalar_field(1, "int32", 1) + protobuf.delimited(2, b"")
    plugin = protobuf.delimited(9, protobuf.delimited(1, protobuf.delimited(1, b"scalars")))
    return protobuf.delimited(8, tensor + protobuf.repeated_field(5, "float", [value])) + plugin


def wandb_log(records: Sequence[bytes]) -> bytes:
    """Records in pieces that no block of 32 KiB cuts."""
    log = bytearray(b":W&B" + struct.pack("<HB", 0xBEE1, 0))
    for record in records:
        is_first = True
        while True:
            left = BLOCK - len(log) % BLOCK
            if left < 7:
                log += bytes(left)
                left = BLOCK
            piece, record = record[: left - 7], record[left - 7 :]
            kind = (1 if is_first else 4) if not record else (2 if is_first else 3)
            checksum = zlib.crc32(piece, zlib.crc32(bytes([kind])))
            log += struct.pack("<IHB", checksum, len(piece), kind) + piece
            is_first = False
            if not record:
                break
    return bytes(log)


def wandb_history(step: int, values: Mapping[str, object]) -> bytes:
    told = {**values, "_step": step, "_timestamp": START_S + step}
    items = b"".join(protobuf.delimited(1, _wandb_item(name, value)) for name, value in told.items())
    number = protobuf.delimited(2, protobuf.scalar_field(1, "int64", step))
    return protobuf.scalar_field(1, "int64", step + 1) + protobuf.delimited(2, items + number)


def wandb_stats(second: int, values: Mapping[str, object]) -> bytes:
    time = protobuf.delimited(2, protobuf.scalar_field(1, "int64", int(START_S) + second))
    items = b"".join(protobuf.delimited(3, _wandb_item(name, value)) for name, value in values.items())
    return protobuf.delimited(7, time + items)


def _wandb_item(name: str, value: object) -> bytes:
    return protobuf.delimited(1, name.encode()) + protobuf.delimited(16, json.dumps(value).encode())


def csv_log(rows: Sequence[Mapping[str, object]], delimiter: str = ",") -> str:
    """With a column for all that any row has; what a row lacks is empty."""
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names, delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def json_log(rows: Sequence[Mapping[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def record_ends(name: str, content: bytes) -> Iterator[int]:
    """Where a log that is cut there is a shorter log."""
    at = 0
    if name == "tensorboard":
        while at < len(content):
            at += 16 + int.from_bytes(content[at : at + 8], "little")
            yield at
    elif name == "wandb":
        at = 7
        while at < len(content):
            if BLOCK - at % BLOCK < 7:
                at += BLOCK - at % BLOCK
            kind = content[at + 6]
            at += 7 + int.from_bytes(content[at + 4 : at + 6], "little")
            if kind in (1, 4):
                yield at
