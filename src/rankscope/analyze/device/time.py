"""What ran on the device when: computation, communication, copies, nothing, and what ran at the same time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.device.events import percent, processes_of, window_number, with_process
from rankscope.analyze.intervals import Intervals, Segments, sweep, total_ns
from rankscope.analyze.metric import Selection, metric
from rankscope.model.tables import Array, Table, Text, Trace

KERNEL_TYPES = ("computation", "communication", "memory", "other")
COMPUTATION, COMMUNICATION = 0, 1


class DeviceTime(NamedTuple):
    """The selected work of all devices. Groups are processes, one for each window of chosen steps."""

    process: Array  # per group
    n_kernels: Array  # per group
    span_ns: Array  # per group: first start to last end
    segments: Segments  # kinds are places in KERNEL_TYPES

    def per_process(self, per_group: Array) -> Array:
        """Adds up the windows of each process that has work."""
        present, position = np.unique(self.process, return_inverse=True)
        totals = np.zeros(len(present), np.int64)
        np.add.at(totals, position, per_group)
        return totals

    def time_of(self, intervals: Intervals) -> Array:
        """Covered time per process that has work."""
        return self.per_process(total_ns(intervals, len(self.process)))

    def keys(self, trace: Trace) -> dict[str, Array | Text]:
        known = processes_of(trace)
        present = np.unique(self.process)
        return {"file_id": known.file_id[present], "rank": known.rank[present]}


def device_time(trace: Trace, selection: Selection) -> DeviceTime:
    kind = " ".join(f"WHEN '{name}' THEN {number}" for number, name in enumerate(KERNEL_TYPES))
    work = with_process(
        trace,
        trace.sql(f"""
            SELECT file_id, rank, start_ns, start_ns + duration_ns AS end_ns, {window_number(selection)} AS part,
                   (CASE type {kind} ELSE {len(KERNEL_TYPES) - 1} END)::TINYINT AS kind
            FROM kernels WHERE {selection.where()}
        """).columns(),
    )
    windows = work["process"] << 32 | work["part"].astype(np.int64)
    present, group = np.unique(windows, return_inverse=True)
    first = np.full(len(present), np.iinfo(np.int64).max)
    last = np.zeros(len(present), np.int64)
    np.minimum.at(first, group, work["start_ns"])
    np.maximum.at(last, group, work["end_ns"])
    segments = sweep(work["start_ns"], work["end_ns"], work["kind"], group)
    return DeviceTime(present >> 32, np.bincount(group, minlength=len(present)), last - first, segments)


@metric("temporal", "temporal_breakdown", needs=("kernels",))
def temporal(trace: Trace, selection: Selection) -> Table:
    """One row per traced process: the time its device computed, did other work, or was idle.

    The span runs from the start of the first kernel, copy or fill to the end of the last. Idle is the part of it when
    nothing ran on any stream, compute the part when at least one compute kernel ran, and non-compute the rest:
    communication, copies and fills not overlapped by computation. Synchronization does not count as work. If the
    selected steps are not consecutive, each run of consecutive steps has its own span and the spans are added up.

    Processes without work on a device (CPU-only traces) have no row.
    """
    time = device_time(trace, selection)
    span = time.per_process(time.span_ns)
    busy = time.time_of(time.segments.where(time.segments.kinds != 0))
    compute = time.time_of(time.segments.having(COMPUTATION))
    parts = {"idle": span - busy, "compute": compute, "non_compute": busy - compute}
    return Table(
        "temporal_breakdown",
        {
            **time.keys(trace),
            "n_kernels": time.per_process(time.n_kernels),
            "kernel_ns": span,
            **{f"{name}_ns": part for name, part in parts.items()},
            **{f"{name}_pct": percent(part, span) for name, part in parts.items()},
        },
    )


@metric("overlap", "comm_overlap", needs=("kernels",))
def overlap(trace: Trace, selection: Selection) -> Table:
    """One row per traced process: its communication, and how much of it overlaps with computation.

    Communication is the time when at least one communication kernel ran, and computation likewise; the overlap is the
    time when both did, and its share is of the communication. The rest is exposed: the device communicated and
    computed nothing. A communication kernel that waits for its peers is running, so waiting is included.
    """
    time = device_time(trace, selection)
    kinds = time.segments.kinds
    is_comm, is_compute = ((kinds & (1 << kind)) != 0 for kind in (COMMUNICATION, COMPUTATION))
    comm = time.time_of(time.segments.where(is_comm))
    both = time.time_of(time.segments.where(is_comm & is_compute))
    return Table(
        "comm_overlap",
        {
            **time.keys(trace),
            "comm_ns": comm,
            "compute_ns": time.time_of(time.segments.where(is_compute)),
            "overlap_ns": both,
            "exposed_comm_ns": comm - both,
            "overlap_pct": percent(both, comm),
        },
    )


@metric("kernel_types", "kernel_types", needs=("kernels",))
def kernel_types(trace: Trace, selection: Selection) -> Table:
    """One row per combination of types of work that ran at the same time, summed over all processes.

    Time when anything ran counts once per process, under the types that ran then: computation+communication is
    computation that overlaps with communication. The shares are of the sum of these times.
    """
    segments = device_time(trace, selection).segments
    present, position = np.unique(segments.kinds, return_inverse=True)
    totals = np.zeros(len(present), np.int64)
    np.add.at(totals, position, segments.end - segments.start)
    order = np.argsort(-totals, kind="stable")
    names = ["+".join(name for bit, name in enumerate(KERNEL_TYPES) if kinds >> bit & 1) for kinds in present.tolist()]
    return Table(
        "kernel_types",
        {
            "kernel_type": Text.encode(names[position] for position in order.tolist()),
            "total_ns": totals[order],
            "share_pct": percent(totals[order], np.full(len(order), totals.sum())),
        },
    )
