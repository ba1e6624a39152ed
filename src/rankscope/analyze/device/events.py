"""Events of profiler traces as numpy columns, and the numbering of the processes that they belong to."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.derived import derived
from rankscope.analyze.intervals import Intervals, covered_ns, union
from rankscope.analyze.metric import Selection
from rankscope.model.tables import Array, Text, Trace

# How loaders call themselves: torch's DataLoader and DataPipes, Lightning's fetchers, and what people write by hand.
DATA_LOADER = (
    r"enumerate\(Data(Loader|Pipe)\)|data_?loader|data_?pipe|data_?load(ing)?\b|(load|fetch|next)_?(batch|data)\b"
)
_EVENT_TABLES = ("kernels", "ops", "runtime_calls", "annotations", "comms", "steps", "memory", "counters")


class Processes(NamedTuple):
    """The traced processes, sorted; their position is the group number of their intervals."""

    file_id: Array
    rank: Array

    def __len__(self) -> int:
        return len(self.file_id)


def processes_of(trace: Trace) -> Processes:
    return derived(trace, _find_processes)


def _find_processes(trace: Trace) -> Processes:
    """Execution traces belong to the same processes: they have no events, so they do not count as separate ones."""
    keys: set[tuple[int, int]] = set()
    for name in _EVENT_TABLES:
        keys.update((part.file_id, part.rank) for part in trace.parts.get(name, ()))
        if name in trace.tables:
            table = trace.tables[name]
            keys.update(zip(table.array("file_id").tolist(), table.array("rank").tolist(), strict=True))
    ordered = np.array(sorted(keys), np.int32).reshape(-1, 2)
    return Processes(ordered[:, 0], ordered[:, 1])


def with_process(trace: Trace, columns: dict[str, Array]) -> dict[str, Array]:
    """Columns that have file_id and rank, and also `process`: the number of the traced process."""
    known = processes_of(trace)
    packed = _packed(columns["file_id"], columns["rank"])
    return {**columns, "process": np.searchsorted(_packed(known.file_id, known.rank), packed)}


def _packed(file_id: Array, rank: Array) -> Array:
    return file_id.astype(np.int64) << 32 | rank.astype(np.int64) & 0xFFFFFFFF


def window_number(selection: Selection) -> str:
    """SQL that numbers the windows of chosen steps: steps that follow each other belong to one.

    Between windows there are steps that were not chosen; that time is not idle time of the chosen ones.
    """
    if selection.steps is None:
        return "0"
    ordered = sorted({int(step) for step in selection.steps})
    firsts = [step for index, step in enumerate(ordered) if index == 0 or ordered[index - 1] != step - 1]
    branches = " ".join(f"WHEN step >= {first} THEN {number}" for number, first in reversed(list(enumerate(firsts))))
    return f"CASE {branches} END" if branches else "0"


def covered_by_name(time: Intervals, events: dict[str, Array], n_shown: int) -> list[tuple[str, int, int]]:
    """Per name of events (name, start_ns, end_ns, process), how much of the time they cover, each moment once.

    With the number of stretches that they cover it in; the largest first.
    """
    start, end, process = (events[column] for column in ("start_ns", "end_ns", "process"))
    hit = np.flatnonzero(covered_ns(time, start, end, process))
    names = Text.encode(events["name"][hit].tolist())
    n_names = max(len(names.values), 1)
    merged = union(start[hit], end[hit], process[hit] * n_names + names.codes)
    covered = covered_ns(time, merged.start, merged.end, merged.group // n_names)
    return _largest(Text(merged.group % n_names, names.values), covered, n_shown)


def largest(names: Array, amounts: Array, n_shown: int) -> list[tuple[str, int, int]]:
    """Per name the sum of its amounts and how many there are, the largest first; names without any are left out."""
    hit = np.flatnonzero(amounts)
    return _largest(Text.encode(names[hit].tolist()), amounts[hit], n_shown)


def _largest(names: Text, amounts: Array, n_shown: int) -> list[tuple[str, int, int]]:
    sums = np.zeros(len(names.values), np.int64)
    np.add.at(sums, names.codes, amounts)
    counts = np.bincount(names.codes, minlength=len(sums)).tolist()
    rows = zip(names.values, sums.tolist(), counts, strict=True)
    return sorted(rows, key=lambda row: (-row[1], row[0]))[:n_shown]


def percent(part: Array, whole: Array) -> Array:
    """In percent, NaN where there is no whole."""
    share: Array = np.full(len(whole), np.nan)
    return np.divide(100.0 * part, whole, out=share, where=whole > 0)
