"""Linked execution traces for Perfetto: a process per rank, its threads and streams, and arrows along the edges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rankscope.model.tables import Trace
from rankscope.render.timeline.chrome import ROWS_AT_ONCE, EventFile, common_clock, label
from rankscope.render.timeline.lanes import MAX_LANES, lanes_of
from rankscope.render.whole_file import whole_binary

# Nesting shows what calls what, and tracks show the order of threads and streams: these need no arrows.
FLOWS = ("launch", "sync", "backward", "data", "handover", "collective")
_STREAM_TRACKS = 1 << 40  # thread numbers that no system gives out
_DEVICE_TRACKS = 1 << 20
_LANES = 1 << 44
_NUMBERED = 1 << 30  # Perfetto takes thread numbers of 32 bits: from here on they are ours

# Everything that is drawn, in one place. Only with its rank is a kernel's number unique in a file: exports of nsys hold
# several processes. Durations from clean steps do not fit between the beginnings of these: they are told, not drawn.
_SPANS = f"""
CREATE OR REPLACE TEMP TABLE linked_spans AS
WITH moved AS (FROM et_links WHERE duration_from <> profile_id),
recorded AS (
    SELECT m.file_id, m.node_id, e.duration_ns FROM moved AS m
    JOIN ops AS e ON e.file_id = m.profile_id AND e.rank IS NOT DISTINCT FROM m.rank AND e.op_id = m.op_id
    UNION ALL
    SELECT m.file_id, m.node_id, e.duration_ns FROM moved AS m JOIN annotations AS e
    ON e.file_id = m.profile_id AND e.rank IS NOT DISTINCT FROM m.rank AND e.annotation_id = m.annotation_id
), spans AS (
    SELECT 'node' AS what, l.file_id AS key_file, l.node_id AS key, l.rank, l.tid AS track, l.profile_id, l.start_ns,
           l.start_ns + coalesce(r.duration_ns, l.duration_ns) AS end_ns
    FROM et_links AS l LEFT JOIN recorded AS r ON r.file_id = l.file_id AND r.node_id = l.node_id
    WHERE l.profile_id IS NOT NULL
    UNION ALL
    SELECT 'kernel', k.file_id, k.kernel_id, k.rank,
           {_STREAM_TRACKS} + coalesce(k.device, 0)::BIGINT * {_DEVICE_TRACKS} + coalesce(k.stream, 0),
           k.file_id, k.start_ns, k.start_ns + k.duration_ns
    FROM kernels AS k
    SEMI JOIN (SELECT DISTINCT profile_id, rank FROM et_links) AS p
        ON p.profile_id = k.file_id AND p.rank IS NOT DISTINCT FROM k.rank
)
SELECT what, key_file, key, s.rank, track, {common_clock("start_ns")} AS start_ns,
       {common_clock("end_ns")} - {common_clock("start_ns")} AS duration_ns
FROM spans AS s
LEFT JOIN profile_clocks AS c ON c.file_id = s.profile_id AND c.rank IS NOT DISTINCT FROM s.rank
"""
_IN_ORDER = """
SELECT rowid AS number, dense_rank() OVER (ORDER BY rank, track) AS place, start_ns, start_ns + duration_ns AS end_ns
FROM linked_spans ORDER BY place, start_ns, duration_ns DESC, rowid
"""
_NODES = """
SELECT s.rank, s.track, s.start_ns, s.duration_ns, n.name, n.node_id, n.parent_id, n.record_id, n.seq_id, l.step,
       l.own_ns, CASE WHEN l.duration_from <> l.profile_id THEN l.duration_ns END, l.how, n.input_shapes, n.input_types
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
    """The number of events. Times are microseconds since `baseTimeNanoseconds`, with all their digits."""
    trace.sql(_SPANS)
    _set_aside(trace)
    [(base_ns,)] = trace.sql("SELECT coalesce(min(start_ns), 0) FROM linked_spans").rows()
    with whole_binary(path) as file:
        head = {"writer": "rankscope", "displayTimeUnit": "ns", "baseTimeNanoseconds": base_ns}
        out = EventFile(file, head)
        out.write_events(_events(trace, base_ns))
        out.close()
    return out.n_events


