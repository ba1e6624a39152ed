"""Which ranks the others wait for, place by place of the program, and their own time before each of these calls.

A collective of all members ends for nobody before the last one has joined. So the time from there to a rank's next call
is the rank's own, and who takes longer than the others in the same place of the program is late by its own doing. What
the kernel let it wait for a core is taken off, beyond what any thread with as much to compute has to wait: the next
time it is another one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rankscope.analyze.chance import explains, likelihood, without_core
from rankscope.analyze.derived import derived
from rankscope.analyze.hangs.signatures import SYNCHRONISING
from rankscope.analyze.intervals import Intervals, covered_ns, union
from rankscope.model.clock import median
from rankscope.model.tables import Array, Trace

_MIN_LATE_NS = 2_000_000  # less is what a scheduler does
_OWN_SHARE = 0.5  # of a delay must be the rank's own time before the call: otherwise it was held up itself
_MIN_SHARE = 0.05  # of the time: less is within the normal variation
_TIMES = 3.0  # what the next rank costs in single events: ranks that are late in turns are late by chance
_REPEATED = 4  # events that make a habit
_SINGLE_SHARE = 0.10  # of the time that a few events must cost
_SINGLE_NS = 50_000_000  # each
# Which share of the delays in a place one rank must cause, and how likely that may be by luck at most.
_HABIT, _HABIT_IF_CROWDED = (0.6, 1e-3), (0.8, 1e-6)
_CALM = 0.5  # of the calls: so many must be left without those that were profiled
_COMPARABLE = 0.3  # of its median delay: shorter ones of others are noise beside it
# The source that saw most of the job decides: a profiler sees a few steps.
_SOURCES = ("flight_recorder", "kineto", "nsys")

_CALLS = """
    SELECT c.rank, c.op, c.start_ns - coalesce(m.ahead_ns, 0) AS joined_ns, coalesce(m.ahead_ns, 0) AS ahead_ns,
           dense_rank() OVER (ORDER BY c.group_name, c.group_ranks, c.generation, c.position, c.op) AS call_key,
           coalesce(c.op, '') || ' ' || coalesce(c.group_ranks, '') || ' ' || coalesce(c.site, '')
               || ' ' || coalesce(c.sizes, '') AS place,
           coalesce(b.began_ns, 0) - coalesce(m.ahead_ns, 0) AS began_ns
    FROM calls AS c
    LEFT JOIN (SELECT rank, max(clock_offset_ns) AS ahead_ns FROM manifests GROUP BY rank) AS m USING (rank)
    LEFT JOIN (SELECT rank, min(time_ns) AS began_ns FROM host_samples WHERE step > 0 GROUP BY rank) AS b USING (rank)
    WHERE c.source = $source AND NOT c.is_p2p AND c.role <> 'member'
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


class Crowding(NamedTuple):
    """How much of the job's time ranks waited for cores before calls in which their peers waited for them."""

    lost_ns: int
    span_ns: int
    n_calls: int
    ranks: tuple[int, ...]  # that are late for this reason most of the time

    @property
    def share(self) -> float:
        return self.lost_ns / self.span_ns if self.span_ns else 0.0


class _Calls(NamedTuple):
    rank: Array
    key: Array
    place: Array
    joined: Array
    ahead: Array
    waits: Array  # whether nobody leaves the call before all have joined
    is_training: Array  # not before the first step has ended: processes start at different times
    begin: Array  # of the rank's own time before the call
    recording: Array  # how much of that time the collector took


class _Event(NamedTuple):
    rank: int
    place: int
    late_ns: int
    net_ns: int  # without what it waited for a core by bad luck
    rows: Array


class _Arrivals(NamedTuple):
    calls: _Calls
    events: tuple[_Event, ...]
    shared: dict[int, int]
    crowding: Crowding


def delays_of(trace: Trace) -> list[Delays]:
    """Of the ranks that keep others waiting by more than chance; the most expensive one first."""
    return derived(trace, _delays)


def crowding_of(trace: Trace) -> Crowding:
    return derived(trace, _find).crowding


def _delays(trace: Trace) -> list[Delays]:
    arrivals = derived(trace, _find)
    delays = [_of_rank(arrivals, events) for events in _habits(trace, arrivals)]
    late = {each.rank for each in delays}
    single = _single(arrivals, late)
    return sorted([*delays, *([single] if single else [])], key=lambda each: -each.lost_ns)


