"""The walk along the critical path: from the end backward, to whatever ended last before each thing could start."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.path.links import Links
from rankscope.analyze.path.work import Job
from rankscope.model.tables import MISSING, Array

# What a piece of the path is.
HOST, LAUNCH, WORK, GAP, SYNC = range(5)


class Path(NamedTuple):
    """Pieces in order of time; each begins where the one before ends."""

    kind: Array
    process: Array
    row: Array
    """The work that runs, is launched or waits; the host wait for SYNC; MISSING for HOST."""
    start: Array
    end: Array


class Window(NamedTuple):
    """Processes that were traced together, and what the last of them did last."""

    processes: Array
    """Which of them, as a mask."""
    process: int
    row: int
    """The last work, or MISSING where the host was the last to be busy."""
    end: int


def windows(job: Job, chosen: Array, step: int | None = None) -> list[Window]:
    """The chosen processes that overlap in time, up to the end of a step or of everything."""
    rows = np.flatnonzero(chosen)
    start, end = job.processes.start, job.processes.end.copy()
    np.maximum.at(end, job.work.process, job.work.end)
    rows = rows[np.argsort(start[rows], kind="stable")]
    reached = np.maximum.accumulate(end[rows])
    firsts = np.flatnonzero(np.concatenate(([True], start[rows][1:] > reached[:-1])))[: len(rows)]
    ends = []
    for first, after in zip(firsts, np.append(firsts[1:], len(rows)), strict=False):
        mask = np.zeros(len(chosen), bool)
        mask[rows[first:after]] = True
        if step is None or step in job.steps.step[mask[job.steps.process]]:
            ends.append(_last_event(job, mask, step))
    return ends


def _last_event(job: Job, processes: Array, step: int | None) -> Window:
    work, steps = job.work, job.steps
    of_step = processes[work.process] if step is None else processes[work.process] & (work.step == step)
    rows = np.flatnonzero(of_step)
    row = int(rows[np.argmax(work.end[rows])]) if len(rows) else MISSING
    if step is None:
        hosts = np.flatnonzero(processes)
        ends = job.processes.end[hosts]
    else:
        marks = np.flatnonzero(processes[steps.process] & (steps.step == step))
        hosts, ends = steps.process[marks], steps.end[marks]
    if row != MISSING and work.end[row] >= ends.max():
        return Window(processes, int(work.process[row]), row, int(work.end[row]))
    return Window(processes, int(hosts[np.argmax(ends)]), MISSING, int(ends.max()))


def walk_back(job: Job, links: Links, window: Window) -> Path:
    """The critical path, from the end of the window as far back as its processes were traced."""
    walker = _Walker(job, links, window)
    walker.run()
    columns = np.array(walker.pieces, np.int64).reshape(-1, len(Path._fields))[::-1].T
    return Path(*(np.ascontiguousarray(column) for column in columns))


def _fast(column: Array) -> memoryview[int]:
    """Single numbers are read from it several times faster than from the array."""
    return memoryview(column)  # type: ignore[arg-type]


class _Walker:
    """One step per piece of work on the path: plain numbers, as nothing here could be done for many at once."""

    def __init__(self, job: Job, links: Links, window: Window) -> None:
        self.job, self.links, self.window = job, links, window
        self.pieces: list[tuple[int, int, int, int, int]] = []
        self.time = window.end

    def run(self) -> None:
        links, work = self.links, self.job.work
        row, process = self.window.row, self.window.process
        start, end, launch, owner, match = map(_fast, (work.start, work.end, work.launch, work.process, work.match))
        held_by, host_bound, release = map(_fast, (links.held_by, links.is_host_bound, links.release))
        last_member, allowed, lowest = map(_fast, (links.last_member, self.window.processes, self.job.processes.start))
        visited: set[int] = set()
        if row == MISSING:
            row = self._cross_host(process, self._release_before(process))
        while row != MISSING:
            process = owner[row]
            came_last = last_member[row]
            if came_last != row and allowed[owner[came_last]] and match[row] not in visited:
                visited.add(match[row])  # wrong matches must not send us in circles
                self._add(WORK, process, row, start[came_last])
                row, process = came_last, owner[came_last]
            else:
                self._add(WORK, process, row, start[row])
            if self.time <= lowest[process]:
                return
            if host_bound[row] or held_by[row] == MISSING:
                if launch[row] != MISSING:
                    self._add(LAUNCH, process, row, launch[row])
                row = self._cross_host(process, release[row])
            else:
                self._add(GAP, process, row, end[held_by[row]])
                row = held_by[row]

    def _add(self, kind: int, process: int, row: int, start: int) -> None:
        """A piece from `start` up to where we are; clocks that disagree must not let time run forward."""
        if start < self.time:
            self.pieces.append((kind, process, row, start, self.time))
            self.time = start

    def _cross_host(self, process: int, wait: int) -> int:
        """From where we are on the host back to its last wait. Returns the work that it waited for."""
        waits = self.links.host_waits
        if wait == MISSING:
            self._add(HOST, process, MISSING, int(self.job.processes.start[process]))
            return MISSING
        awaited = int(waits.work[wait])
        self._add(HOST, process, MISSING, int(waits.end[wait]))
        self._add(SYNC, process, wait, int(self.job.work.end[awaited]))
        return awaited

    def _release_before(self, process: int) -> int:
        """The last wait that held the process up before we are."""
        waits = self.links.host_waits
        over = (waits.process == process) & (waits.end <= self.time) & waits.is_blocking(self.job.work)
        rows = np.flatnonzero(over)
        return int(rows[-1]) if len(rows) else MISSING
