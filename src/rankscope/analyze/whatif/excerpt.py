"""The part of a capture that can be replayed: the steps that its processes have in common, and their work."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.device.events import with_process
from rankscope.analyze.intervals import Intervals, covered_ns, last_begun, union
from rankscope.analyze.metric import Selection
from rankscope.analyze.path.links import Links, links_of
from rankscope.analyze.path.waits import HostWaits, StreamWaits
from rankscope.analyze.path.walk import windows
from rankscope.analyze.path.work import Job, Work, aligned, job_of
from rankscope.model.tables import MISSING, Array, Trace

OP_TYPES = ("forward", "backward", "optimizer")
FORWARD, BACKWARD, OPTIMIZER = range(len(OP_TYPES))


class Excerpt(NamedTuple):
    """Processes and work are renumbered from 0; the links use these numbers."""

    processes: Array
    """Rows in the job's processes."""
    steps: Array
    """Numbers of the steps, in order."""
    begin: Array
    """By process and step: where the host's step before ended, or the first one began."""
    end: Array
    """By process and step: where it ended on the host."""
    work: Work
    """Its steps are places in `steps`."""
    links: Links
    op_type: Array
    """By work."""


def find_excerpt(trace: Trace, selection: Selection) -> Excerpt | None:
    """None when there is nothing to replay: no process, or no step of those that were chosen."""
    job = job_of(trace)
    chosen = np.ones(len(job.processes.rank), bool)
    if selection.ranks is not None:
        chosen = np.isin(job.processes.rank, list(selection.ranks))
    together = max((window.processes for window in windows(job, chosen)), key=np.count_nonzero, default=None)
    if together is None:
        return None
    processes, common, begin, end = _common_steps(job, np.flatnonzero(together), selection)
    if not len(common):
        return None
    work, links = _renumbered(job.work, links_of(trace), processes, common)
    return Excerpt(processes, common, begin, end, work, links, _op_types(trace, work, processes))


def _common_steps(job: Job, processes: Array, selection: Selection) -> tuple[Array, Array, Array, Array]:
    """The longest run of steps that the most processes have in common, and these; one step if none is marked."""
    marks = job.steps
    kept = np.isin(marks.process, processes)
    if selection.steps is not None:
        kept &= np.isin(marks.step, list(selection.steps))
    if selection.since_ns is not None:
        kept &= marks.start >= selection.since_ns
    if selection.until_ns is not None:
        kept &= marks.start < selection.until_ns
    rows = np.flatnonzero(kept)
    if not len(rows):
        unmarked = np.setdiff1d(processes, marks.process)
        start, end = job.processes.start[unmarked], job.processes.end[unmarked]
        n_steps = int(selection.steps is None and len(unmarked) > 0)
        return unmarked, np.full(n_steps, MISSING), start[:, None], end[:, None]
    numbers, position = np.unique(marks.step[rows], return_inverse=True)
    recorded = np.full((len(job.processes.rank), len(numbers)), MISSING)
    recorded[marks.process[rows], position.ravel()] = rows
    is_recorded = recorded[processes] >= 0
    processes = processes[is_recorded[:, np.argmax(is_recorded.sum(axis=0))]]
    shared = np.flatnonzero((recorded[processes] >= 0).all(axis=0))
    shared = max(np.split(shared, np.flatnonzero(np.diff(numbers[shared]) != 1) + 1), key=len)
    mark = recorded[np.ix_(processes, shared)]
    begin, end = marks.start[mark], marks.end[mark]
    begin[:, 1:] = end[:, :-1]  # between two steps the host is as busy as in them
    return processes, numbers[shared], begin, end


def _renumbered(work: Work, links: Links, processes: Array, steps: Array) -> tuple[Work, Links]:
    rows = np.flatnonzero(np.isin(work.process, processes) & np.isin(work.step, steps))
    new = np.full(len(work.process) + 1, MISSING)  # the last stands for MISSING
    new[rows] = np.arange(len(rows))
    chosen = Work(*(column[rows] for column in work))
    chosen = chosen._replace(
        process=np.searchsorted(processes, chosen.process), step=np.searchsorted(steps, chosen.step)
    )
    streams, waits = links.stream_waits, links.host_waits
    both = (new[streams.work] >= 0) & (new[streams.awaited] >= 0)
    held = np.flatnonzero((new[waits.work] >= 0) & waits.is_blocking(work))
    new_wait = np.full(len(waits.work) + 1, MISSING)
    new_wait[held] = np.arange(len(held))
    last = new[links.last_member[rows]]
    host_waits = HostWaits(*(column[held] for column in waits))
    host_waits = host_waits._replace(process=np.searchsorted(processes, host_waits.process), work=new[host_waits.work])
    return chosen, Links(
        before=new[links.before[rows]],
        held_by=new[links.held_by[rows]],
        is_host_bound=links.is_host_bound[rows],
        latency=links.latency[rows],
        gap=links.gap[rows],
        last_member=np.where(last >= 0, last, np.arange(len(rows))),
        moved=links.moved[rows],
        stream_waits=StreamWaits(new[streams.work[both]], new[streams.awaited[both]]),
        host_waits=host_waits,
        release=new_wait[links.release[rows]],
    )


_BACKWARD = """
SELECT file_id, rank, start_ns, start_ns + duration_ns AS end_ns FROM ops
WHERE starts_with(name, 'autograd::engine::evaluate_function')
"""
_OPTIMIZER = """
SELECT file_id, rank, start_ns, start_ns + duration_ns AS end_ns FROM annotations
WHERE kind = 'host' AND starts_with(name, 'Optimizer.step')
"""


def _op_types(trace: Trace, work: Work, processes: Array) -> Array:
    """Launched by autograd's engine: backward. Launched in an optimizer's step: optimizer. All else: forward."""
    op_type = np.full(len(work.process), FORWARD)
    for code, sql in ((BACKWARD, _BACKWARD), (OPTIMIZER, _OPTIMIZER)):
        spans = with_process(trace, trace.sql(sql).columns())
        start, end = (aligned(trace, spans["process"], spans[name]) for name in ("start_ns", "end_ns"))
        known = union(start, end, spans["process"])
        last = last_begun(known, work.launch, processes[work.process])
        inside = last >= 0
        inside[inside] = known.end[last[inside]] > work.launch[inside]
        op_type[inside] = code
    return op_type


class HostClock(NamedTuple):
    """Time when the host was busy: this clock stops while it waits for the device."""

    origin: Array
    waits: Intervals

    def at(self, process: Array, time: Array) -> Array:
        origin = self.origin[process]
        return (time - origin - covered_ns(self.waits, origin, np.maximum(time, origin), process)).astype(np.float64)


def host_clock(excerpt: Excerpt) -> HostClock:
    waits, work = excerpt.links.host_waits, excerpt.work
    released = np.minimum(work.end[waits.work], waits.end)
    return HostClock(excerpt.begin[:, 0], union(waits.start, released, waits.process))
