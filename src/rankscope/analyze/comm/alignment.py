"""Finds the calls that belong together where no number says so: by their order, checked, or by their ends.

Order alone is not safe: traces begin at different steps, and some hold only a sample of the calls. So the ends
decide. They agree to well under a millisecond on all members, but only on one clock: a host whose clock is not known
yet is first moved to where most of its calls end together with calls of the same kind that are already in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rankscope.model.tables import MISSING, Array

BY_TIME, BY_ORDER = 1, 2
TOLERANCE_NS = 1e6  # ends of one call on one clock are closer than this, until the matches themselves tell better
_CLOSE_NS = (1e5, 1e6, 1e7)  # how closely differences of ends gather around a clock's offset, from the best case on
_USUAL_OFFSET_NS = 1e9  # clocks that are kept at all are closer than this
_MAX_VOTERS = 64  # calls of one process that vote for its clock
_MAX_PROCESSES = 8  # processes of one host that vote
_ENOUGH_VOTES = 0.3  # of the voters must agree: some have no partner in a sampled trace or another window
_AMBIGUOUS = 0.9  # offsets with this share of the best one's votes are as likely: the smallest is taken
_MOSTLY = 0.9
_HALF = 0.5
_SHORTEST = 0.1  # the quantile of the distances between calls that is taken for the shortest
_PART_OF_DISTANCE = 0.25
_TOGETHER = 0.2  # of the shorter call: neighbours only touch, and on the host members end far apart


@dataclass(frozen=True)
class Calls:
    """The calls to be placed, by process and time: start and end on the common clock where that is known."""

    process: Array
    clock: Array
    domain: Array  # MISSING: not known, it is concluded from the ends
    lane: Array  # of calls without a domain: those of one lane belong to one group
    signature: Array
    start: Array
    end: Array
    ends_together: Array


class Track(NamedTuple):
    """Calls of one process in one domain, by end."""

    signature: Array
    start: Array
    end: Array
    ends_together: Array  # False where members may end far apart: on the host, or where a root may leave early


@dataclass
class Timeline:
    """The logical calls of one domain found so far, by end; each with the times of the process that showed it first."""

    track: Track = field(default_factory=lambda: Track(*(np.empty(0, kind) for kind in (np.int64, float, float, bool))))
    event: Array = field(default_factory=lambda: np.empty(0, np.int64))
    clocks: set[int] = field(default_factory=set)

    def add(self, track: Track, event: Array) -> None:
        joined = Track(*map(np.concatenate, zip(self.track, track, strict=True)))
        order = np.argsort(joined.end, kind="stable")
        self.track = Track(*(column[order] for column in joined))
        self.event = np.concatenate((self.event, event))[order]

    def n_within(self, track: Track, tolerance: float) -> int:
        """How many of the calls ended while the timeline ran: only these can be found in it."""
        low, high = np.searchsorted(track.end, (self.track.end[0] - tolerance, self.track.end[-1] + tolerance))
        return int(high - low)


@dataclass(frozen=True)
class Placement:
    event: Array  # per call the number of its logical call
    method: Array  # BY_ORDER or BY_TIME
    domain: Array  # as given, or concluded


class Aligner:
    """Places the calls of one clock after the other against those already in place."""

    def __init__(
        self, calls: Calls, timelines: dict[int, Timeline], first_event: int, *, may_join_clocks: bool, tolerance: float
    ) -> None:
        self.calls = calls
        self.tolerance = tolerance
        self.timelines = timelines
        self.n_events = first_event
        self.may_join_clocks = may_join_clocks  # whether groups without a name may be found to span several clocks
        self.event = np.full(len(calls.end), MISSING, np.int64)
        self.method = np.zeros(len(calls.end), np.int8)
        self.domain = calls.domain.copy()
        self.concluded: list[int] = []
        self._n_domains = max(int(calls.domain.max(initial=-1)), max(timelines, default=-1)) + 1

    def place(self, is_known: Array) -> Placement:
        """`is_known` says which clocks need no moving."""
        for clock in self._in_order(is_known):
            tracks = list(self._tracks(clock))
            shift = 0.0 if is_known[clock] else self._shift(clock, tracks)
            for track in tracks:
                self._place_track(clock, track, shift)
        return Placement(self.event, self.method, self.domain)

    def _in_order(self, is_known: Array) -> Iterator[int]:
        """Known clocks first; then always the one with most calls in domains that have a timeline."""
        clocks, counts = np.unique(self.calls.clock, return_counts=True)
        left = dict(zip(clocks.tolist(), counts.tolist(), strict=True))
        for clock in sorted(left, key=lambda clock: (not is_known[clock], -left[clock])):
            if is_known[clock]:
                del left[clock]
                yield clock
        domains = {clock: np.unique(self.calls.domain[self.calls.clock == clock]).tolist() for clock in left}
        while left:
            placed = self.timelines.keys() | ({MISSING} if self.concluded else set())
            clock = max(left, key=lambda clock: (sum(d in placed for d in domains[clock]), left[clock], -clock))
            del left[clock]
            yield clock

    def _tracks(self, clock: int) -> Iterator[Array]:
        """The rows of each process of the clock in each domain, or on each lane where the domain is not known."""
        rows = np.flatnonzero(self.calls.clock == clock)
        columns = (self.calls.lane[rows], self.calls.domain[rows], self.calls.process[rows])
        lane = np.where(columns[1] == MISSING, columns[0], MISSING)
        order = np.lexsort((self.calls.end[rows], lane, columns[1], columns[2]))
        changes = np.zeros(len(rows), bool)
        for column in (lane, *columns[1:]):
            changes[1:] |= np.diff(column[order]) != 0
        yield from np.split(rows[order], np.flatnonzero(changes))

    def _shift(self, clock: int, tracks: list[Array]) -> float:
        """How far the clock is ahead of those in place; 0 if unknown."""
        differences = []
        n_voters = 0
        n_of_domain: dict[int, int] = {}
        for track in sorted(tracks, key=len, reverse=True):
            domain = int(self.calls.domain[track[0]])
            n_of_domain[domain] = n_of_domain.get(domain, 0) + 1
            if n_of_domain[domain] <= _MAX_PROCESSES:
                voters = track[:: max(1, len(track) // _MAX_VOTERS)]
                candidates = self._candidates(clock, domain)
                n_voters += len(voters) if candidates else 0
                differences += [self._differences(voters, timeline) for timeline in candidates]
        return most_common_difference(np.concatenate(differences), n_voters) if differences else 0.0

    def _candidates(self, clock: int, domain: int) -> list[Timeline]:
        if domain != MISSING:
            return [self.timelines[domain]] if domain in self.timelines else []
        timelines = [self.timelines[concluded] for concluded in self.concluded]
        return [timeline for timeline in timelines if self.may_join_clocks or clock in timeline.clocks]

    def _differences(self, rows: Array, timeline: Timeline) -> Array:
        parts = [np.empty(0)]
        for signature in np.unique(self.calls.signature[rows]).tolist():
            ends = self.calls.end[rows[self.calls.signature[rows] == signature]]
            theirs = timeline.track.end[timeline.track.signature == signature]
            parts.append((ends[:, None] - theirs[None, :]).ravel())
        return np.concatenate(parts)

    def _place_track(self, clock: int, rows: Array, shift: float) -> None:
        calls = self.calls
        start, end = calls.start[rows] - shift, calls.end[rows] - shift
        track = Track(calls.signature[rows].astype(np.int64), start, end, calls.ends_together[rows])
        domain = int(calls.domain[rows[0]])
        if domain == MISSING:
            domain = self._conclude_domain(clock, track)
            self.domain[rows] = domain
        timeline = self.timelines.setdefault(domain, Timeline())
        timeline.clocks.add(clock)
        position, method = find_places(timeline, track, self.tolerance)
        is_placed = position != MISSING
        self.event[rows[is_placed]] = timeline.event[position[is_placed]]
        self.method[rows] = method
        fresh = np.arange(self.n_events, self.n_events + int(np.count_nonzero(~is_placed)))
        self.n_events += len(fresh)
        self.event[rows[~is_placed]] = fresh
        timeline.add(Track(*(column[~is_placed] for column in track)), fresh)

    def _conclude_domain(self, clock: int, track: Track) -> int:
        """The group without a name whose calls end together with these, or a new one."""
        best, best_share = MISSING, 0.0
        for domain in self.concluded:
            timeline = self.timelines[domain]
            if not self.may_join_clocks and clock not in timeline.clocks:
                continue
            position, _ = find_places(timeline, track, self.tolerance)
            share = np.count_nonzero(position != MISSING) / max(1, timeline.n_within(track, self.tolerance))
            if share > best_share:
                best, best_share = domain, share
        if best_share >= _HALF:
            return best
        self.concluded.append(self._n_domains)
        self._n_domains += 1
        return self.concluded[-1]


def most_common_difference(differences: Array, n_voters: int) -> float:
    """Where differences gather most closely; among equally likely places the one nearest to 0."""
    for limit in (_USUAL_OFFSET_NS, np.inf):
        ordered = np.sort(differences[np.abs(differences) <= limit])
        for close in _CLOSE_NS if len(ordered) else ():
            ends = np.searchsorted(ordered, ordered + close, side="right")
            n_votes = ends - np.arange(len(ordered))
            if n_votes.max() < max(min(3, n_voters), _ENOUGH_VOTES * n_voters):
                continue
            likely = np.flatnonzero(n_votes >= _AMBIGUOUS * n_votes.max())
            middles = ordered[(likely + ends[likely] - 1) // 2]
            return float(middles[np.argmin(np.abs(middles))])
    return 0.0


def find_places(timeline: Timeline, track: Track, tolerance: float) -> tuple[Array, int]:
    """For each call the place of its logical call in the timeline or MISSING, and how it was found."""
    if not len(timeline.event):
        return np.full(len(track.end), MISSING, np.int64), BY_ORDER
    nearest = _nearest_alike(timeline.track, track)
    by_order = _places_by_order(timeline, track, nearest, tolerance)
    if by_order is not None:
        return by_order, BY_ORDER
    return _places_by_time(timeline.track, track, nearest, tolerance), BY_TIME


def _nearest_alike(known: Track, track: Track) -> Array:
    """The place of the nearest logical call of the same kind, MISSING where there is none."""
    nearest = np.full(len(track.end), MISSING, np.int64)
    for kind in np.unique(track.signature).tolist():
        places = np.flatnonzero(known.signature == kind)
        if len(places):
            rows = np.flatnonzero(track.signature == kind)
            end = track.end[rows]
            after = np.searchsorted(known.end[places], end)
            below, above = np.maximum(after - 1, 0), np.minimum(after, len(places) - 1)
            is_above = np.abs(known.end[places[above]] - end) < np.abs(end - known.end[places[below]])
            nearest[rows] = places[np.where(is_above, above, below)]
    return nearest


def _places_by_order(timeline: Timeline, track: Track, nearest: Array, tolerance: float) -> Array | None:
    """One call after the other, shifted by where the trace begins; None when that does not hold all along."""
    is_placed = nearest != MISSING
    if not is_placed.any():
        return None
    shifts, votes = np.unique(nearest[is_placed] - np.flatnonzero(is_placed), return_counts=True)
    position = np.arange(len(track.end)) + int(shifts[np.argmax(votes)])
    inside = np.flatnonzero((position >= 0) & (position < len(timeline.event)))
    known = Track(*(column[position[inside]] for column in timeline.track))
    inner = Track(*(column[inside] for column in track))
    if not len(inside) or np.any(known.signature != inner.signature):
        return None
    if tolerance >= TOLERANCE_NS:
        # A call too many or too few moves all others by a whole distance between calls: part of the shortest is fine.
        distances = np.sort(np.diff(timeline.track.end))
        distance = float(distances[int(_SHORTEST * len(distances))]) if len(distances) else 0.0
        tolerance = max(tolerance, _PART_OF_DISTANCE * distance)
    fits = np.flatnonzero(can_be_one(known, inner, tolerance))
    n_common = max(timeline.n_within(track, tolerance), 1)
    if len(fits) < _MOSTLY * max(len(inside), n_common):
        return None
    ordered = np.full(len(track.end), MISSING, np.int64)
    ordered[inside[fits]] = position[inside[fits]]
    return ordered


def can_be_one(first: Track, second: Track, tolerance: float) -> Array:
    """Two calls end together; those that need not at least run together, as nobody is done before all have come."""
    is_same_end = np.abs(first.end - second.end) <= tolerance
    together = np.minimum(first.end, second.end) - np.maximum(first.start, second.start)
    shorter = np.minimum(first.end - first.start, second.end - second.start)
    can_be: Array = is_same_end | (~second.ends_together & (together > _TOGETHER * shorter))
    return can_be


def _places_by_time(known: Track, track: Track, nearest: Array, tolerance: float) -> Array:
    """The nearest of the same kind, if it is near; each is taken by one call only, and never against the order."""
    apart = np.where(nearest == MISSING, np.inf, np.abs(track.end - known.end[nearest]))
    rows = np.flatnonzero(apart <= tolerance)
    closest_first = rows[np.lexsort((apart[rows], nearest[rows]))]
    is_first = np.ones(len(rows), bool)
    is_first[1:] = np.diff(nearest[closest_first]) != 0
    kept = np.sort(closest_first[is_first])
    forward = np.ones(len(kept), bool)
    forward[1:] = nearest[kept][1:] > np.maximum.accumulate(nearest[kept])[:-1]
    position = np.full(len(track.end), MISSING, np.int64)
    position[kept[forward]] = nearest[kept[forward]]
    return position
