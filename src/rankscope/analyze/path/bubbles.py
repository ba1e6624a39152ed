"""Pipeline bubbles: how long each stage waits for its neighbors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.device.events import percent, with_process
from rankscope.analyze.intervals import total_ns, union
from rankscope.analyze.metric import Selection, metric
from rankscope.analyze.path.links import Links, links_of
from rankscope.analyze.path.stages import stage_column, stages_of
from rankscope.analyze.path.work import Job, Work, aligned, job_of
from rankscope.model.tables import MISSING, Array, Table, Trace


def has_stages(trace: Trace) -> bool:
    return bool(stages_of(trace))


@metric(
    "bubbles",
    "pipeline_bubbles",
    needs=("comms",),
    applies_if=("has_stages", "torch.profiler in a job with pipeline parallelism"),
)
def bubbles(trace: Trace, selection: Selection) -> Table:
    """One row per pipeline rank and step: how long it waited because a neighboring stage was not ready.

    A rank's stage follows from the transfers: in each step, the first one between two neighbors goes forward. If they
    are unknown, it is the rank's position in a group that is described as a pipeline (pp).

    A rank's step ends when its host and its device are done with it, and starts where the previous step ended. The
    compute stream is blocked by a transfer or collective from the end of its previous work (or from the launch of the
    next work, if that is later) to the end of the communication it waits for. Until the last member arrives, that is
    waiting: bubble_ns for a transfer, wait_ns for a collective; after that, data moves: transfer_ns. So a bubble is the
    step minus computation, communication that moves data, waiting for collectives, and idle_ns: the time the host and
    the device need for themselves.

    The last member is the one that was in the call for the shortest time, so no common clock is needed. Without
    synchronization events (cuda_sync), what the compute stream waited for is inferred from when things ended.
    """
    job, links = job_of(trace), links_of(trace)
    stage = stage_column(trace, job.processes.rank)
    spans = rank_steps(job)
    n_spans = len(spans.step)
    stalls = find_stalls(job, links)
    span = spans.find(stalls.process, stalls.step)
    waited, moved = stalls.waited_ns, stalls.moved_ns
    in_pipeline, elsewhere = _sum(span, waited * stalls.is_p2p, n_spans), _sum(span, waited * ~stalls.is_p2p, n_spans)
    compute, transfer = _compute_ns(trace, job, spans), _sum(span, moved, n_spans)
    duration = spans.end - spans.start
    table = Table(
        "pipeline_bubbles",
        {
            "rank": job.processes.rank[spans.process].astype(np.int32),
            "stage": stage[spans.process].astype(np.int32),
            "step": spans.step,
            "start_ns": spans.start,
            "step_ns": duration,
            "compute_ns": compute,
            "bubble_ns": in_pipeline,
            "wait_ns": elsewhere,
            "transfer_ns": transfer,
            "idle_ns": np.maximum(duration - compute - in_pipeline - elsewhere - transfer, 0),
            "bubble_pct": percent(in_pipeline, duration),
        },
    )
    return table.take(np.flatnonzero(_is_chosen(table, selection)))


def _is_chosen(table: Table, selection: Selection) -> Array:
    """Ranks outside of pipelines have no bubbles."""
    start = table.array("start_ns")
    kept = table.array("stage") >= 0
    for name, wanted in (("rank", selection.ranks), ("step", selection.steps)):
        if wanted is not None:
            kept &= np.isin(table.array(name), list(wanted))
    if selection.since_ns is not None:
        kept &= start >= selection.since_ns
    if selection.until_ns is not None:
        kept &= start < selection.until_ns
    return kept


class RankSteps(NamedTuple):
    """The steps of each process, without a gap between them; one for everything where no steps are marked."""

    process: Array
    step: Array
    start: Array
    end: Array

    def find(self, process: Array, step: Array) -> Array:
        """The row of each step of a process; MISSING for what is outside of all steps."""
        steps = np.unique(self.step)
        table = np.full((int(max(self.process.max(initial=0), process.max(initial=0))) + 1, len(steps) + 1), MISSING)
        table[self.process, np.searchsorted(steps, self.step)] = np.arange(len(self.step))
        column = np.searchsorted(steps, step)
        is_known = np.append(steps, MISSING)[column] == step
        return table[process, np.where(is_known, column, len(steps))]


def rank_steps(job: Job) -> RankSteps:
    steps, work, processes = job.steps, job.work, job.processes
    unmarked = np.setdiff1d(np.arange(len(processes.rank)), steps.process)
    process = np.concatenate((steps.process, unmarked))
    number = np.concatenate((steps.step, np.full(len(unmarked), MISSING)))
    start = np.concatenate((steps.start, processes.start[unmarked]))
    end = np.concatenate((steps.end, processes.end[unmarked]))
    order = np.lexsort((start, process))
    spans = RankSteps(process[order], number[order], start[order], end[order])
    span = spans.find(work.process, work.step)
    np.maximum.at(spans.end, span[span >= 0], work.end[span >= 0])
    follows = np.flatnonzero(spans.process[1:] == spans.process[:-1]) + 1
    spans.start[follows] = spans.end[follows - 1]
    return spans


class Stalls(NamedTuple):
    """Times in which a process could not compute for communication that was not over."""

    process: Array
    step: Array
    is_p2p: Array
    waited_ns: Array
    """For a member that had not come."""
    moved_ns: Array
    """While data moved."""


def find_stalls(job: Job, links: Links) -> Stalls:
    work = job.work
    waiting, awaited, since = (
        np.concatenate(pair) for pair in zip(_on_device(work, links), _on_host(work, links), strict=True)
    )
    order = np.lexsort((work.end[awaited], waiting))
    waiting, awaited, since = waiting[order], awaited[order], since[order]
    # Of several things waited for, each holds up only from the end of the one before.
    follows = np.flatnonzero(waiting[1:] == waiting[:-1]) + 1
    since[follows] = np.maximum(since[follows], work.end[awaited[follows - 1]])
    arrival = work.end[awaited] - links.moved[awaited]
    stalled = np.maximum(work.end[awaited] - since, 0)
    waited = np.clip(arrival - since, 0, stalled)
    return Stalls(work.process[awaited], work.step[waiting], work.is_p2p[awaited], waited, stalled - waited)


def _on_device(work: Work, links: Links) -> tuple[Array, Array, Array]:
    """Work of the compute streams that waited for communication: its row, what it waited for, and since when."""
    pairs = links.stream_waits
    chosen = work.is_comm[pairs.awaited] & _on_compute_streams(work)[pairs.work]
    waiting, awaited = pairs.work[chosen], pairs.awaited[chosen]
    before = links.before[waiting]
    free_at = np.where(before >= 0, work.end[before], MISSING)
    return waiting, awaited, np.maximum(free_at, work.launch_end[waiting])


def _on_host(work: Work, links: Links) -> tuple[Array, Array, Array]:
    waits = links.host_waits
    rows = np.flatnonzero(work.on_host[waits.work])
    return waits.work[rows], waits.work[rows], waits.start[rows]


def _on_compute_streams(work: Work) -> Array:
    """Whether work is on the stream on which its process computes most: others may compute while that one waits."""
    busy = np.where(work.is_comm, 0, work.end - work.start).astype(np.float64)
    total = np.bincount(work.stream, busy)
    owner = np.zeros(len(total), np.int64)
    owner[work.stream] = work.process
    order = np.lexsort((total, owner))
    is_most = np.zeros(len(total), bool)
    is_most[order[np.append(np.diff(owner[order]) > 0, True)[: len(order)]]] = True
    return is_most[work.stream]


def _compute_ns(trace: Trace, job: Job, spans: RankSteps) -> Array:
    """Per step: the time in which some work other than communication runs; of processes without a device, operators."""
    work = job.work
    rows = np.flatnonzero(~work.is_comm)
    on_device = np.zeros(len(job.processes.rank), bool)
    on_device[work.process[~work.on_host]] = True
    span, start, end = spans.find(work.process[rows], work.step[rows]), work.start[rows], work.end[rows]
    if not on_device.all():
        ops = with_process(
            trace,
            trace.sql("SELECT file_id, rank, step, start_ns, start_ns + duration_ns AS end_ns FROM ops").columns(),
        )
        mine = np.flatnonzero(~on_device[ops["process"]])
        process = ops["process"][mine]
        times = (aligned(trace, process, ops[name][mine]) for name in ("start_ns", "end_ns"))
        parts = ((span, start, end), (spans.find(process, ops["step"][mine]), *times))
        span, start, end = (np.concatenate(pair) for pair in zip(*parts, strict=True))
    inside = span >= 0
    return total_ns(union(start[inside], end[inside], span[inside]), len(spans.step))


def _sum(span: Array, amount: Array, n_places: int) -> Array:
    known = span >= 0
    return np.bincount(span[known], amount[known].astype(np.float64), n_places).astype(np.int64)
