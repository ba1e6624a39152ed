"""Cuts a trace, as it streams in, into JSON arrays of whole events and the small object around them.

A trace of gigabytes is never in memory: one part at a time is. An unescaped `{"ph"` cannot occur inside a JSON string,
so `}, {"ph"` is always a border between two events; traces that begin their events with another key are cut there.
Nodes of execution traces hold objects themselves, but only nodes end with a list or an object.
"""

from __future__ import annotations

import io
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

import msgspec

from rankscope.errors import BadFileError
from rankscope.model.numbers import MAX_LONG, integer

PART_BYTES = 24 << 20
MAX_EVENT_BYTES = 16 << 20
_CHUNK_BYTES = 4 << 20
_MAX_HEAD_BYTES = 64 << 20
_FIRST_KEY = re.compile(rb'\s*\{\s*("(?:[^"\\]|\\.){1,64}")\s*:')
_PH_FIRST = re.compile(rb'\{\s*"ph"')
# Python writes half a character as it is; other readers of JSON refuse the whole text for it.
_LONE_SURROGATE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_DECODER = json.JSONDecoder()


Part = tuple[bytes | memoryview, ...]  # pieces of one text, which are written one after the other


@dataclass
class EventStream:
    """Iterate over it for the parts; `around` and `problem` are known when that is done."""

    stream: BinaryIO
    key: str = "traceEvents"  # under which the array stands
    around: dict[str, Any] = field(default_factory=dict)  # everything beside the events
    problem: str = ""  # what is wrong although events were found
    n_bytes: int = 0  # of JSON text

    def __iter__(self) -> Iterator[Part]:
        """The events as JSON arrays."""
        head, buffer = self._read_head()
        border = _border(buffer, self.key)
        while True:
            cut = _last_border(buffer, border) if len(buffer) >= PART_BYTES else -1
            if cut >= 0:
                yield b"[", memoryview(buffer)[: cut + 1], b"]"
                buffer = buffer[buffer.index(b"{", cut + 1) :]
                continue
            if len(buffer) > PART_BYTES + MAX_EVENT_BYTES:
                raise BadFileError(
                    f"has an event of more than {MAX_EVENT_BYTES >> 20} MB", "it is corrupt: record it again"
                )
            chunk = self._next_chunk()
            if not chunk:
                break
            buffer += chunk
        yield from self._last_part(head, buffer, border)

    def _next_chunk(self) -> bytes:
        try:
            # read() would lose what it has when the stream breaks before the chunk is full.
            chunk = cast(io.BufferedReader, self.stream).read1(_CHUNK_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            self.problem = f"cannot be decompressed beyond {self.n_bytes:,} bytes: {error}"
            return b""
        self.n_bytes += len(chunk)
        return chunk

    def _read_head(self) -> tuple[bytes, bytearray]:
        """The text before the first event, and the start of the events."""
        array = re.compile(rb'"%b"\s*:\s*\[' % self.key.encode())
        buffer = bytearray()
        while chunk := self._next_chunk():
            buffer += chunk
            if buffer.lstrip()[:1] == b"[":
                return b"", buffer[buffer.index(b"[") + 1 :]
            if (match := array.search(buffer)) is not None:
                return bytes(buffer[: match.start()]), buffer[match.end() :]
            if len(buffer) > _MAX_HEAD_BYTES:
                break
        raise BadFileError(
            self.problem or f"has no {self.key}" if buffer else "is empty (0 bytes)",
            "pass traces as torch.profiler writes them",
        )

    def _last_part(self, head: bytes, buffer: bytearray, border: re.Pattern[bytes]) -> Iterator[Part]:
        """The events up to the end of the array, and the text after it. A truncated file loses its last event."""
        end = _array_end(buffer)
        tail: str | None
        if end is not None:
            tail = buffer[end + 1 :].decode("utf-8", "replace")
            yield b"[", memoryview(buffer)[:end], b"]"
        else:
            cut = _last_border(buffer, border)
            start = buffer.index(b"{", cut + 1) if cut >= 0 else 0
            events, tail = _events_until_end(buffer[start:].decode("utf-8", "surrogateescape"))
            separator = b"," if cut >= 0 and events else b""
            joined = ",".join(events).encode("utf-8", "surrogateescape")
            yield b"[", memoryview(buffer)[: cut + 1], separator, joined, b"]"
        self._note_around(head.decode("utf-8", "replace"), tail)

    def _note_around(self, head: str, tail: str | None) -> None:
        """The object without its events. Of a cut file only the head is there; a bare array has nothing around it."""
        whole = _parsed(f'{head}"{self.key}": []{tail}') if head and tail is not None else None
        if whole is None and (head or tail is None):
            self.problem = self.problem or f"is truncated after {self.n_bytes:,} bytes"
            whole = _parsed(f'{head}"{self.key}": []}}')
        self.around = whole or {}


def _array_end(buffer: bytearray) -> int | None:
    """Where the array of events ends, found without building it; None when it does not, or is broken before."""
    try:
        msgspec.json.decode(b"[" + buffer, type=list[msgspec.Raw])
    except msgspec.DecodeError as error:
        trailing = _TRAILING.search(str(error))
        return buffer.rindex(b"]", 0, integer(trailing.group(1), MAX_LONG) - 1) if trailing else None
    return buffer.rindex(b"]")


def whole_events(part: bytes) -> bytes:
    """What can be used of a part that is not valid JSON: the events that are."""
    text = _LONE_SURROGATE.sub(r"\\ufffd", part.decode("utf-8", "replace")[1:-1])
    kept: list[str] = []
    position = 0
    while (start := text.find("{", position)) >= 0:
        try:
            _, position = _DECODER.raw_decode(text, start)
            kept.append(text[start:position])
        except (ValueError, RecursionError):
            position = start + 1
            border = re.compile(r"\}\s*,\s*\{").search(text, position)
            if border is None:
                break
            position = border.end() - 1
    return f"[{','.join(kept)}]".encode()


def _events_until_end(text: str) -> tuple[list[str], str | None]:
    """Event by event until the array ends; None as the text behind it when it never does."""
    events: list[str] = []
    position = 0
    while True:
        position = _skip(text, position)
        if position >= len(text):
            return events, None
        if text[position] == "]":
            return events, text[position + 1 :]
        try:
            _, end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            return events, None
        events.append(text[position:end])
        position = end


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n,":
        position += 1
    return position


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _border(buffer: bytearray, array: str) -> re.Pattern[bytes]:
    """Between two events; its group is the brace that ends the first of them."""
    first = _FIRST_KEY.match(buffer)
    if array != "traceEvents":
        return re.compile(rb"[\]}]\s*(\})\s*,\s*\{\s*" + re.escape(first.group(1) if first else b'"id"'))
    key = b'"ph"' if first is None or _PH_FIRST.search(buffer, 0, 1 << 18) else first.group(1)
    return re.compile(rb"(\})\s*,\s*\{\s*" + re.escape(key))


def _last_border(buffer: bytearray, border: re.Pattern[bytes]) -> int:
    """Where the last event ends that another one follows; -1 when there is none near the end."""
    start = max(0, len(buffer) - (1 << 18))
    end = -1
    while end < 0:
        for match in border.finditer(buffer, start):
            end = match.start(1)
        if start == 0:
            break
        start = max(0, start - (4 << 20))
    return end
