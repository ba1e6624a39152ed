"""chromium_events.json: what torch did while compiling, for Perfetto and chrome://tracing.

Begins and ends stay begins and ends, as scripts expect them, but in an order in which they nest: see compile_events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rankscope.model.payloads import MappedLog, mapped_log
from rankscope.model.phase_event import event_on_track
from rankscope.model.tables import MISSING, Array, Table, Trace

_GIVE_BACK_EVERY = 10_000  # events; mapped pages count as the process's memory
_MAX_HEAD = 400  # bytes of an event in which its name and time stand


class _Process(NamedTuple):
    """The events of one process of one log, and where they are drawn."""

    log: MappedLog
    starts: list[int]  # of the payloads of the log's records
    lengths: list[int]
    events: Table
    pid: int
    first_tid: int
    label: str


class _Event(NamedTuple):
    """A row of compile_events, as far as it is drawn."""

    record: int
    end_record: int
    name: str
    depth: int
    start_ns: int
    duration_ns: int
    state: str


def write_chromium_events(trace: Trace, file_ids: Sequence[int], path: str | Path) -> None:
    """All events of these logs as a list, in an order in which they nest; `[]` when there are none."""
    separator = b"[\n"
    with open(path, "wb", buffering=1 << 20) as out:
        for process in _processes(trace, file_ids):
            for line in _lines(process):
                out.write(separator)
                out.write(line)
                separator = b",\n"
        out.write(b"[]" if separator == b"[\n" else b"\n]")


def _processes(trace: Trace, file_ids: Sequence[int]) -> Iterator[_Process]:
    events, records, logs = (trace.table(name) for name in ("compile_events", "compile_records", "compile_logs"))
    pids = dict(zip(logs.array("file_id").tolist(), logs.array("pid").tolist(), strict=True))
    next_tid: dict[int, int] = {}  # two logs of one rank, as of a forked process, are drawn below each other
    for file_id in file_ids:
        of_file = events.take(np.flatnonzero(events.array("file_id") == file_id))
        rows = np.flatnonzero(records.array("file_id") == file_id)
        starts, lengths = (records.array(name)[rows].tolist() for name in ("payload_start", "n_payload_bytes"))
        for rank in np.unique(of_file.array("rank")).tolist():
            rank_events = of_file.take(np.flatnonzero(of_file.array("rank") == rank))
            pid = max(rank, 0)
            first_tid = next_tid.get(pid, 0)
            next_tid[pid] = first_tid + int(rank_events.array("track").max()) + 1
            label = f"process {pids[file_id]}" if pids[file_id] != MISSING else "process"
            yield _Process(mapped_log(trace, file_id), starts, lengths, rank_events, pid, first_tid, label)


def _lines(process: _Process) -> Iterator[bytes]:
    tracks = process.events.array("track")
    first_us = int(process.events.array("start_ns").min()) // 1000
    if process.first_tid == 0:
        yield _named("process_name", f"rank {process.pid}", process.pid, 0, first_us)
    for track in np.unique(tracks).tolist():
        tid = process.first_tid + track
        label = process.label + (f", in parallel {track}" if track else "")
        yield _named("thread_name", label, process.pid, tid, first_us)
        yield from _lines_of_track(process, np.flatnonzero(tracks == track), tid)


def _named(what: str, name: str, pid: int, tid: int, time_us: int) -> bytes:
    # The time is that of the first event: scripts that sort by time need one, and none that is before all others.
    event = {"name": what, "ts": time_us, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
    return msgspec.json.encode(event)


def _lines_of_track(process: _Process, rows: Array, tid: int) -> Iterator[bytes]:
    """The table has what encloses before what it holds: a span ends where the next one is not deeper."""
    still_open: list[_Event] = []
    for position, event in enumerate(_events(process.events, rows)):
        if position % _GIVE_BACK_EVERY == 0:
            process.log.give_back()
        while event.state != "moment" and len(still_open) > event.depth:
            yield from _end(process, still_open.pop(), tid)
        payload = _payload(process, event.record)
        changes: dict[str, Any] = {}
        if event.state == "moment":
            if event.end_record != MISSING:
                changes = {"ph": "i", "s": "t"}  # an end whose begin is lost: it would end something else
        else:
            still_open.append(event)
            if event.end_record == event.record:
                changes = {"dur": event.duration_ns / 1000}
        yield event_on_track(payload, process.pid, tid, changes)
    while still_open:
        yield from _end(process, still_open.pop(), tid)


def _events(events: Table, rows: Array) -> Iterator[_Event]:
    chosen = events.take(rows)
    return map(_Event._make, zip(*(chosen.columns[name].tolist() for name in _Event._fields), strict=True))


def _payload(process: _Process, record: int) -> bytes:
    start = process.starts[record]
    return process.log.data[start : start + process.lengths[record]]


def _end(process: _Process, event: _Event, tid: int) -> Iterator[bytes]:
    """As it was logged; made up where it is missing, and put right where its time does not fit."""
    if event.end_record == event.record:
        return  # told with its begin
    stop_ns = event.start_ns + event.duration_ns
    if event.end_record == MISSING:
        made_up = {"name": event.name, "ts": stop_ns / 1000, "ph": "E", "cat": "dynamo_timed"}
        yield msgspec.json.encode({**made_up, "pid": process.pid, "tid": tid, "args": {"end_is_missing": True}})
        return
    payload = _payload(process, event.end_record)
    # Most ends have a time right behind their name, of as many digits as the one that it should be.
    fits = b'"ts": %d' % (stop_ns // 1000) in payload[:_MAX_HEAD]
    yield event_on_track(payload, process.pid, tid, {} if fits else {"ts": stop_ns / 1000})
