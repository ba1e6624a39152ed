"""One walk over a mapped TORCH_TRACE file: where each record begins and ends, what it is, and what its header says.

Half of the records differ from one before only in the checksum of the payload. So what a header says is decoded once
per distinct header, and a record is a handful of integers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator
from typing import Any, NamedTuple

import numpy as np

from rankscope.model.numbers import MAX_LONG, integer
from rankscope.model.payloads import MappedLog, fits_checksum, untabbed
from rankscope.model.tables import MISSING, Array, Table, Text
from rankscope.read.compile_headers import ENVELOPE_KEYS, Envelope, Named, decode_envelope, load_json
from rankscope.read.log_times import LineClock

_RECORD_END = re.compile(rb"\n(?![\t\n])")
_NO_CHECKSUM = b" " * 32
_CHECKSUM_BYTES = len(b', "has_payload": ""}') + len(_NO_CHECKSUM)  # what every header of a payload ends with
_GIVE_BACK_EVERY = 64 << 20
_PAGE_BYTES = 1 << 16  # a multiple of every system's
_MAX_PREFIX = 4096  # bytes before the JSON of a header
_STAMP_BYTES = 20  # 1116 06:18:20.896000, behind the letter of the level
_NAMED = frozenset(
    (b"artifact", b"graph_dump", b"optimize_ddp_split_child", b"inductor_output_code", b"dump_file", b"link")
)


class Meaning(NamedTuple):
    """What a header says, but for the checksum. The first fields are columns of compile_records."""

    kind: str
    name: str
    encoding: str
    compile_id: str
    subgraph: str
    rank: int
    frame_id: int
    frame_compile_id: int
    autograd_id: int
    attempt: int


NOTHING = Meaning("", "", "", "", "", MISSING, MISSING, MISSING, MISSING, MISSING)


class Seen(NamedTuple):
    """A record that tables other than the index are made of."""

    number: int
    meaning: Meaning
    header: bytes
    tabbed: Callable[[], bytes]  # the payload as it stands in the file


class Scan:
    """The walk, and what is known after it. `see` is given every record of the wanted kinds."""

    def __init__(self, log: MappedLog, clock: LineClock, see: Callable[[Seen], None], wanted: Container[str]) -> None:
        self.log, self.clock, self._see, self._wanted = log, clock, see, wanted
        self.meanings: list[Meaning] = [NOTHING]
        self._is_wanted = [False]
        self._known: dict[bytes, int] = {}
        self._by_head: dict[bytes, Meaning] = {}  # what a record is about
        self._by_tail: dict[bytes, Meaning] = {}  # whose it is
        self._stamps: list[bytes] = []
        self._checksums: list[bytes] = []
        # Meaning, start, start of the JSON, end of its line, end. One list of tuples is faster than five of integers.
        self._places: list[tuple[int, int, int, int, int]] = []
        self.n_bad = 0

    def __len__(self) -> int:
        return len(self._places)

    def run(self) -> None:
        start = given_back = 0
        for end in self._record_ends():
            if end > start:
                self._record(start, end)
            start = end + 1
            if start - given_back > _GIVE_BACK_EVERY:
                length = (start - given_back) // _PAGE_BYTES * _PAGE_BYTES
                self.log.give_back(given_back, length)
                given_back += length

    def _record_ends(self) -> Iterator[int]:
        """Where each record's last newline is; the last record of a cut file ends with the file."""
        for match in _RECORD_END.finditer(self.log.data):
            yield match.start()
        if self.log.n_bytes and self.log.data[-1:] != b"\n":
            yield self.log.n_bytes

    def _record(self, start: int, end: int) -> None:
        data = self.log.data
        line_end = data.find(b"\n", start, end)
        if line_end < 0:
            line_end = end
        brace = data.find(b"] {", start, line_end)
        header = data[brace + 2 : line_end] if 0 <= brace - start < _MAX_PREFIX else b""
        if header[-_CHECKSUM_BYTES:-34] == b', "has_payload": "':
            says, checksum = header[:-_CHECKSUM_BYTES], header[-34:-2]
        else:
            says, checksum = header.rstrip()[:-1], _NO_CHECKSUM
        kind = header[2 : header.find(b'"', 2)]
        if kind not in _NAMED:  # only whose it is matters, and that stands behind what it is about
            says = kind + says[says.rfind(b'}, "') :]
        known = self._known.get(says) if header[-1:] == b"}" else None
        if known is None:
            known, checksum = self._learn(header, says, checksum)
            if not known:
                if not data[start:end].strip():
                    return  # empty lines
                self.n_bad += 1
                brace = start - 2  # kept in the index all the same: nothing of the file is lost
        self._stamps.append(data[start + 1 : start + 1 + _STAMP_BYTES])
        self._checksums.append(checksum)
        self._places.append((known, start, brace + 2, line_end, end))
        if self._is_wanted[known]:
            span = slice(line_end + 1, end + 1)
            seen = Seen(len(self._places) - 1, self.meanings[known], header, lambda: data[span])
            self._see(seen)
        if not self.clock.is_absolute:
            self._learn_time(self.meanings[known].kind, header, line_end, end)

    def _learn(self, header: bytes, says: bytes, checksum: bytes) -> tuple[int, bytes]:
        """The number of the header's meaning, 0 when it has none, and the checksum of the payload."""
        cut = says.rfind(b'}, "')
        what, whose = self._by_head.get(says[:cut]), self._by_tail.get(says[cut:])
        if cut > 0 and checksum != _NO_CHECKSUM and what is not None and whose is not None:
            meaning = Meaning(what.kind, what.name, what.encoding, *whose[3:])
        else:
            try:
                meaning, given = _decoded(header)
            except ValueError:
                return 0, _NO_CHECKSUM
            if checksum == _NO_CHECKSUM and given:  # it does not stand where torch puts it
                is_checksum = len(given) == len(_NO_CHECKSUM) and given.isascii()
                return self._number(meaning), given.encode() if is_checksum else _NO_CHECKSUM
            self._by_head[says[:cut]] = self._by_tail[says[cut:]] = meaning
        self._known[says] = self._number(meaning)
        return self._known[says], checksum

    def _number(self, meaning: Meaning) -> int:
        self.meanings.append(meaning)
        self._is_wanted.append(meaning.kind in self._wanted)
        return len(self.meanings) - 1

    def _learn_time(self, kind: str, header: bytes, line_end: int, end: int) -> None:
        """The first record with an absolute time gives the year and time zone of all."""
        if kind == "chromium_event":
            match = _TIME_OF_EVENT.search(self.log.data[line_end:end])
        elif kind.endswith("compilation_metrics"):
            match = _TIME_OF_METRICS.search(header)
            if match is None:
                self._learn_from_seconds(header)
        else:
            return
        if match is not None:
            self.clock.anchor(self._stamps[-1], float(match.group(1)) * 1000)

    def _learn_from_seconds(self, header: bytes) -> None:
        """Early metrics say when the compilation began and how long it took; they are written at its end."""
        began, took = _START_OF_METRICS.search(header), _LENGTH_OF_METRICS.search(header)
        if began is not None:
            seconds = float(began.group(1)) + (float(took.group(1)) if took is not None else 0.0)
            self.clock.anchor(self._stamps[-1], seconds * 1e9)

    def pid(self) -> int:
        """The process of the first record, which follows the time in its line."""
        first = next((start for known, start, *_ in self._places if known), None)
        if first is None:
            return MISSING
        digits = re.match(rb"\s*(\d{1,18})", self.log.data[first + 1 + _STAMP_BYTES : first + 2 * _STAMP_BYTES])
        return integer(digits.group(1), MAX_LONG) if digits else MISSING

    def ends_in_the_middle(self) -> bool:
        """Not every writer ends with a newline: the checksum of the last payload shows whether something is missing."""
        if not self._places:
            return False
        known, _, _, line_end, _ = self._places[-1]
        checksum = self._checksums[-1]
        if not known:
            return self.log.data[-1:] != b"\n"
        payload = untabbed(self.log.data[line_end + 1 :])
        return checksum != _NO_CHECKSUM and not fits_checksum(payload, checksum.decode("ascii", "replace"))

    def index(self, file_id: int) -> Table:
        """The table compile_records; ranks are those in the records themselves."""
        ids, starts, headers, header_ends, ends = np.array(self._places, np.int64).reshape(-1, 5).T
        payload_starts = np.minimum(header_ends + 1, ends)
        n_payload = np.where(header_ends < ends, np.minimum(ends + 1, self.log.n_bytes) - payload_starts, 0)
        joined = b"".join(self._checksums).decode("ascii", "replace")
        width = len(_NO_CHECKSUM)
        checksums = [joined[at : at + width].rstrip() for at in range(0, len(joined), width)]
        columns: dict[str, Array | Text] = {
            "file_id": np.full(len(ids), file_id, np.int32),
            "record": np.arange(len(ids), dtype=np.int32),
            "time_ns": self.clock.times_ns(self._stamps),
            "md5": Text(np.arange(len(ids), dtype=np.int32), checksums),
            "start": starts,
            "header_start": headers,
            "n_header_bytes": header_ends - headers,
            "payload_start": payload_starts,
            "n_payload_bytes": n_payload,
        }
        for field, values in zip(Meaning._fields, zip(*self.meanings, strict=True), strict=True):
            if isinstance(values[0], str):
                columns[field] = Text.encode(values).take(ids)
            else:
                columns[field] = np.array(values, np.int32)[ids]
        return Table("compile_records", columns)


