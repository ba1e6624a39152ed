"""Which rank of a pipeline left its schedule: its sends and receives of this step beside those of its earlier steps.

A receive that is left out shifts all later transfers of the pair, so the hang shows somewhere else. But a schedule
repeats: from one call that comes once per step to the next, a rank makes the same transfers with the same neighbors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.analyze.derived import derived
from rankscope.analyze.hangs.programs import Programs, programs_of
from rankscope.analyze.hangs.shifts import explain_shift
from rankscope.analyze.hangs.view import JobView
from rankscope.model.tables import MISSING, Array, Trace

_MAX_ANCHORS = 16  # kinds of collectives that are tried as the mark of a step
_MAX_STEPS = 32  # earlier steps that are compared
_MIN_ALIKE = 6  # calls that a step has in common with the only earlier one


@dataclass(frozen=True)
class Transfer:
    is_send: bool
    peer: int

    def as_fact(self) -> dict[str, object]:
        return {"op": "send" if self.is_send else "recv", "peer": self.peer}


@dataclass(frozen=True)
class ScheduleChange:
    """What a rank did otherwise than in its earlier steps, from its first difference on."""

    rank: int
    row: int  # the rank's call at the first difference; its last one where it made no more
    expected_row: int  # the call of the earlier step in its place
    number: int  # how many calls of the step came before
    is_proven: bool  # two or more earlier steps are the same
    missing: tuple[Transfer, ...]
    extra: tuple[Transfer, ...]


def find_schedule_changes(trace: Trace) -> list[ScheduleChange]:
    """Of all ranks that make transfers; none where all of them changed, as then it is another schedule, not a fault."""
    view, programs = derived(trace, JobView), programs_of(trace)
    users = np.unique(view.rank[view.is_p2p]).tolist()
    compared = [rank for rank in users if rank in view.first_waiting or view.is_idle(rank)]
    changes = [change for rank in compared if (change := change_of(view, programs, rank)) is not None]
    proven = [change for change in changes if change.is_proven]
    if proven:
        return proven if 4 * len(proven) <= len(compared) or len(proven) == 1 else []
    # One earlier step may be a part of one: it counts where a single rank differs, and only after a good while.
    return changes if len(changes) == 1 and changes[0].number >= _MIN_ALIKE else []


def change_of(view: JobView, programs: Programs, rank: int) -> ScheduleChange | None:
    """The difference from the most similar earlier step; None where some earlier step begins in the same way."""
    rows = view.rows_of(rank)
    tokens = programs.token[rows]
    closest: tuple[bool, int, Array, Array] | None = None
    for current, earlier in _steps(view, rows, tokens, rank):
        repeats = Counter(programs.token[step].tobytes() for step in earlier)
        for step in earlier:
            n_same = _common_prefix(programs.token[current], programs.token[step])
            if n_same == len(current):
                return None
            is_proven = repeats[programs.token[step].tobytes()] > 1
            if closest is None or (is_proven, n_same) > closest[:2]:
                closest = (is_proven, n_same, current, step)
    if closest is None:
        return None
    is_proven, n_same, current, step = closest
    missing, extra = _difference(view, programs, current[n_same:], step[n_same:])
    if not missing and not extra:
        return None
    place = min(n_same, len(step) - 1)
    return ScheduleChange(rank, int(current[n_same]), int(step[place]), n_same, is_proven, missing, extra)


def _steps(view: JobView, rows: Array, tokens: Array, rank: int) -> Iterator[tuple[Array, list[Array]]]:
    """The step in which the rank hangs, and those before it, as each kind of collective would divide them."""
    first_open = view.first_waiting.get(rank, MISSING)
    n_done = int(np.searchsorted(rows, first_open)) if first_open != MISSING else len(rows)
    is_collective = ~view.is_p2p[rows]
    ranks = view.trace.table("ranks")
    is_whole = not ranks.array("n_dropped")[ranks.array("rank") == rank].any()
    for anchor in np.unique(tokens[is_collective]).tolist()[:_MAX_ANCHORS]:
        marks = np.flatnonzero(tokens == anchor)
        before = marks[marks < n_done]
        if not len(before):
            continue
        after = marks[marks >= n_done]
        current = rows[before[-1] + 1 : (after[0] + 1 if len(after) else len(rows))]
        starts = [*([0] if is_whole else []), *(before[:-1] + 1).tolist()]
        ends = [*([before[0] + 1] if is_whole else []), *(before[1:] + 1).tolist()]
        earlier = [rows[start:end] for start, end in zip(starts, ends, strict=True)][-_MAX_STEPS:]
        if len(current) and view.is_p2p[current].any() and earlier:
            yield current, earlier[::-1]


def _common_prefix(one: Array, other: Array) -> int:
    n_both = min(len(one), len(other))
    differs = np.flatnonzero(one[:n_both] != other[:n_both])
    return int(differs[0]) if len(differs) else n_both


def _difference(
    view: JobView, programs: Programs, made: Array, expected: Array
) -> tuple[tuple[Transfer, ...], tuple[Transfer, ...]]:
    """The transfers that were left out and those that were added, from the first difference on."""
    tokens = programs.token[made].tolist(), programs.token[expected].tolist()
    # In a row of equal calls one in place of another looks right for a while: what fits to the end comes first.
    shift = explain_shift(*tokens, None) or explain_shift(*tokens, None, n_enough=2)
    n_missing = shift.n_calls if shift is not None and shift.kind == "skipped" else 0
    n_extra = shift.n_calls if shift is not None and shift.kind == "repeated" else 0
    if not n_missing and not n_extra:  # one call in place of the other: a batch with a transfer less, or more
        n_missing = n_extra = 1
    before, after = Counter(_transfers(view, expected[:n_missing])), Counter(_transfers(view, made[:n_extra]))
    return tuple((before - after).elements()), tuple((after - before).elements())


def _transfers(view: JobView, rows: Sequence[int] | Array) -> list[Transfer]:
    ops, peers = view.calls.text("op"), view.calls.array("peer")
    parts = (part for row in rows for part in view.parts_of(int(row)) if peers[part] != MISSING)
    return [Transfer(ops[part] == "send", int(peers[part])) for part in parts]
