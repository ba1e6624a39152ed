"""Linked execution traces for Perfetto: a process per rank, its threads and streams, and arrows along the edges."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, BinaryIO

import msgspec

from rankscope.model.database import database
from rankscope.model.tables import Trace

# Nesting shows what calls what, and tracks show the order of threads and streams: these need no arrows.
FLOWS = ("launch", "sync", "backward", "data", "handover", "collective")
_ROWS_AT_ONCE = 10_000
_STREAM_TRACKS = 1 << 40  # thread numbers that no system gives out
_DEVICE_TRACKS = 1 << 20

# Everything that is drawn, in one place, on the common clock. Only with its rank is a kernel's number unique in a file:
# exports of nsys hold several processes.
_SPANS = f"""
CREATE OR REPLACE TEMP TABLE linked_spans AS
WITH offsets AS (SELECT file_id, rank, offset_ns FROM profile_clocks)
SELECT 'node' AS what, l.file_id AS key_file, l.node_id AS key, l.rank, l.tid AS track,
       l.start_ns - coalesce(o.offset_ns, 0) AS start_ns, l.duration_ns
FROM et_links AS l LEFT JOIN offsets AS o ON o.file_id = l.profile_id AND o.rank = l.rank
WHERE l.profile_id IS NOT NULL
UNION ALL
SELECT 'kernel', k.file_id, k.kernel_id, k.rank,
       {_STREAM_TRACKS} + coalesce(k.device, 0)::BIGINT * {_DEVICE_TRACKS} + coalesce(k.stream, 0),
       k.start_ns - coalesce(o.offset_ns, 0), k.duration_ns
FROM kernels AS k
SEMI JOIN (SELECT DISTINCT profile_id, rank FROM et_links) AS p
    ON p.profile_id = k.file_id AND p.rank IS NOT DISTINCT FROM k.rank
LEFT JOIN offsets AS o ON o.file_id = k.file_id AND o.rank = k.rank
"""
_NODES = """
SELECT s.rank, s.track, s.start_ns, s.duration_ns, n.name, n.node_id, n.parent_id, n.record_id, n.seq_id, l.step,
       l.own_ns, l.how, n.input_shapes, n.input_types
FROM linked_spans AS s JOIN et_nodes AS n ON n.file_id = s.key_file AND n.node_id = s.key
JOIN et_links AS l ON l.file_id = s.key_file AND l.node_id = s.key
WHERE s.what = 'node' ORDER BY s.rank, s.track, s.start_ns, s.duration_ns DESC
"""
_KERNELS = """
SELECT s.rank, s.track, s.start_ns, s.duration_ns, k.name, k.kernel_id, k.kind, k.stream, k.step, k.n_bytes
FROM linked_spans AS s
JOIN kernels AS k ON k.file_id = s.key_file AND k.kernel_id = s.key AND k.rank IS NOT DISTINCT FROM s.rank
WHERE s.what = 'kernel' ORDER BY s.rank, s.track, s.start_ns
"""
_ARROWS = f"""
SELECT e.kind, f.rank, f.track, f.start_ns, t.rank, t.track, t.start_ns
FROM et_edges AS e
JOIN linked_spans AS f ON f.what = e.source AND f.key_file = e.from_file_id AND f.key = e.source_id
    AND f.rank IS NOT DISTINCT FROM e.from_rank
JOIN linked_spans AS t ON t.what = e.target AND t.key_file = e.file_id AND t.key = e.target_id
    AND t.rank IS NOT DISTINCT FROM e.rank
WHERE e.kind IN ({", ".join(f"'{kind}'" for kind in FLOWS)}) ORDER BY f.rank, f.start_ns
"""
_TRACKS = """
SELECT DISTINCT s.rank, s.track, k.device, k.stream
FROM linked_spans AS s LEFT JOIN kernels AS k
    ON s.what = 'kernel' AND k.file_id = s.key_file AND k.kernel_id = s.key AND k.rank IS NOT DISTINCT FROM s.rank
