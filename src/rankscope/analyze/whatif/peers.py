"""How long the work of a rank would take if it were like that of its peers.

Communication calls divide the program of a rank into cells: what the host does, and what it launches, between one such
call and the next. Ranks of one pipeline stage have the same program, so the same cell of any of them in any step is a
peer. If the calls of a rank differ from the others' (some may be missing from its trace), the whole step is one cell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rankscope.analyze.whatif.excerpt import OP_TYPES, Excerpt, host_clock
from rankscope.model.tables import Array

_FAR = 1e15  # ns after the end: what comes later moves along

Typical = Callable[[Array], Array]
"""Of values along the first axis."""


def typical_mean(values: Array) -> Array:
    result: Array = values.mean(axis=0)
    return result


def typical_middle(values: Array) -> Array:
    """The median; of an even number the lower of the two, so that of two peers the faster one counts."""
    result: Array = np.sort(values, axis=0)[(len(values) - 1) // 2]
    return result


TYPICAL: dict[str, Typical] = {"median": typical_middle, "mean": typical_mean}


class HostMap(NamedTuple):
    """Per process: points of its busy time on the host, and where these would be."""

    actual: list[Array]
    typical: list[Array]

    def translate(self, process: Array, time: Array) -> Array:
        """`process` in order."""
        bounds = np.searchsorted(process, np.arange(len(self.actual) + 1)).tolist()
        parts = zip(bounds[:-1], bounds[1:], self.actual, self.typical, strict=True)
        return np.concatenate([np.interp(time[low:high], actual, typical) for low, high, actual, typical in parts])


class Peers(NamedTuple):
    """How the excerpt would look if every rank were like its peers."""

    work_ratio: Array
    """By work: what its time would have to be multiplied by."""
    stage_ratio: Array
    """By work: the same to make its stage like the other stages, once the ranks of a stage are alike."""
    balance_ratio: Array
    """By work: the same to divide the work of all stages evenly."""
    host_map: HostMap
    excess_ns: Array
    """By process: how much longer than its peers it takes, host and device, all steps together."""


class _Cells(NamedTuple):
    """Numbered by process, step and order in the program. A turn is one step of one process."""

    first: Array
    """By turn: the number of its first cell."""
    n_cells: Array
    """By turn."""
    host_start: Array
    """On the host's clock of busy time."""
    host_end: Array
    calls: list[bytes]
    """By turn: whether each of its communication calls is a transfer."""
    of_work: Array
    work_order: Array
    """The work by turn and launch."""
    n_work: Array
    """By turn."""
    launched: Array
    """By work: when on the host's clock of busy time."""
    launches: list[bytes]
    """By turn: whether each of its launches is one of communication."""


def compare_with_peers(excerpt: Excerpt, stage: Array, typical: Typical) -> Peers:
    """`stage` is by process of the excerpt, MISSING outside of pipelines."""
    cells = _divide(excerpt)
    turn_stage = np.repeat(stage, len(excerpt.steps))
    n_cells, n_types = len(cells.host_start), len(OP_TYPES)
    # A gap that the host made is its own; the device's are part of the work.
    gap = np.where(excerpt.links.is_host_bound, 0, excerpt.links.gap)
    cost = np.where(excerpt.work.is_comm, 0, excerpt.work.end - excerpt.work.start + gap).astype(np.float64)
    cell = cells.of_work * n_types + excerpt.op_type
    device = np.bincount(cell, cost, n_cells * n_types).reshape(n_cells, n_types)
    host = (cells.host_end - cells.host_start)[:, None]
    ideal_device, ideal_host = (_typical_cells(values, cells, turn_stage, typical) for values in (device, host))
    totals = np.add.reduceat(ideal_device, cells.first)
    excess = (device - ideal_device).sum(axis=1) + (host - ideal_host)[:, 0]
    own_stage = stage[excerpt.work.process]
    return Peers(
        work_ratio=_ratio(ideal_device, device).ravel()[cell],
        stage_ratio=_stage_ratios(totals, turn_stage, typical)[own_stage, excerpt.op_type],
        balance_ratio=_stage_ratios(totals, turn_stage, typical_mean)[own_stage, excerpt.op_type],
        host_map=_host_map(cells, ideal_host[:, 0], turn_stage, typical, len(excerpt.steps)),
        excess_ns=np.add.reduceat(excess, cells.first[:: len(excerpt.steps)]),
    )


def _divide(excerpt: Excerpt) -> _Cells:
    work, n_steps = excerpt.work, len(excerpt.steps)
    n_turns = len(excerpt.processes) * n_steps
    turn = work.process * n_steps + work.step
    launch = np.where(work.launch >= 0, work.launch, work.start)
    order = np.lexsort((launch, turn))
    calls = order[work.is_comm[order]]
    n_calls = np.bincount(turn[calls], minlength=n_turns)
    n_before = np.cumsum(n_calls) - n_calls
    first = n_before + np.arange(n_turns)
    of_work = np.empty(len(turn), np.int64)
    of_work[order] = np.cumsum(work.is_comm[order]) - work.is_comm[order] - n_before[turn[order]] + first[turn[order]]
    clock = host_clock(excerpt)
    process = np.arange(n_turns) // n_steps
    begin, end = (clock.at(process, bound.ravel()) for bound in (excerpt.begin, excerpt.end))
    launched = np.clip(clock.at(work.process, launch), begin[turn], end[turn])
    start = np.empty(len(calls) + n_turns)
    start[first] = begin
    start[of_work[calls] + 1] = launched[calls]
    stop = np.append(start[1:], 0.0)
    stop[first + n_calls] = end
    n_work = np.bincount(turn, minlength=n_turns)
    return _Cells(
        first=first,
        n_cells=n_calls + 1,
        host_start=start,
        host_end=stop,
        calls=_split(work.is_p2p[calls], n_calls),
        of_work=of_work,
        work_order=order,
        n_work=n_work,
        launched=launched,
        launches=_split(work.is_comm[order], n_work),
    )


