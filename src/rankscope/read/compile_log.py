"""TORCH_TRACE files -> an index of all records, and the tables about compilations.

A record is a line with JSON, then the lines of its payload, each behind a tab. The file is mapped and walked once;
payloads stay where they are, but for the few that the tables are made of.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from hashlib import md5
from typing import Any

import numpy as np

from rankscope.errors import BadFileError
from rankscope.model.payloads import MappedLog, untabbed
from rankscope.model.tables import MISSING, SCHEMA, Table, Text
from rankscope.read.compile_headers import ENVELOPE_KEYS, Envelope, Named, decode_envelope, load_json
from rankscope.read.compile_tables import Record, RowMaker
from rankscope.read.files import Source
from rankscope.read.log_times import LineClock
from rankscope.read.plain_logs import PlainLog, plain_log

NAME = "compile_log"

_HEADER = re.compile(rb"(?m)^(?:\[rank\d+\]:\s?)?[VIWEC]\d{4} \d\d:\d\d:\d\d.\d{6} \d+ ?[^\n]*?:\d+\] \{\"")
_OWN_NAME = re.compile(r"dedicated_log_torch_trace_(?:rank_(?P<rank>\d+)_?)?", re.IGNORECASE)
_RECORD_END = re.compile(rb"\n(?![\t\n])")
_PREFIX_BYTES = 22  # V1116 06:18:20.896000 and the space before the process id
_GIVE_BACK_EVERY = 64 << 20
_MAX_PREFIX = 4096  # bytes before the JSON of a header
_NAMED = ("artifact", "graph_dump", "optimize_ddp_split_child", "inductor_output_code", "dump_file", "link")
CUT_HINT = "the process was ended while writing, or the copy is incomplete: copy it again if the original is whole"


def sniff(head: bytes, name: str) -> bool:
    if _HEADER.search(head):
        return True
    # An empty or cut file still carries the name that torch gave it: it must be reported, not passed over.
    return bool(_OWN_NAME.search(_base(name))) and b"\0" not in head


def _base(name: str) -> str:
    return name.replace("!", "/").rsplit("/", 1)[-1]


def rank_of_name(name: str) -> int:
    """`dedicated_log_torch_trace_rank_3_x7a_b1.log` -> 3; what follows is random and may hold digits."""
    own = _OWN_NAME.search(_base(name))
    if own and own["rank"]:
        return min(int(own["rank"]), (1 << 31) - 1)
    named = re.search(r"rank[_-]?(\d{1,9})(?!\d)", _base(name), re.IGNORECASE) if not own else None
    return int(named.group(1)) if named else MISSING


def read(source: Source) -> Iterator[Table]:
    if source.n_bytes == 0:
        raise BadFileError("is empty (0 bytes)", "the process was ended before it wrote its first record")
    plain = plain_log(source)
    try:
        scan = _Scan(source, plain)
        scan.run()
    except (MemoryError, RecursionError) as error:
        raise BadFileError("asks for an absurd amount of memory or nesting", "it is corrupt or malicious") from error
    if scan.n_good == 0:
        raise BadFileError("holds no record of torch.compile", "record it again with TORCH_TRACE=FOLDER")
    yield from scan.tables()


class _Scan:
    """One walk over one file."""

    def __init__(self, source: Source, plain: PlainLog) -> None:
        self.source, self.plain = source, plain
        self.log = MappedLog(plain.path)
        self.clock = LineClock(source.modified_ns)
        self.maker = RowMaker()
        self.index: list[tuple[Any, ...]] = []
        self.stamps: list[bytes] = []
        self.n_bad = 0
        self.n_good = 0
        self.is_cut = plain.problem != ""
        self.pids: Counter[int] = Counter()
        self.ranks: Counter[int] = Counter()
        self.named_rank = rank_of_name(source.shown)

    def run(self) -> None:
        start = given_back = 0
        for end in self._ends():
            if end > start:
                self._record(start, end)
            start = end + 1
            if start - given_back > _GIVE_BACK_EVERY:
                # Whole pages only, and never the one that is being read.
                length = (start - given_back) // 4096 * 4096
                self.log.give_back(given_back, length)
                given_back += length
        self.is_cut |= self._ends_in_the_middle()

    def _ends(self) -> Iterator[int]:
        """Where each record's last newline is; the last record of a cut file ends with the file."""
        for match in _RECORD_END.finditer(self.log.data):
            yield match.start()
        if self.log.n_bytes and self.log.data[-1:] != b"\n":
            yield self.log.n_bytes

    def _ends_in_the_middle(self) -> bool:
        """Not every writer ends with a newline: the checksum of the last payload tells whether something is missing."""
        if not self.index or self.log.data[-1:] == b"\n":
            return False
        kind, checksum, n_payload = self.index[-1][1], self.index[-1][9], self.index[-1][-1]
        payload = untabbed(self.log.data[self.log.n_bytes - n_payload :]) if n_payload else b""
        return not kind or (bool(checksum) and md5(payload, usedforsecurity=False).hexdigest() != checksum)

    def _record(self, start: int, end: int) -> None:
        data = self.log.data
        line_end = data.find(b"\n", start, end)
        line_end = end if line_end < 0 else line_end
        brace = data.find(b"] {", start, min(start + _MAX_PREFIX, line_end))
        header = data[brace + 2 : line_end] if brace >= 0 else b""
        stamp = data[start : start + _PREFIX_BYTES]
        try:
            if not header:
                raise ValueError("no JSON")
            kind, envelope = _kind_of(header)
            self.clock.local_ns(stamp[1:21])
        except ValueError:
            self._unusable(start, end, line_end)
            return
        self.n_good += 1
        number = len(self.index)
        named: Named | None = getattr(envelope, kind) if kind in _NAMED else None
        compile_id = envelope.compile_id
        rank = self.plain.rank_at(start) if envelope.rank is None else envelope.rank
        if rank >= 0:
            self.ranks[rank] += 1
        payload_start = min(line_end + 1, end)
        n_payload = min(end + 1, self.log.n_bytes) - payload_start if line_end < end else 0
        attempt = _small(envelope.attempt)
        key: dict[str, Any] = {"file_id": self.source.file_id, "record": number, "compile_id": compile_id}
        ids = (_small(envelope.frame_id), _small(envelope.frame_compile_id), _small(envelope.compiled_autograd_id))
        if not self.clock.is_absolute:
            self._learn_time(kind, header, stamp, payload_start, n_payload)
        name = _name_of(named) if named is not None else ""
        encoding = (named.encoding or "") if named is not None else ""
        self.stamps.append(stamp[1:21])
        self.index.append(
            (
                rank,
                kind,
                name,
                encoding,
                compile_id,
                *ids,
                attempt,
                envelope.subgraph_name or "",
                envelope.has_payload or "",
                start,
                brace + 2,
                len(header),
                payload_start,
                n_payload,
            )
        )
        if kind != "chromium_event":  # half of all records, and of no table that is made now
            frame_id, frame_compile_id, autograd_id = ids
            key.update(attempt=attempt, frame_id=frame_id, frame_compile_id=frame_compile_id, autograd_id=autograd_id)
            span = slice(payload_start, payload_start + n_payload)
            self.maker.add(Record(key, kind, name, header, lambda: untabbed(data[span])))

    def _unusable(self, start: int, end: int, line_end: int) -> None:
        """Kept in the index, so that nothing of the file is lost."""
        if not self.log.data[start:end].strip():
            return  # an empty line
        self.n_bad += 1
        self.stamps.append(b"")
        payload_start = min(line_end + 1, end)
        row = (MISSING, "", "", "", "", MISSING, MISSING, MISSING, MISSING, "", "", start, start, line_end - start)
        n_payload = min(end + 1, self.log.n_bytes) - payload_start if line_end < end else 0
        self.index.append((*row, payload_start, n_payload))

    def _learn_time(self, kind: str, header: bytes, stamp: bytes, payload_start: int, n_payload: int) -> None:
        """The first record with an absolute time tells year and zone of all."""
        if kind == "chromium_event" and n_payload:
            found = _TIME_OF_EVENT.search(self.log.data[payload_start : payload_start + n_payload])
            scale = 1000
        elif kind.endswith("compilation_metrics"):
            found, scale = _TIME_OF_METRICS.search(header), 1000
            if found is None:
                found, scale = _START_OF_METRICS.search(header), 10**9
        else:
            return
        if found is not None:
            absolute_ns = int(float(found.group(1)) * scale)
            if 0 < absolute_ns < 1 << 62:
                self.clock.anchor(stamp[1:21], absolute_ns)

    def tables(self) -> Iterator[Table]:
        times = self._times()
        rank = self._file_rank()
        index = self._index_table(times, rank)
        yield index
        pid = self._pid()
        unknown = times[times >= 0]
        row = {
            "file_id": self.source.file_id,
            "rank": rank,
            "run": 0,
            "source": "trace",
            "plain_path": self.plain.path,
            "pid": pid,
            "n_records": len(self.index),
            "n_bad": self.n_bad,
            "n_unresolved": self.maker.n_unresolved,
            "is_cut": self.is_cut,
            "first_ns": int(unknown.min()) if len(unknown) else MISSING,
            "last_ns": int(unknown.max()) if len(unknown) else MISSING,
            "clock": "absolute" if self.clock.is_absolute else "assumed",
            "torch_version": self.maker.torch_version,
        }
        yield Table.from_rows("compile_logs", [row])
        self.maker.finish()
        ranks, written = index.array("rank").tolist(), times.tolist()
        for name, rows in self.maker.rows.items():
            for made in rows:
                made["rank"] = ranks[made["record"]]
                made.setdefault("time_ns", written[made["record"]])
                made.setdefault("start_ns", made["time_ns"])
            yield Table.from_rows(name, rows)
        yield Table.from_rows("files", [self._file_row(rank)])

    def _times(self) -> np.ndarray[Any, Any]:
        local, zone = self.clock.local_ns, self.clock.zone_ns
        return np.array([local(stamp) - zone if stamp else MISSING for stamp in self.stamps], np.int64)

    def _pid(self) -> int:
        first = next((row for row, stamp in zip(self.index, self.stamps, strict=True) if stamp), None)
        digits = re.match(rb"\d+", self.log.data[first[-5] + _PREFIX_BYTES :][:20]) if first is not None else None
        return int(digits.group()) if digits else MISSING

    def _file_rank(self) -> int:
        """The name's, as torch gave it; else the one that the records tell, if they agree."""
        if self.named_rank != MISSING:
            return self.named_rank
        return self.ranks.most_common(1)[0][0] if self.ranks else MISSING

    def _index_table(self, times: np.ndarray[Any, Any], rank: int) -> Table:
        n_rows = len(self.index)
        given = list(zip(*self.index, strict=True))
        columns: dict[str, Any] = {
            "file_id": np.full(n_rows, self.source.file_id, np.int32),
            "record": np.arange(n_rows, dtype=np.int32),
            "time_ns": times,
        }
        names = [column.name for column in SCHEMA["compile_records"].columns if column.name not in columns]
        for name, values in zip(names, given, strict=True):
            kind = SCHEMA["compile_records"].kinds[name]
            columns[name] = Text.encode(values) if kind == "text" else np.array(values, kind)
        if self.named_rank != MISSING:
            columns["rank"] = np.full(n_rows, rank, np.int32)
        else:
            columns["rank"] = np.where(columns["rank"] < 0, np.int32(rank), columns["rank"])
        return Table("compile_records", columns)

    def _file_row(self, rank: int) -> dict[str, Any]:
        row = {**self.source.file_columns(), "source": NAME, "rank": rank, "host": "", "status": "read"}
        problems = []
        if self.plain.problem:
            problems.append(self.plain.problem)
        if self.n_bad:
            problems.append(f"holds {self.n_bad:,} of {len(self.index):,} records that are not laid out as torch does")
        if self.is_cut and not self.plain.problem:
            problems.append("is cut short in its last record")
        if problems:
            row.update(status="damaged", problem=" and ".join(problems) + "; all others were read", hint=CUT_HINT)
        return row


_TIME_OF_EVENT = re.compile(rb'"ts":\s*([\d.]+)')
_TIME_OF_METRICS = re.compile(rb'"end_time_us": (\d+)')
_START_OF_METRICS = re.compile(rb'"start_time": ([\d.]+)')


def _kind_of(header: bytes) -> tuple[str, Envelope]:
    """The key that says what the record is about: the first one in all that torch writes."""
    envelope = decode_envelope(header)
    end = header.find(b'"', 2)
    kind = header[2:end].decode("ascii", "replace") if header[1:2] == b'"' and end > 0 else ""
    if not kind or kind in ENVELOPE_KEYS or "\\" in kind:
        values = load_json(header)
        keys = [key for key in values if key not in ENVELOPE_KEYS] if isinstance(values, dict) else []
        if not keys:
            raise ValueError("says nothing")
        kind = keys[0]
    return kind, envelope


def _name_of(named: Named) -> str:
    return named.name or named.filename or ""


def _small(number: int | None) -> int:
    return number if number is not None and 0 <= number < 1 << 31 else MISSING
