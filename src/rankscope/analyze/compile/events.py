"""compile_events: the phases of compiling as spans that are nested properly.

The log has begins and ends, all said to be of one thread. Work that ran in parallel makes ends come out of order and
times go backward, and a begin or an end may be lost. So ends are matched by name, not by order, and what does not
nest is put on a track of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np

from rankscope.analyze.derived import table
from rankscope.model.payloads import mapped_log
from rankscope.model.phase_event import phase_event
from rankscope.model.tables import MISSING, Array, Table, Text, Trace, concat

# A log made to have as many tracks as spans would take for ever: beyond this, spans are cut to fit.
_MAX_TRACKS = 64
_GIVE_BACK_EVERY = 10_000  # events; mapped pages count as the process's memory
_STATES = ("span", "moment", "open")
_SPAN, _MOMENT, _OPEN = range(3)


class _Marks(NamedTuple):
    """The events of one process in the order in which they were logged."""

    rows: Array  # of compile_records
    phases: list[str]
    names: list[str]
    compile_ids: list[str]
    times: Array
    durations: Array  # of events that tell begin and end at once


class _Pieces(NamedTuple):
    """Spans and moments. `begin` and `end` are marks, `outer` is the piece that was open when it began."""

    begin: Array
    end: Array
    outer: list[int]
    state: Array


class _Places(NamedTuple):
    order: list[int]  # by time, what encloses first
    track: Array
    depth: Array
    holder: Array  # the piece around it on its track
    stop_ns: Array


@table("compile_events", needs=("compile_records",))
def compile_events(trace: Trace) -> Table:
    tables = [_events_of(trace, marks) for marks in _marks_by_process(trace)]
    return concat("compile_events", tables)


def _marks_by_process(trace: Trace) -> Iterator[_Marks]:
    records = trace.table("compile_records")
    rows = np.flatnonzero(records.text("kind").equals("chromium_event") & (records.array("n_payload_bytes") > 0))
    # One file may hold several ranks, if their output was put together.
    processes = np.stack([records.array("file_id")[rows], records.array("rank")[rows]], axis=1)
    for process in np.unique(processes, axis=0):
        yield _read_marks(trace, rows[(processes == process).all(axis=1)])


def _read_marks(trace: Trace, rows: Array) -> _Marks:
    records = trace.table("compile_records")
    log = mapped_log(trace, int(records.array("file_id")[rows[0]]))
    starts = records.array("payload_start")[rows].tolist()
    lengths = records.array("n_payload_bytes")[rows].tolist()
    kept, phases, names, times, durations = [], [], [], [], []
    for position, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        event = phase_event(log.data[start : start + length])
        if position % _GIVE_BACK_EVERY == 0:
            log.give_back()
        if event is not None:
            kept.append(position)
            phases.append(event.ph)
            names.append(event.name)
            times.append(event.ts)
            durations.append(event.dur)
    rows = rows[kept] if kept else rows[:0]
    compile_ids = records.text("compile_id").take(rows).tolist()
    return _Marks(rows, phases, names, compile_ids, _nanoseconds(times), _nanoseconds(durations))


def _nanoseconds(microseconds: list[float]) -> Array:
    """A float of today's time is exact to 1/4 us, but not when it is multiplied by 1000 first."""
    values = np.asarray(microseconds, np.float64)
    whole = np.floor(values)
    return whole.astype(np.int64) * 1000 + np.rint((values - whole) * 1000).astype(np.int64)


def _events_of(trace: Trace, marks: _Marks) -> Table:
    records = trace.table("compile_records")
    pieces = _paired(marks)
    start_ns = marks.times[pieces.begin]
    places = _placed(start_ns, _stops(marks, pieces), pieces, marks.rows[pieces.begin])
    order = np.asarray(places.order, np.int64)
    duration_ns = places.stop_ns - start_ns
    own_ns = duration_ns.copy()
    inner = places.holder >= 0
    np.subtract.at(own_ns, places.holder[inner], duration_ns[inner])
    begin_rows = marks.rows[pieces.begin][order]
    end = pieces.end[order]
    end_record = np.where(end >= 0, records.array("record")[marks.rows[end]] if len(end) else end, MISSING)
    columns: dict[str, Array | Text] = {
        "file_id": records.array("file_id")[begin_rows],
        "rank": records.array("rank")[begin_rows],
        "record": records.array("record")[begin_rows],
        "end_record": end_record.astype(np.int32),
        "compile_id": records.text("compile_id").take(begin_rows),
        "name": Text.encode(marks.names[mark] for mark in pieces.begin[order].tolist()),
        "track": places.track[order],
        "depth": places.depth[order],
        "start_ns": start_ns[order],
        "duration_ns": duration_ns[order],
        "own_ns": own_ns[order],
        "state": Text(pieces.state[order], _STATES),
    }
    return Table("compile_events", columns)


