"""The critical path as a table, and what it consists of."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.derived import derived
from rankscope.analyze.metric import Selection, metric
from rankscope.analyze.path.host import (
    CALLS,
    COMMS,
    KERNELS,
    LOADERS,
    cut_stretches,
    find_names,
    load_activities,
)
from rankscope.analyze.path.links import Links, links_of
from rankscope.analyze.path.walk import GAP, HOST, LAUNCH, SYNC, WORK, Path, walk_back, windows
from rankscope.analyze.path.work import Job, job_of
from rankscope.model.tables import MISSING, Array, Table, Text, Trace, concat

_KINDS = ("host", "data-loading", "launch", "kernel", "copy", "communication", "kernel-gap", "sync")
_HOST, _LOADING, _LAUNCH, _KERNEL, _COPY, _COMMUNICATION, _GAP, _SYNC = range(len(_KINDS))
_REASONS = ("host order", "launch", "stream order", "work on the device")
_HOST_ORDER, _AFTER_LAUNCH, _STREAM_ORDER, _DEVICE = range(len(_REASONS))


@metric("critical_path", "critical_path", needs=("profiles",))
def critical_path(trace: Trace, selection: Selection) -> Table:
    """One row per piece of the critical path through all ranks, in order of time; the pieces add up to the window.

    The path is found backward, from the end of the last event of the last step: of everything that had to
    end before an event could start, the path continues with what ended last.
    - Work on a device waits for the previous work on its stream, for the events its stream waits for, and for its
      launch. The time between the last of these and its start is kernel-gap, or launch if the launch was the last.
    - A launch waits for its host, which has been busy since it last returned from a wait for the device (synchronizing
      calls, blocking copies, launches into a full queue). There the path continues with the work that was waited for;
      the rest of the call is sync. Threads of a process that never launch while another one waits, such as those of
      forward and backward, count as one.
    - A collective or transfer waits for its last member: the path continues with that rank, at its arrival, so that
      only the time when data moved is on it.
    - What a host does is named by its outermost operators and calls; time in a data loader is data-loading.

    Known exactly: the order of streams and threads, launches, the kernels of a CUDA graph after its launch, and, if the
    trace has synchronization events, which event each wait was for. Inferred: the last member of a collective (the one
    that was in it for the shortest time); without synchronization events, what a wait was for (what ended last before
    it was over), and that one stream waited for another (if neither its order nor the launch explains when work
    started). Collectives on the host (gloo) count as waited for if the host runs no operator when they end. Waits that
    are missing from the trace (sampled traces) show up as host time.

    Steps are those of the whole job: a step ends with its last rank. If ranks are selected, the path stays among them.
    """
    job, links = job_of(trace), links_of(trace)
    chosen = np.ones(len(job.processes.rank), bool)
    if selection.ranks is not None:
        chosen = np.isin(job.processes.rank, list(selection.ranks))
    last_step = None if selection.steps is None else max(selection.steps, default=MISSING)
    paths = [walk_back(job, links, window) for window in windows(job, chosen, last_step)]
    if not paths:
        return concat("critical_path", [])
    path = Path(*(np.concatenate(columns) for columns in zip(*paths, strict=True)))
    steps, ends = step_ends(job, chosen)
    pieces = _describe(trace, job, links, _cut(path, ends))
    step = steps[np.minimum(np.searchsorted(ends, pieces.end), len(steps) - 1)] if len(steps) else None
    return _as_table(trace, job, pieces, step, selection)


@metric("path_summary", "path_summary", needs=("profiles",))
def path_summary(trace: Trace, selection: Selection) -> Table:
    """One row per kind of time and rank on the critical path: how much of the path it is.

    The pieces are those of the metric critical_path, which describes what is known exactly and what is inferred.
    Speeding up the largest parts pays off; what is not on the path can be slow at no cost.
    """
    path = critical_path(trace, selection)
    duration = path.array("duration_ns")
    kind, name = path.text("kind"), path.text("name")
    rows = []
    for rank in np.unique(path.array("rank")).tolist():
        for code, label in enumerate(kind.values):
            mine = np.flatnonzero((path.array("rank") == rank) & (kind.codes == code))
            if len(mine):
                by_name = np.bincount(name.codes[mine], duration[mine].astype(np.float64))
                main = int(np.argmax(by_name))
                total = int(duration[mine].sum())
                rows.append({"rank": rank, "kind": label, "n_pieces": len(mine), "duration_ns": total,
                             "share_pct": 100 * total / int(duration.sum()), "main_name": name.values[main],
                             "main_ns": int(by_name[main])})  # fmt: skip
    rows.sort(key=lambda row: -int(row["duration_ns"]))
    return Table.from_rows("path_summary", rows)


def step_ends(job: Job, chosen: Array) -> tuple[Array, Array]:
    """The steps of the job, and when the last of the chosen processes was done with each on its host and its device."""
    marks = np.flatnonzero(chosen[job.steps.process])
    steps, position = np.unique(job.steps.step[marks], return_inverse=True)
    ends = np.full(len(steps), np.iinfo(np.int64).min)
    np.maximum.at(ends, position.ravel(), job.steps.end[marks])
    rows = np.flatnonzero(chosen[job.work.process] & np.isin(job.work.step, steps))
    np.maximum.at(ends, np.searchsorted(steps, job.work.step[rows]), job.work.end[rows])
    return steps, np.maximum.accumulate(ends)


def _cut(path: Path, times: Array) -> Path:
    """Divides pieces that lie across the given times."""
    around = np.searchsorted(path.start, times, "right") - 1
    inside = (around >= 0) & (times > path.start[around]) & (times < path.end[around])
    start = np.unique(np.concatenate((path.start, times[inside])))
    whole = np.searchsorted(path.start, start, "right") - 1
    end = np.minimum(path.end[whole], np.append(start[1:], path.end[-1]))
    return Path(path.kind[whole], path.process[whole], path.row[whole], start, end)


class _Pieces(NamedTuple):
    process: Array
    kind: Array
    source: Array
    key: Array
    stream: Array
    reason: Array
    """A place in _REASONS, or beyond them: of a stream (even) or a rank (odd)."""
    start: Array
    end: Array


def _describe(trace: Trace, job: Job, links: Links, path: Path) -> _Pieces:
    on_host = np.flatnonzero(path.kind == HOST)
    others = np.flatnonzero(path.kind != HOST)
    activities = derived(trace, load_activities)
    cut = cut_stretches(activities, path.process[on_host], path.start[on_host], path.end[on_host])
    nothing = np.full(len(cut.start), MISSING)
    host = _Pieces(
        process=path.process[on_host][cut.stretch],
        kind=np.where(cut.source == LOADERS, _LOADING, _HOST),
        source=cut.source,
        key=cut.key,
        stream=nothing,
        reason=np.full(len(cut.start), _HOST_ORDER),
        start=cut.start,
        end=cut.end,
    )
    device = _describe_device(job, links, Path(*(column[others] for column in path)))
    both = _Pieces(*(np.concatenate(columns) for columns in zip(host, device, strict=True)))
    return _Pieces(*(column[np.argsort(both.start, kind="stable")] for column in both))


def _describe_device(job: Job, links: Links, path: Path) -> _Pieces:
    work, waits = job.work, links.host_waits
    is_sync = path.kind == SYNC
    row = path.row.copy()
    call = np.where(is_sync, waits.call_id[np.where(is_sync, row, 0)], MISSING) if len(waits.call_id) else row
    row[is_sync] = waits.work[row[is_sync]]
    has_call = is_sync & (call != MISSING)
    kind = np.select(
        [is_sync, path.kind == LAUNCH, path.kind == GAP, work.is_comm[row], work.is_copy[row]],
        [_SYNC, _LAUNCH, _GAP, _COMMUNICATION, _COPY],
        _KERNEL,
    )
    return _Pieces(
        process=path.process,
        kind=kind,
        source=np.where(has_call, CALLS, np.where(work.on_host[row], COMMS, KERNELS)),
        key=np.where(has_call, call, work.key[row]),
        stream=np.where(is_sync | (path.kind == LAUNCH), MISSING, work.stream_id[row]),
        reason=_reasons(job, links, path, row),
        start=path.start,
        end=path.end,
    )


def _reasons(job: Job, links: Links, path: Path, row: Array) -> Array:
    work = job.work
    held_by = links.held_by[row]
    by_host = links.is_host_bound[row] | (held_by < 0)
    # Streams and ranks come after the fixed reasons: they are told apart by their number.
    by_stream = len(_REASONS) + 2 * work.stream_id[np.maximum(held_by, 0)]
    last = links.last_member[row]
    jumped = (path.kind == WORK) & (last != row) & (path.start >= work.start[last]) & (path.start > work.start[row])
    by_rank = len(_REASONS) + 2 * job.processes.rank[work.process[last]] + 1
    return np.select(
        [path.kind == SYNC, path.kind == LAUNCH, jumped, by_host, held_by == links.before[row]],
        [_DEVICE, _HOST_ORDER, by_rank, _AFTER_LAUNCH, _STREAM_ORDER],
        by_stream,
    )


def _reason_text(code: int) -> str:
    if code < len(_REASONS):
        return _REASONS[code]
    number, is_rank = divmod(code - len(_REASONS), 2)
    return f"arrival of rank {number}" if is_rank else f"stream {number}"


def _as_table(trace: Trace, job: Job, pieces: _Pieces, step: Array | None, selection: Selection) -> Table:
    kept = np.ones(len(pieces.start), bool)
    if selection.steps is not None and step is not None:
        kept = np.isin(step, list(selection.steps))
    if selection.since_ns is not None:
        kept &= pieces.start >= selection.since_ns
    if selection.until_ns is not None:
        kept &= pieces.start < selection.until_ns
    rows = np.flatnonzero(kept)
    pieces = _Pieces(*(column[rows] for column in pieces))
    codes, reasons = np.unique(pieces.reason, return_inverse=True)
    return Table(
        "critical_path",
        {
            "rank": job.processes.rank[pieces.process].astype(np.int32),
            "file_id": job.processes.file_id[pieces.process].astype(np.int32),
            "kind": Text(pieces.kind.astype(np.int32), list(_KINDS)),
            "name": Text.encode(find_names(trace, pieces.process, pieces.source, pieces.key)),
            "start_ns": pieces.start,
            "duration_ns": pieces.end - pieces.start,
            "step": step[rows] if step is not None else np.full(len(rows), MISSING),
            "stream": pieces.stream,
            "waited_for": Text(reasons.ravel().astype(np.int32), [_reason_text(code) for code in codes.tolist()]),
        },
    )
