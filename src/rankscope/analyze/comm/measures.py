"""Where the time of each call went: waiting for the last member, moving data, and how much of it was exposed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.analyze.comm.matching import Matching
from rankscope.analyze.comm.profile_clocks import ClockQuality, clock_quality, matching_of
from rankscope.analyze.comm.rows import CommRows, numbered
from rankscope.analyze.derived import derived
from rankscope.analyze.device.events import with_process
from rankscope.analyze.intervals import covered_ns, union
from rankscope.model.tables import MISSING, Array, Trace

_CONFIDENCE = np.array([0.0, 0.7, 0.9, 0.98, 1.0])  # in the order of comm_matching.METHODS
_ENDS_AGREE_NS = 5_000_000  # members whose ends are further apart weaken a match
# What a rank does beside communicating. Operators that themselves wait for communication are no work.
_KERNEL_WORK = "kernels WHERE type IS DISTINCT FROM 'communication'"
_HOST_WORK = "ops WHERE NOT regexp_matches(name, '^(c10d|_c10d_functional|record_param_comms|nccl:|gloo:)')"


@dataclass(frozen=True)
class Matches:
    """One entry per logical call."""

    n_seen: Array
    n_members: Array
    method: Array
    confidence: Array
    first_arrival_ns: Array
    last_arrival_ns: Array
    middle_arrival_ns: Array
    end_ns: Array
    end_spread_ns: Array
    transfer_ns: Array
    last_row: Array
    is_judged: Array  # False where the members' clocks could not be aligned
    error_ns: Array  # how far the arrivals may be off against each other

    @property
    def is_complete(self) -> Array:
        return self.n_seen >= self.n_members


@dataclass(frozen=True)
class Measures:
    """Per row of the matching, on the common clock; MISSING where the call has no match."""

    matching: Matching
    matches: Matches
    start_ns: Array
    end_ns: Array
    wait_ns: Array
    lateness_ns: Array
    exposed_ns: Array


def measures_of(trace: Trace) -> Measures:
    return derived(trace, _measure)


def _measure(trace: Trace) -> Measures:
    matching = matching_of(trace)
    rows, match = matching.rows, matching.match
    clock = matching.clocks.of_process[rows.process]
    start = rows.start_ns - matching.clocks.correction_ns(clock, rows.start_ns)
    end = rows.end_ns - matching.clocks.correction_ns(clock, rows.end_ns)
    matches = _describe_matches(matching, clock, start, end)
    wait, lateness = (np.full(len(rows), MISSING, np.int64) for _ in range(2))
    judged = np.flatnonzero(match != MISSING)
    judged = judged[matches.is_judged[match[judged]]]
    wait[judged] = matches.last_arrival_ns[match[judged]] - start[judged]
    lateness[judged] = np.maximum(start[judged] - matches.middle_arrival_ns[match[judged]], 0)
    return Measures(matching, matches, start, end, wait, lateness, _exposed(trace, rows))


def _describe_matches(matching: Matching, clock: Array, start: Array, end: Array) -> Matches:
    rows, match = matching.rows, matching.match
    matched = np.flatnonzero(match != MISSING)
    by_start = matched[np.lexsort((start[matched], match[matched]))]
    by_end = matched[np.lexsort((end[matched], match[matched]))]
    n_matches = int(match.max(initial=-1)) + 1
    first = np.searchsorted(match[by_start], np.arange(n_matches))
    after = np.searchsorted(match[by_start], np.arange(n_matches), side="right")
    middle = first + (after - first - 1) // 2
    last_row = by_start[after - 1]
    last_arrival, end_middle = start[last_row], end[by_end[middle]]
    one_per_rank, _ = numbered(match[matched], rows.rank[matched])
    n_seen = np.bincount(match[matched][one_per_rank], minlength=n_matches)
    sizes = np.asarray([group.size for group in matching.groups] or [0], np.int64)
    n_members = np.maximum(np.where(rows.is_p2p[last_row], 2, sizes[matching.group[last_row]]), n_seen)
    method = np.minimum.reduceat(matching.method[by_start], first) if n_matches else np.empty(0, np.int8)
    agrees = np.abs(end[matched] - end_middle[match[matched]]) <= _ENDS_AGREE_NS
    agreement = np.bincount(match[matched], agrees, n_matches) / np.maximum(
        np.bincount(match[matched], minlength=n_matches), 1
    )
    is_judged, error = _judged_clocks(clock_quality(matching.clocks), clock, by_start, first)
    return Matches(
        n_seen=n_seen,
        n_members=n_members,
        method=method,
        confidence=_CONFIDENCE[method] * agreement,
        first_arrival_ns=start[by_start[first]],
        last_arrival_ns=last_arrival,
        middle_arrival_ns=start[by_start[middle]],
        end_ns=end_middle,
        end_spread_ns=end[by_end[after - 1]] - end[by_end[first]],
        transfer_ns=_transfer(matching, by_start, first, np.maximum(end_middle - last_arrival, 0)),
        last_row=last_row,
        is_judged=is_judged,
        error_ns=error,
    )


def _transfer(matching: Matching, by_start: Array, first: Array, after_arrival: Array) -> Array:
    """The last to arrive waits for no one: its duration needs no common clock. Not so if a root may leave early."""
    rows = matching.rows
    if not len(first):
        return after_arrival
    shortest = np.minimum.reduceat((rows.end_ns - rows.start_ns)[by_start], first)
    return np.where(rows.ends_together[by_start[first]], shortest, after_arrival)


def _judged_clocks(quality: ClockQuality, clock: Array, by_start: Array, first: Array) -> tuple[Array, Array]:
    if not len(first):
        return np.empty(0, bool), np.empty(0, np.int64)
    row_clock = clock[by_start]
    is_one_clock = np.minimum.reduceat(row_clock, first) == np.maximum.reduceat(row_clock, first)
    is_aligned = np.logical_and.reduceat(quality.is_aligned[row_clock], first)
    error = np.maximum.reduceat(quality.error_ns[row_clock], first)
    return is_one_clock | is_aligned, np.where(is_one_clock, 0, error)


def _exposed(trace: Trace, rows: CommRows) -> Array:
    """The part of each call when the rank neither works nor is already in an earlier call."""
    exposed = np.zeros(len(rows), np.int64)
    for is_on_host, work in ((False, _KERNEL_WORK), (True, _HOST_WORK)):
        chosen = np.flatnonzero(rows.is_on_host == is_on_host)
        if not len(chosen):
            continue
        process, end = rows.process[chosen], rows.end_ns[chosen]
        start = _where_alone(process, rows.start_ns[chosen], end)
        busy = with_process(
            trace, trace.sql(f"SELECT file_id, rank, start_ns, start_ns + duration_ns AS end_ns FROM {work}").columns()
        )
        worked = union(busy["start_ns"], busy["end_ns"], busy["process"])
        exposed[chosen] = np.maximum(end - start, 0) - covered_ns(worked, start, end, process)
    return exposed


def _where_alone(process: Array, start: Array, end: Array) -> Array:
    """Calls are by process and start: where no earlier call of the process is under way any more."""
    alone = start.copy()
    first = np.flatnonzero(np.diff(process, prepend=-2) != 0)
    for low, high in zip(first.tolist(), [*first[1:].tolist(), len(start)], strict=True):
        covered = np.maximum.accumulate(end[low:high])
        alone[low + 1 : high] = np.maximum(start[low + 1 : high], covered[:-1])
    return np.minimum(alone, np.maximum(end, start))