def _paired(marks: _Marks) -> _Pieces:
    """Each end belongs to the last open begin of its name, of its own compilation before that of any other."""
    begin: list[int] = []
    end: list[int] = []
    outer: list[int] = []
    state: list[int] = []
    stack: list[int] = []
    open_ones: dict[tuple[str, str | None], list[int]] = defaultdict(list)
    for mark, (phase, name, compile_id) in enumerate(zip(marks.phases, marks.names, marks.compile_ids, strict=True)):
        same_compilation, others = open_ones[name, compile_id], open_ones[name, None]
        if phase == "E":
            piece = _last_open(same_compilation, state)
            piece = _last_open(others, state) if piece < 0 else piece
            if piece >= 0:
                end[piece], state[piece] = mark, _SPAN
                continue
        while stack and state[stack[-1]] != _OPEN:
            stack.pop()
        outer.append(stack[-1] if stack else -1)
        if phase == "B":
            stack.append(len(begin))
            same_compilation.append(len(begin))
            others.append(len(begin))
        begin.append(mark)
        end.append(mark if phase in ("X", "E") else -1)
        state.append({"B": _OPEN, "X": _SPAN}.get(phase, _MOMENT))  # an end without a begin is a moment, too
    return _Pieces(np.asarray(begin, np.int64), np.asarray(end, np.int64), outer, np.asarray(state, np.int32))


def _last_open(candidates: list[int], state: list[int]) -> int:
    """Those that another lookup closed are dropped on the way."""
    while candidates:
        piece = candidates.pop()
        if state[piece] == _OPEN:
            return piece
    return -1


def _stops(marks: _Marks, pieces: _Pieces) -> Array:
    """When each piece ended. A lost end is put where what encloses the piece ends."""
    start_ns = marks.times[pieces.begin]
    stop_ns = start_ns.copy()
    closed = np.flatnonzero(pieces.end >= 0)
    ends = pieces.end[closed]
    stop_ns[closed] = np.maximum(start_ns[closed], marks.times[ends] + marks.durations[ends])
    still_open = np.flatnonzero(pieces.state == _OPEN).tolist()
    last_of_run = _last_of_run(marks.compile_ids) if still_open else []
    for piece in still_open:
        outer = pieces.outer[piece]
        if outer >= 0 and stop_ns[outer] > start_ns[piece]:
            stop_ns[piece] = stop_ns[outer]
        else:
            # Nothing encloses it. It lasted at least while the log spoke of nothing but its compilation.
            first = int(pieces.begin[piece])
            stop_ns[piece] = marks.times[first : last_of_run[first] + 1].max()
    return stop_ns


def _last_of_run(values: list[str]) -> list[int]:
    """For each position the last one up to which the value stays the same."""
    last = list(range(len(values)))
    for position in range(len(values) - 2, -1, -1):
        if values[position] == values[position + 1]:
            last[position] = last[position + 1]
    return last


def _placed(start_ns: Array, stop_ns: Array, pieces: _Pieces, rows: Array) -> _Places:
    """A piece stays on the track of what was open when it began, if it fits there, else on the first that has room."""
    n_pieces = len(start_ns)
    starts, stops, states = start_ns.tolist(), stop_ns.tolist(), pieces.state.tolist()
    track, depth, holder = [-1] * n_pieces, [0] * n_pieces, [-1] * n_pieces
    tracks: list[list[int]] = [[]]
    order = np.lexsort((rows, -stop_ns, start_ns)).tolist()
    for piece in order:
        start, stop = starts[piece], stops[piece]
        outer = pieces.outer[piece]
        wanted = max(track[outer], 0) if outer >= 0 else 0
        for chosen in chain((wanted,), range(len(tracks))):
            around = tracks[chosen]
            while around and stops[around[-1]] <= start and stops[around[-1]] < stop:
                around.pop()
            if not around or stops[around[-1]] >= stop:
                break
        else:
            if len(tracks) < _MAX_TRACKS:
                around = []
                tracks.append(around)
                chosen = len(tracks) - 1
            else:
                stops[piece] = stops[around[-1]]
        track[piece], depth[piece] = chosen, len(around)
        if states[piece] != _MOMENT:
            if around:
                holder[piece] = around[-1]
            around.append(piece)
    tracks_of, depths, holders = (np.asarray(values, np.int32) for values in (track, depth, holder))
    return _Places(order, tracks_of, depths, holders, np.asarray(stops, np.int64))
