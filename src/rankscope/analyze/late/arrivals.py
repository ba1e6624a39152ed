"""Which rank the others wait for, call after call, and its own time before each of these calls.

A collective of all members ends for nobody before the last one has joined. So the time from there to a rank's next call
is the rank's own, and who takes longer than the others in the same place of the program is late by its own doing.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from rankscope.analyze.derived import derived
from rankscope.analyze.hangs.signatures import SYNCHRONISING
from rankscope.model.clock import median
from rankscope.model.tables import Array, Trace

_MIN_LATE_NS = 2_000_000  # less is what a scheduler does
_OWN_SHARE = 0.5  # of a delay must be the rank's own time before the call: otherwise it was held up itself
_MIN_SHARE = 0.05  # of the time: less is within the normal variation
_TIMES = 3.0  # what the next one costs: ranks that are late in turns are late by chance
_REPEATED = 4  # events that make a habit
_SINGLE_SHARE = 0.10  # of the time that a few events must cost
_SINGLE_NS = 50_000_000  # each

_CALLS = """
    SELECT c.rank, c.op, c.start_ns - coalesce(m.ahead_ns, 0) AS joined_ns, coalesce(m.ahead_ns, 0) AS ahead_ns,
           dense_rank() OVER (ORDER BY c.group_name, c.group_ranks, c.generation, c.position, c.op) AS call_key,
           coalesce(b.began_ns, 0) - coalesce(m.ahead_ns, 0) AS began_ns
    FROM calls AS c
    LEFT JOIN (SELECT rank, max(clock_offset_ns) AS ahead_ns FROM manifests GROUP BY rank) AS m USING (rank)
    LEFT JOIN (SELECT rank, min(time_ns) AS began_ns FROM host_samples WHERE step > 0 GROUP BY rank) AS b USING (rank)
    WHERE c.source = 'flight_recorder' AND NOT c.is_p2p AND c.role <> 'member'
          AND c.start_ns IS NOT NULL AND c.position IS NOT NULL
    ORDER BY c.rank, joined_ns
"""


class Delays(NamedTuple):
    """One rank's late calls, and the time before them on it and on its peers; times are of each rank's own clock."""

    rank: int
    peers: tuple[int, ...]
    late_ns: Array  # per late call: against the median of the others
    n_calls: int  # that it shares with these peers
    span_ns: int
    windows: dict[int, Array]  # per rank [n, 2]: its own time before the late calls

    @property
    def lost_ns(self) -> int:
        return int(self.late_ns.sum())

    @property
    def share(self) -> float:
        return self.lost_ns / self.span_ns if self.span_ns else 0.0

    @property
    def is_habit(self) -> bool:
        return len(self.late_ns) >= _REPEATED


class _Calls(NamedTuple):
    rank: Array
    key: Array
    joined: Array
    ahead: Array
    waits: Array  # whether nobody leaves the call before all have joined
    is_training: Array  # not before the first step has ended: processes start at different times
    begin: Array  # of the rank's own time before the call


def delays_of(trace: Trace) -> Delays | None:
    """Of the rank that costs the others most; None where no rank is late by more than chance."""
    return derived(trace, _delays)


def _delays(trace: Trace) -> Delays | None:
    calls = _read(trace)
    order = np.lexsort((calls.joined, calls.key))
    edges = np.flatnonzero(np.diff(calls.key[order], prepend=-1))
    late: dict[int, list[tuple[int, Array]]] = defaultdict(list)
    shared: dict[int, int] = defaultdict(int)
    for rows in np.split(order, edges[1:]):
        if len(rows) < 2 or not calls.waits[rows[0]] or not calls.is_training[rows].all():
            continue
        if len(set(calls.rank[rows].tolist())) != len(rows):
            continue
        for rank in calls.rank[rows].tolist():
            shared[rank] += 1
        last, others = rows[-1], rows[:-1]
        late_ns = int(calls.joined[last] - median(calls.joined[others].astype(np.float64)))
        own_ns = calls.joined[last] - calls.begin[last]
        if late_ns >= _MIN_LATE_NS and own_ns >= _OWN_SHARE * late_ns:
            late[int(calls.rank[last])].append((late_ns, rows))
    return _worst(calls, late, shared)


def _read(trace: Trace) -> _Calls:
    table = trace.sql(_CALLS).columns()
    rank, key, joined = table["rank"], table["call_key"], table["joined_ns"]
    op = np.asarray([name in SYNCHRONISING for name in table["op"].tolist()], bool)
    released = np.zeros(int(key.max(initial=0)) + 1, np.int64)
    np.maximum.at(released, key, np.where(op, joined, 0))
    before = np.maximum(np.where(op, released[key], joined), joined)
    begin = np.concatenate(([0], before[:-1])) if len(before) else before
    is_first = np.diff(rank, prepend=-1) != 0
    begin = np.where(is_first, joined, np.minimum(begin, joined))
    return _Calls(rank, key, joined, table["ahead_ns"], op, joined > table["began_ns"], begin)


def _worst(calls: _Calls, late: dict[int, list[tuple[int, Array]]], shared: dict[int, int]) -> Delays | None:
    lost = sorted(((sum(ns for ns, _ in events), rank) for rank, events in late.items()), reverse=True)
    if not lost:
        return None
    total, rank = lost[0]
    if len(lost) > 1 and total < _TIMES * lost[1][0]:
        return None
    events = late[rank]
    own = calls.joined[(calls.rank == rank) & calls.is_training]
    windows: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for _, rows in events:
        for row in rows.tolist():
            ahead = int(calls.ahead[row])
            windows[int(calls.rank[row])].append((int(calls.begin[row]) + ahead, int(calls.joined[row]) + ahead))
    delays = Delays(
        rank,
        tuple(sorted(set(windows) - {rank})),
        np.asarray([ns for ns, _ in events], np.int64),
        shared[rank],
        int(own.max() - own.min()),
        {each: np.asarray(rows, np.int64) for each, rows in windows.items()},
    )
    if delays.is_habit:
        return delays if delays.share >= _MIN_SHARE else None
    is_clear = delays.share >= _SINGLE_SHARE and int(delays.late_ns.min()) >= _SINGLE_NS
    return delays if is_clear else None