def _find(trace: Trace) -> _Arrivals:
    """All late calls, net of what the kernel let the rank wait."""
    calls = _read(trace)
    cores = _Waits(trace)
    order = np.lexsort((calls.joined, calls.key))
    edges = np.flatnonzero(np.diff(calls.key[order], prepend=-1))
    events: list[_Event] = []
    shared: dict[int, int] = defaultdict(int)
    gross: dict[int, int] = defaultdict(int)
    crowded: dict[int, int] = defaultdict(int)
    n_crowded = 0
    for rows in np.split(order, edges[1:]) if len(order) else ():
        if len(rows) < 2 or not calls.waits[rows[0]] or not calls.is_training[rows].all():
            continue
        if len(set(calls.rank[rows].tolist())) != len(rows):
            continue
        for rank in calls.rank[rows].tolist():
            shared[rank] += 1
        last, others = int(rows[-1]), rows[:-1]
        late_ns = int(calls.joined[last] - median(calls.joined[others].astype(np.float64)))
        late_ns -= max(int(calls.recording[last] - median(calls.recording[others].astype(np.float64))), 0)
        own_ns = int(calls.joined[last] - calls.begin[last])
        if late_ns < _MIN_LATE_NS or own_ns < _OWN_SHARE * late_ns:
            continue
        waited_ns, unlucky_ns = cores.before(calls, last)
        gross[int(calls.rank[last])] += late_ns
        if waited_ns >= _OWN_SHARE * late_ns:
            crowded[int(calls.rank[last])] += late_ns
            n_crowded += 1
        if late_ns - unlucky_ns >= _MIN_LATE_NS:
            place = int(calls.place[last])
            events.append(_Event(int(calls.rank[last]), place, late_ns, late_ns - unlucky_ns, rows))
    ranks = tuple(sorted(rank for rank in crowded if crowded[rank] >= _OWN_SHARE * gross[rank]))
    span = _span(calls, calls.is_training)
    return _Arrivals(calls, tuple(events), shared, Crowding(sum(crowded.values()), span, n_crowded, ranks))


class _Waits:
    """How long each rank's training thread ran and waited for a core, up to any moment."""

    def __init__(self, trace: Trace) -> None:
        table = trace.sql("SELECT rank, time_ns, cpu_ns, delayed_ns FROM host_samples ORDER BY rank, time_ns").columns()
        ranks = table["rank"]
        self._sums = {
            rank: tuple(np.cumsum(table[name][ranks == rank]) for name in ("cpu_ns", "delayed_ns"))
            for rank in set(ranks.tolist())
        }
        self._times = {rank: table["time_ns"][ranks == rank] for rank in self._sums}
        # What a thread waits for a core per time on it, on the median rank.
        shares = [float(waited[-1]) / max(float(ran[-1]), 1.0) for ran, waited in self._sums.values()]
        self._usual = float(np.median(shares)) if shares else 0.0

    def before(self, calls: _Calls, row: int) -> tuple[int, int]:
        """In the rank's own time before the call; and beyond what is usual for as much time on a core."""
        rank, ahead = int(calls.rank[row]), int(calls.ahead[row])
        if rank not in self._sums:
            return 0, 0
        span = [calls.begin[row] + ahead, calls.joined[row] + ahead]
        ran, waited = (float(np.diff(np.interp(span, self._times[rank], sums))[0]) for sums in self._sums[rank])
        return int(waited), max(int(waited - self._usual * ran), 0)


def _read(trace: Trace) -> _Calls:
    for source in _SOURCES:
        table = trace.sql(_CALLS, source=source).columns()
        if len(set(table["rank"].tolist())) > 1:
            break
    rank, key, joined = table["rank"], table["call_key"], table["joined_ns"]
    op = np.asarray([name in SYNCHRONISING for name in table["op"].tolist()], bool)
    released = np.zeros(int(key.max(initial=0)) + 1, np.int64)
    np.maximum.at(released, key, np.where(op, joined, 0))
    before = np.maximum(np.where(op, released[key], joined), joined)
    begin = np.concatenate(([0], before[:-1])) if len(before) else before
    is_first = np.diff(rank, prepend=-1) != 0
    begin = np.where(is_first, joined, np.minimum(begin, joined))
    _, place = np.unique(np.asarray(table["place"].tolist(), object).astype(str), return_inverse=True)
    ahead = table["ahead_ns"]
    recording = covered_ns(_ours(trace, "recording"), begin + ahead, joined + ahead, rank)
    is_training = joined > table["began_ns"]
    # What the profiler and its observer watch takes several times as long. Without these steps enough must be left.
    is_calm = is_training & (covered_ns(_ours(trace, "profiled"), joined + ahead, joined + ahead + 1, rank) == 0)
    is_training = is_calm if is_calm.sum() >= _CALM * is_training.sum() else is_training
    return _Calls(rank, key, place.reshape(-1), joined, ahead, op, is_training, begin, recording)


