"""Payloads of compile logs, read from the mapped files on demand."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rankscope.model.tables import Trace

_KEEP_BYTES = 64 << 20  # mapped pages count as the process's memory: beyond this they are given back


class MappedLog:
    """The bytes of one log. Slices are copies; the pages behind them are released while reading."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            file.seek(0, 2)
            self.n_bytes = file.tell()
            # An empty file cannot be mapped.
            self.data: mmap.mmap | bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.n_bytes else b""
        self._n_touched = 0
        self._since = 0

    def header(self, row: Mapping[str, Any]) -> bytes:
        """The JSON of a row of compile_records."""
        return self._slice(row["header_start"], row["n_header_bytes"])

    def payload(self, row: Mapping[str, Any]) -> bytes:
        """The payload of a row of compile_records, as it was before torch put a tab before each line.

        A log whose header lines end with CRLF was converted on its way: its payloads were written without.
        """
        start = row["payload_start"]
        payload = untabbed(self._slice(start, row["n_payload_bytes"]))
        if self.data[start - 2 : start] == b"\r\n":
            return payload.replace(b"\r\n", b"\n").removesuffix(b"\r")
        return payload

    def _slice(self, start: int, length: int) -> bytes:
        self._n_touched += length
        # The system maps more around each slice than was asked for: the distance counts as well.
        if self._n_touched > _KEEP_BYTES or abs(start - self._since) > _KEEP_BYTES:
            self.give_back()
            self._since = start
        return self.data[start : start + length]

    def give_back(self, start: int = 0, length: int | None = None) -> None:
        """Lets go of the pages that were looked at; the system reads them again if they are wanted again."""
        self._n_touched = 0
        if isinstance(self.data, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            self.data.madvise(mmap.MADV_DONTNEED, start, self.n_bytes - start if length is None else length)


def untabbed(raw: bytes) -> bytes:
    """`\\tfirst\\n\\tsecond\\n` -> `first\\nsecond`. Lines without even a tab were put in by what carried the log."""
    if b"\n\n" in raw:
        raw = re.sub(rb"\n{2,}", b"\n", raw)
    return raw[1 : len(raw) - raw.endswith(b"\n")].replace(b"\n\t", b"\n")


def mapped_log(trace: Trace, file_id: int) -> MappedLog:
    """One per file and trace."""
    key = (MappedLog, file_id)
    if key not in trace.derived:
        logs = trace.table("compile_logs")
        paths = dict(zip(logs.array("file_id").tolist(), logs.text("plain_path").tolist(), strict=True))
        trace.derived[key] = MappedLog(paths[file_id])
    log: MappedLog = trace.derived[key]
    return log


def payloads(trace: Trace, kind: str, name: str = "") -> Iterator[tuple[dict[str, Any], bytes]]:
    """Every payload of the kind, or of it and the name, with its row of compile_records, in the order of the files."""
    records = trace.table("compile_records")
    wanted = records.text("kind").equals(kind)
    if name:
        wanted &= records.text("name").equals(name)
    for row in records.take(wanted.nonzero()[0]).rows():
        if row["n_payload_bytes"]:
            yield row, mapped_log(trace, row["file_id"]).payload(row)


def damaged_payloads(trace: Trace) -> Iterator[dict[str, Any]]:
    """Rows of compile_records whose payload is not what its checksum says."""
    for row in trace.table("compile_records").rows():
        if not row["md5"]:
            continue
        if not fits_checksum(mapped_log(trace, row["file_id"]).payload(row), row["md5"]):
            yield row


def fits_checksum(payload: bytes, checksum: str) -> bool:
    """Whether the payload is what was written, but for line ends that were converted on the way."""
    from hashlib import md5

    texts = (payload, payload.removesuffix(b"\r").replace(b"\r\n", b"\n"))
    return any(md5(text, usedforsecurity=False).hexdigest() == checksum for text in texts)