def _set_aside(trace: Trace) -> None:
    """Transfers of gloo begin within a span and end after it: such ones get a track beside."""
    spans = trace.sql(_IN_ORDER).columns()
    lanes = np.minimum(lanes_of(spans["place"], spans["start_ns"], spans["end_ns"]), MAX_LANES - 1)
    for lane in np.unique(lanes[lanes > 0]).tolist():
        update = f"UPDATE linked_spans SET track = track + {lane * _LANES} WHERE rowid IN (SELECT unnest($rows))"
        trace.sql(update, rows=spans["number"][lanes == lane].tolist())


def _thread_numbers(trace: Trace) -> dict[tuple[int, int], int]:
    """What each track is called in the file: threads bear their own number where it is short enough."""
    numbers: dict[tuple[int, int], int] = {}
    for rank, track in _rows(trace, "SELECT DISTINCT rank, track FROM linked_spans ORDER BY ALL"):
        numbers[rank, track] = track if track < _NUMBERED else _NUMBERED + len(numbers)
    return numbers


def _events(trace: Trace, base_ns: int) -> Iterator[dict[str, Any]]:
    threads = _thread_numbers(trace)
    yield from _names(trace, threads)
    for rank, track, start, duration, name, *about in _rows(trace, _NODES):
        node, parent, record, sequence, step, own_ns, clean, how, shapes, types = about
        args = {"node": node, "parent": parent, "record function": record, "sequence": sequence, "step": step}
        args |= {"own us": _us(own_ns), "us without the observer": _us(clean)}
        args |= {"linked by": how, "shapes": shapes, "types": types}
        yield _span(rank, threads[rank, track], (start - base_ns, duration), name, "node", args)
    for rank, track, start, duration, name, kernel, kind, stream, step, n_bytes in _rows(trace, _KERNELS):
        args = {"kernel": kernel, "stream": stream, "step": step, "bytes": n_bytes}
        yield _span(rank, threads[rank, track], (start - base_ns, duration), name, kind, args)
    for number, (kind, from_rank, from_track, begin, rank, track, end) in enumerate(_rows(trace, _ARROWS)):
        arrow = {"cat": kind, "name": kind, "id": number}
        yield {
            "ph": "s",
            **arrow,
            "pid": from_rank,
            "tid": threads[from_rank, from_track],
            "ts": (begin - base_ns) / 1000,
        }
        yield {"ph": "f", "bp": "e", **arrow, "pid": rank, "tid": threads[rank, track], "ts": (end - base_ns) / 1000}


def _us(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1000


def _span(
    rank: int, thread: int, time_ns: tuple[int, int], name: str | None, kind: str, args: dict[str, Any]
) -> dict[str, Any]:
    start, duration = time_ns
    known = {key: value for key, value in args.items() if value not in (None, "")}
    span = {"pid": rank, "tid": thread, "ts": start / 1000, "dur": duration / 1000}
    return {"ph": "X", "cat": kind, "name": name or "", **span, "args": known}


def _names(trace: Trace, threads: dict[tuple[int, int], int]) -> Iterator[dict[str, Any]]:
    seen: set[int] = set()
    for rank, track, device, stream in _rows(trace, _TRACKS):
        if rank not in seen:
            seen.add(rank)
            yield label("process_name", rank, 0, name=f"rank {rank}")
            yield label("process_sort_index", rank, 0, sort_index=rank)
        lane, number = divmod(track, _LANES)
        name = f"thread {number}" if number < _STREAM_TRACKS else _stream(device, stream)
        yield label("thread_name", rank, threads[rank, track], name=f"{name}, beside" if lane else name)


def _stream(device: int | None, stream: int | None) -> str:
    return f"device {device if device is not None else '?'}, stream {stream if stream is not None else '?'}"


def _rows(trace: Trace, sql: str) -> Iterator[tuple[Any, ...]]:
    for rows in trace.sql(sql).batches(ROWS_AT_ONCE):
        yield from rows