_TIME_OF_EVENT = re.compile(rb'"ts":\s*(\d+\.?\d*)')
_TIME_OF_METRICS = re.compile(rb'"end_time_us": (\d+)')
_START_OF_METRICS = re.compile(rb'"start_time": (\d+\.?\d*)')
_LENGTH_OF_METRICS = re.compile(rb'"entire_frame_compile_time_s": (\d+\.?\d*)')


def _decoded(header: bytes) -> tuple[Meaning, str]:
    """The meaning and the checksum. ValueError when the header is not one."""
    if not header:
        raise ValueError("no JSON")
    kind, envelope = _kind_of(header)
    named: Named | None = getattr(envelope, kind) if kind.encode() in _NAMED else None
    meaning = Meaning(
        kind=kind,
        name=(named.name or named.filename or "") if named is not None else "",
        encoding=(named.encoding or "") if named is not None else "",
        compile_id=envelope.compile_id,
        subgraph=envelope.subgraph_name or "",
        rank=_small(envelope.rank),
        frame_id=_small(envelope.frame_id),
        frame_compile_id=_small(envelope.frame_compile_id),
        autograd_id=_small(envelope.compiled_autograd_id),
        attempt=_small(envelope.attempt),
    )
    return meaning, envelope.has_payload or ""


def _kind_of(header: bytes) -> tuple[str, Envelope]:
    """The key that says what the record is about: the first one in all that torch writes."""
    envelope = decode_envelope(header)
    end = header.find(b'"', 2)
    kind = header[2:end].decode("ascii", "replace") if header[1:2] == b'"' and end > 0 else ""
    if not kind or kind in ENVELOPE_KEYS or "\\" in kind:
        values: Any = load_json(header)
        keys = [key for key in values if key not in ENVELOPE_KEYS] if isinstance(values, dict) else []
        if not keys or not keys[0]:
            raise ValueError("says nothing")
        kind = keys[0]
    return kind, envelope


def _small(number: int | None) -> int:
    return number if number is not None and 0 <= number < 1 << 31 else MISSING