def _split(flags: Array, counts: Array) -> list[bytes]:
    """The flags of each turn, as something that can be compared and counted."""
    text, ends = flags.astype(np.uint8).tobytes(), np.cumsum(counts).tolist()
    return [text[end - count : end] for end, count in zip(ends, counts.tolist(), strict=True)]


def _typical_cells(values: Array, cells: _Cells, stage: Array, typical: Typical) -> Array:
    """Per cell: what its peers take. `stage` is by turn."""
    result = values.copy()
    totals = np.add.reduceat(values, cells.first)
    for number in np.unique(stage).tolist():
        turns = np.flatnonzero(stage == number)
        is_usual = _is_usual([cells.calls[turn] for turn in turns.tolist()])
        rows = cells.first[turns[is_usual]][:, None] + np.arange(cells.n_cells[turns[is_usual][0]])
        result[rows] = typical(values[rows])
        scale = _ratio(np.broadcast_to(typical(totals[turns]), totals[turns].shape), totals[turns])
        for turn, factor in zip(turns[~is_usual].tolist(), scale[~is_usual], strict=True):
            result[cells.first[turn] : cells.first[turn] + cells.n_cells[turn]] *= factor
    return result


def _stage_ratios(totals: Array, stage: Array, pick: Typical) -> Array:
    """By stage and type of operation: what makes its work like that of a typical stage; the last row is for MISSING."""
    n_stages = int(stage.max()) + 1
    ratios = np.ones((n_stages + 1, totals.shape[1]))
    if n_stages > 1:
        means = np.array([totals[stage == number].mean(axis=0) for number in range(n_stages)])
        target = np.broadcast_to(pick(means), means.shape)
        ratios[:-1] = np.where(target > 0, _ratio(target, means), 1.0)
    return ratios


def _ratio(wanted: Array, present: Array) -> Array:
    return np.divide(wanted, present, out=np.ones(present.shape), where=present > 0)


def _is_usual(programs: list[bytes]) -> Array:
    """True for the programs that are equal to the most common one."""
    usual, _ = Counter(programs).most_common(1)[0]
    return np.array([program == usual for program in programs])


def _host_map(cells: _Cells, ideal: Array, stage: Array, typical: Typical, n_steps: int) -> HostMap:
    """Launches come when those of the peers do; in turns that launch something else, cells shrink or grow evenly."""
    starts = _ideal_starts(cells, ideal, n_steps)
    rows, moved = _usual_launches(cells, starts, stage, typical)
    actual = np.concatenate((cells.host_start, cells.host_end, cells.launched[rows]))
    wanted = np.concatenate((starts, starts + ideal, moved))
    process_of_cell = np.repeat(np.arange(len(cells.first)), cells.n_cells) // n_steps
    process = np.concatenate((process_of_cell, process_of_cell, process_of_cell[cells.of_work[rows]]))
    order = np.lexsort((wanted, actual, process))
    bounds = np.searchsorted(process[order], np.arange(len(cells.first) // n_steps + 1))
    result = HostMap([], [])
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        mine = order[low:high]
        times, targets = actual[mine], np.maximum.accumulate(wanted[mine])
        result.actual.append(np.append(times, times[-1] + _FAR))
        result.typical.append(np.append(targets, targets[-1] + _FAR))
    return result


def _ideal_starts(cells: _Cells, ideal: Array, n_steps: int) -> Array:
    """When each cell would start if all before it in its process were as long as they should be."""
    passed = np.concatenate(([0.0], np.cumsum(ideal)))[:-1]
    firsts = cells.first[::n_steps]
    n_cells = np.diff(np.append(firsts, len(ideal)))
    starts: Array = passed + np.repeat(cells.host_start[firsts] - passed[firsts], n_cells)
    return starts


def _usual_launches(cells: _Cells, starts: Array, stage: Array, typical: Typical) -> tuple[Array, Array]:
    """The launches of turns that launch as much between calls of communication as most do, and when they would be."""
    since_start = cells.launched - cells.host_start[cells.of_work]
    first_work = np.cumsum(cells.n_work) - cells.n_work
    rows, moved = [np.empty(0, np.int64)], [np.empty(0)]
    for number in np.unique(stage).tolist():
        turns = np.flatnonzero(stage == number)
        turns = turns[_is_usual([cells.launches[turn] for turn in turns.tolist()])]
        work = cells.work_order[first_work[turns][:, None] + np.arange(cells.n_work[turns[0]])]
        positions = np.broadcast_to(typical(since_start[work]), work.shape) + starts[cells.of_work[work]]
        rows.append(work.ravel())
        moved.append(positions.ravel())
    return np.concatenate(rows), np.concatenate(moved)
