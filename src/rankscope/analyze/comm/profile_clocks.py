"""How far apart the clocks of the traced hosts are, and how well that is known."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.comm.clocks import in_main_component
from rankscope.analyze.comm.matching import Clocks, Matching, match_calls
from rankscope.analyze.derived import derived
from rankscope.analyze.device.events import processes_of
from rankscope.analyze.metric import Selection, metric
from rankscope.model.clock import MIN_SHARED
from rankscope.model.tables import MISSING, Array, Table, Trace

_SMALLEST_ERROR_NS = 1_000


class ClockQuality(NamedTuple):
    """Per clock."""

    error_ns: Array  # MISSING where it is not aligned
    residual_ns: Array
    n_shared: Array
    is_aligned: Array


def clock_quality(clocks: Clocks) -> ClockQuality:
    n_clocks = len(clocks.hosts)
    moments, deviation = clocks.moments, np.abs(clocks.fit.deviation)
    residual = np.full(n_clocks, MISSING, np.int64)
    shared = np.zeros(n_clocks, np.int64)
    order = np.lexsort((deviation, moments.clock))
    starts = np.searchsorted(moments.clock[order], np.arange(n_clocks + 1))
    for clock, (low, high) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
        if high > low:
            residual[clock] = int(deviation[order[low + int(0.9 * (high - low - 1))]])
            shared[clock] = len(np.unique(moments.match[order[low:high]]))
    is_aligned = (in_main_component(clocks.fit) & (shared >= MIN_SHARED)) | (n_clocks == 1)
    spread = np.maximum(residual, _SMALLEST_ERROR_NS) / np.sqrt(np.maximum(shared, 1))
    error = np.where(is_aligned, np.where(n_clocks == 1, 0, spread), MISSING).astype(np.int64)
    return ClockQuality(error, residual, shared, is_aligned)


def matching_of(trace: Trace) -> Matching:
    return derived(trace, match_calls)


@metric("profile_clocks", "profile_clocks", needs=("profiles", "comms"), of_all_profiles=True)
def profile_clocks(trace: Trace, selection: Selection) -> Table:
    """One row per trace: how far its clock is ahead of the common one, and how accurate that is.

    The ranks of one host share a clock; if the host is unknown, each rank counts as one. All members of a synchronizing
    collective end at nearly the same moment, and so do both ends of a transfer on the device (these have little weight,
    because the receiver ends a bit later). Offsets and, if the window is long enough to show it, drifts are chosen to
    minimize the sum of the absolute differences between these ends. They are relative to the median clock.

    error_ns is residual_ns divided by the square root of n_shared. A clock that shares fewer than three moments with
    the others is not aligned: its times are used as they are, and waits between it and others are not analyzed.
    """
    clocks = matching_of(trace).clocks
    quality = clock_quality(clocks)
    rows = []
    for profile in trace.table("profiles").rows():
        clock = clock_of(trace, profile["file_id"], profile["rank"])
        if clock == MISSING or (selection.ranks is not None and profile["rank"] not in selection.ranks):
            continue
        middle = (profile["start_ns"] + profile["end_ns"]) // 2
        offset = int(clocks.correction_ns(np.array([clock]), np.array([middle]))[0])
        rows.append(
            {
                "file_id": profile["file_id"],
                "rank": profile["rank"],
                "host": clocks.hosts[clock],
                "offset_ns": offset if offset != MISSING else 0,  # -1 would read as missing
                "drift_ppb": float(clocks.fit.drift[clock] * 1e9),
                "at_ns": middle,
                "error_ns": int(quality.error_ns[clock]),
                "residual_ns": int(quality.residual_ns[clock]),
                "n_shared": int(quality.n_shared[clock]),
                "is_aligned": bool(quality.is_aligned[clock]),
            }
        )
    return Table.from_rows("profile_clocks", rows)


def clock_of(trace: Trace, file_id: int, rank: int) -> int:
    """The number of a process's clock, MISSING for one without events."""
    known = processes_of(trace)
    process = np.flatnonzero((known.file_id == file_id) & (known.rank == rank))
    return int(matching_of(trace).clocks.of_process[process[0]]) if len(process) else MISSING