ORDER BY ALL
"""


def write_linked_timeline(trace: Trace, path: str) -> int:
    """The number of spans and arrows. Times are microseconds since `baseTimeNanoseconds`, with all their digits."""
    connection = database(trace)
    for table in ("et_links", "et_edges", "profile_clocks"):
        trace.table(table)  # made now, so that the queries see it
    connection.execute(_SPANS).fetchall()
    [(base_ns,)] = connection.execute("SELECT coalesce(min(start_ns), 0) FROM linked_spans").fetchall()
    n_events = 0
    with _packed(path) as out:
        out.write(b'{"schemaVersion":1,"displayTimeUnit":"ns","baseTimeNanoseconds":%d,"traceEvents":[' % base_ns)
        events = _events(trace, base_ns)
        while batch := [*islice(events, _ROWS_AT_ONCE)]:  # single writes would cost more than the compression
            out.write(b",\n" if n_events else b"\n")
            out.write(b",\n".join(map(msgspec.json.encode, batch)))
            n_events += len(batch)
        out.write(b"\n]}\n")
    return n_events


@contextmanager
def _packed(path: str) -> Iterator[BinaryIO]:
    """Compressed where the name says so, the same bytes for the same trace."""
    with open(path, "xb") as raw:
        if path.partition(".part-")[0].endswith(".gz"):
            with gzip.GzipFile("", "wb", 4, raw, 0) as packed:
                yield packed  # type: ignore[misc]
        else:
            yield raw


def _events(trace: Trace, base_ns: int) -> Iterator[dict[str, Any]]:
    yield from _names(trace)
    for rank, track, start, duration, name, *about in _rows(trace, _NODES):
        node, parent, record, sequence, step, own, how, shapes, types = about
        args = {"node": node, "parent": parent, "record function": record, "sequence": sequence, "step": step}
        args |= {"own us": own / 1000, "linked by": how, "shapes": shapes, "types": types}
        yield _span(rank, track, (start - base_ns, duration), name, "node", args)
    for rank, track, start, duration, name, kernel, kind, stream, step, n_bytes in _rows(trace, _KERNELS):
        args = {"kernel": kernel, "stream": stream, "step": step, "bytes": n_bytes}
        yield _span(rank, track, (start - base_ns, duration), name, kind, args)
    for number, (kind, from_rank, from_track, begin, rank, track, end) in enumerate(_rows(trace, _ARROWS)):
        arrow = {"cat": kind, "name": kind, "id": number}
        yield {"ph": "s", **arrow, "pid": from_rank, "tid": from_track, "ts": (begin - base_ns) / 1000}
        yield {"ph": "f", "bp": "e", **arrow, "pid": rank, "tid": track, "ts": (end - base_ns) / 1000}


def _span(
    rank: int, track: int, time_ns: tuple[int, int], name: str, kind: str, args: dict[str, Any]
) -> dict[str, Any]:
    start, duration = time_ns
    known = {key: value for key, value in args.items() if value not in (None, "")}
    place = {"pid": rank, "tid": track, "ts": start / 1000, "dur": duration / 1000}
    return {"ph": "X", "cat": kind, "name": name, **place, "args": known}


def _names(trace: Trace) -> Iterator[dict[str, Any]]:
    seen: set[int] = set()
    for rank, track, device, stream in _rows(trace, _TRACKS):
        if rank not in seen:
            seen.add(rank)
            yield _label("process_name", rank, 0, f"rank {rank}")
            yield {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}}
        yield _label(
            "thread_name", rank, track, f"thread {track}" if track < _STREAM_TRACKS else _stream(device, stream)
        )


def _stream(device: int | None, stream: int | None) -> str:
    return f"device {device if device is not None else '?'}, stream {stream if stream is not None else '?'}"


def _label(what: str, rank: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": track, "args": {"name": name}}


def _rows(trace: Trace, sql: str) -> Iterator[tuple[Any, ...]]:
    """All of them have to be taken before the next query: it uses the same connection."""
    found = database(trace).execute(sql)
    while rows := found.fetchmany(_ROWS_AT_ONCE):
        yield from rows