def _ours(trace: Trace, kind: str) -> Intervals:
    """When the collector itself was at work, per rank."""
    table = trace.sql("SELECT rank, start_ns, end_ns FROM host_marks WHERE kind = $kind", kind=kind).columns()
    return union(table["start_ns"], table["end_ns"], table["rank"])


def _habits(trace: Trace, arrivals: _Arrivals) -> Iterator[list[_Event]]:
    """Per rank: the delays in the places of the program in which it is nearly always the one that comes last."""
    by_place: dict[int, list[_Event]] = defaultdict(list)
    for event in arrivals.events:
        by_place[event.place].append(event)
    kept: dict[int, list[_Event]] = defaultdict(list)
    for events in by_place.values():
        lost: dict[int, int] = defaultdict(int)
        for event in events:
            lost[event.rank] += event.net_ns
        rank = max(lost, key=lambda one: lost[one])
        limit = _COMPARABLE * float(np.median([event.net_ns for event in events if event.rank == rank]))
        long = [event for event in events if event.net_ns >= limit]
        caused = [event for event in long if event.rank == rank]
        is_crowded = explains(without_core(trace, rank), lost[rank] / max(_span_of(arrivals, rank), 1))
        share, by_luck = _HABIT_IF_CROWDED if is_crowded else _HABIT
        n_ranks = max(len(event.rows) for event in events)
        if len(caused) < max(_REPEATED, share * len(long)) or likelihood(len(caused), len(long), n_ranks) > by_luck:
            continue
        kept[rank] += caused
    for rank, events in kept.items():
        if sum(event.net_ns for event in events) >= _MIN_SHARE * _span_of(arrivals, rank):
            yield events


def _single(arrivals: _Arrivals, known: set[int]) -> Delays | None:
    """A few long events of one rank, in any place, that cost more than all that the others cost together."""
    events: dict[int, list[_Event]] = defaultdict(list)
    for event in arrivals.events:
        if event.net_ns >= _SINGLE_NS and event.rank not in known:
            events[event.rank].append(event)
    lost = sorted(
        ((sum(event.net_ns for event in rank_events), rank) for rank, rank_events in events.items()), reverse=True
    )
    if not lost or (len(lost) > 1 and lost[0][0] < _TIMES * sum(ns for ns, _ in lost[1:])):
        return None
    delays = _of_rank(arrivals, events[lost[0][1]])
    return delays if delays.share >= _SINGLE_SHARE else None


def _of_rank(arrivals: _Arrivals, events: list[_Event]) -> Delays:
    calls, rank = arrivals.calls, events[0].rank
    windows: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        for row in event.rows.tolist():
            ahead = int(calls.ahead[row])
            windows[int(calls.rank[row])].append((int(calls.begin[row]) + ahead, int(calls.joined[row]) + ahead))
    return Delays(
        rank,
        tuple(sorted(set(windows) - {rank})),
        np.asarray([event.late_ns for event in events], np.int64),
        arrivals.shared[rank],
        _span_of(arrivals, rank),
        {each: np.asarray(rows, np.int64) for each, rows in windows.items()},
    )


def _span_of(arrivals: _Arrivals, rank: int) -> int:
    return _span(arrivals.calls, (arrivals.calls.rank == rank) & arrivals.calls.is_training)


def _span(calls: _Calls, chosen: Array) -> int:
    """The longest of any rank: the time between calls that count, one right after the other."""
    follows = np.append(False, (np.diff(calls.rank) == 0) & chosen[1:] & chosen[:-1]) if len(calls.rank) else chosen
    passed = np.diff(calls.joined, prepend=0) - calls.recording
    spans = np.zeros(int(calls.rank.max(initial=0)) + 1, np.int64)
    np.add.at(spans, calls.rank[follows], passed[follows])
    return int(spans.max())
