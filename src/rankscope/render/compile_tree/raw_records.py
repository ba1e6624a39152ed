"""raw.jsonl: every record without its payload, a line of JSON each. Headers are copied as they are, not decoded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec
import numpy as np

from rankscope.model.numbers import MAX_LONG, integer
from rankscope.model.payloads import MappedLog, mapped_log
from rankscope.model.tables import Array, Table, Trace
from rankscope.render.compile_tree.outputs import NOT_JSON, by_file

_STAMP_BYTES = 22  # V1116 06:18:20.896000 and the space before the process id
_WRITER = re.compile(rb"(?P<thread>\d+) ?(?P<pathname>.*?):(?P<lineno>\d+)\]\s*", re.DOTALL)
_END_BYTES = 2000
_ADDED = (b'"timestamp":', b'"thread":', b'"pathname":', b'"lineno":', b'"payload_filename":')


def write_raw_records(trace: Trace, whole: Table, payload_names: Mapping[tuple[int, int], str], path: str) -> None:
    """`payload_names` says where the payload of (file, record) is. Strings are interned per log, so each log begins
    with its own table of strings."""
    with open(path, "wb", buffering=1 << 20) as file:
        for records in by_file(whole):
            file_id = int(records.array("file_id")[0])
            log = mapped_log(trace, file_id)
            kinds = records.text("kind")
            file.write(_string_table(records.take(np.flatnonzero(kinds.equals("str"))), log) + b"\n")
            shown = records.take(np.flatnonzero(~(kinds.equals("str") | kinds.equals("chromium_event"))))
            file.writelines(_lines(shown, log, _stamps(trace, file_id, shown), payload_names))


def _string_table(records: Table, log: MappedLog) -> bytes:
    """The position is the string's number. They are dense; a hostile log must not make a huge list all the same."""
    strings: dict[int, str] = {}
    for row in records.rows():
        try:
            text, number = msgspec.json.decode(log.header(row), type=_Interned).pair
        except NOT_JSON:
            continue
        strings[number] = text
    size = min(max(strings, default=0) + 1, 2 * len(records) + 1000)
    return msgspec.json.encode({"string_table": [strings.get(number) for number in range(size)]})


class _Interned(msgspec.Struct):
    pair: tuple[str, int] = msgspec.field(name="str")


def _stamps(trace: Trace, file_id: int, records: Table) -> list[bytes]:
    """ISO 8601. A log without any absolute time leaves the zone open, and so does the stamp."""
    logs = trace.table("compile_logs")
    row = int(np.flatnonzero(logs.array("file_id") == file_id)[0])
    zone = b"Z" if logs.text("clock")[row] == "absolute" else b""
    moments: Array = (records.array("time_ns") // 1000).astype("datetime64[us]")
    return [stamp + zone for stamp in np.datetime_as_string(moments).astype("S").tolist()]


def _lines(
    records: Table, log: MappedLog, stamps: list[bytes], payload_names: Mapping[tuple[int, int], str]
) -> Iterator[bytes | memoryview]:
    """In pieces: putting them together would copy each header once more."""
    names = ("file_id", "record", "start", "header_start", "n_header_bytes")
    columns = [records.array(name).tolist() for name in names]
    writers: dict[bytes, bytes] = {}
    for stamp, kind, file_id, record, start, header_start, n_bytes in zip(
        stamps, records.text("kind").tolist(), *columns, strict=True
    ):
        n_prefix = header_start - start
        line = log.header({"header_start": start, "n_header_bytes": n_prefix + n_bytes})
        if not kind:
            yield msgspec.json.encode({"unparsed": line.decode("utf-8", "replace")}) + b"\n"
            continue
        origin = line[_STAMP_BYTES:n_prefix]
        if origin not in writers:
            writers[origin] = _writer(origin)
        added = b', "timestamp": "' + stamp + b'"' + writers[origin]
        name = payload_names.get((file_id, record))
        if name is not None:
            added += b', "payload_filename": ' + msgspec.json.encode(name)
        header = line[n_prefix:]
        if not header.isascii():
            header = header.decode("utf-8", "replace").encode()
        # Metrics have tens of thousands of bytes, and keys of the record itself stand before or behind these.
        ends = header if n_bytes < 2 * _END_BYTES else header[:_END_BYTES] + header[-_END_BYTES:]
        if any(key in ends for key in _ADDED):
            yield _merged(header, added)
        else:
            yield memoryview(header)[: header.rindex(b"}")]
            yield added
        yield b"}\n"


def _writer(origin: bytes) -> bytes:
    """The process and the line of torch that logged the record."""
    match = _WRITER.fullmatch(origin)
    if match is None:
        return b""
    path = msgspec.json.encode(match["pathname"].decode("utf-8", "replace"))
    return b', "thread": %d, "pathname": %s, "lineno": %d' % (
        integer(match["thread"], MAX_LONG),
        path,
        integer(match["lineno"]),
    )


def _merged(header: bytes, added: bytes) -> bytes:
    """Without the last brace. Where the record has one of our keys itself, its own value stays."""
    try:
        fields = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
    except NOT_JSON:
        return header.rstrip()[:-1]
    ours = msgspec.json.decode(b"{" + added[2:] + b"}", type=dict[str, msgspec.Raw])
    return msgspec.json.encode(ours | fields)[:-1]
