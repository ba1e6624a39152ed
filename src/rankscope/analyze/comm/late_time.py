"""What ranks spend their steps on, in the terms that explain why one of them is late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rankscope.analyze.device.events import DATA_LOADER, processes_of, with_process
from rankscope.analyze.device.steps import Windows, step_windows
from rankscope.analyze.intervals import Intervals, Segments, difference, overlap, sweep, union
from rankscope.analyze.metric import Selection
from rankscope.model.clock import median
from rankscope.model.sql import quote_text
from rankscope.model.tables import Array, Trace

# Compiling itself, not the running of what was compiled (Torch-Compiled Region, CompiledFunction): dynamo's phases,
# and the loading of new kernels.
_IS_COMPILATION = (
    r"dynamo_timed|entire_frame_compile|backend_compile|compile_inner|call_user_compiler|inductor_compile|compile_fx"
    r"|async_compile|triton.*compile|ptxas|^(cu|hip)(Module|Library)Load"
)
_IS_COLLECTION = r"^Python GC|built-in (method|function) collect\b|\bgc\.collect|gc_collect"
_IS_SLEEP = r"built-in (method|function) sleep\b|\btime\.sleep\b"
_IS_WAIT = r"[sS]ynchronize|wait_tensor|^c10d|^_c10d_functional"

# What the host does at a moment; the first of those that apply counts.
WAITING, COMPILING, LOADING, COLLECTING = "waiting", "compiling", "data loading", "garbage collection"
SLEEPING, WORKING, COMMUNICATING = "sleeping", "operators and launches", "communicating"
_HOST_KINDS = (WAITING, COMPILING, LOADING, COLLECTING, SLEEPING, WORKING, COMMUNICATING)
FREE = "nothing recorded"
COMPUTATION, COPIES, DEVICE_IDLE = "computation", "copies", "device idle"


class Spending(NamedTuple):
    """Per entry of `names`: what each window spent on it, in nanoseconds."""

    names: tuple[str, ...]
    spent_ns: Array  # [name, window]
    windows: Windows
    rank: Array  # per window

    def typical(self, ranks: Sequence[int]) -> dict[str, float]:
        """Per name the median over the ranks of what each spends in a step on average."""
        means = [self.spent_ns[:, self.rank == rank].mean(axis=1) for rank in ranks if np.any(self.rank == rank)]
        if not means:
            return dict.fromkeys(self.names, 0.0)
        return dict(zip(self.names, median(np.asarray(means)).tolist(), strict=True))


def spending(trace: Trace, ranks: Sequence[int], steps: Sequence[int]) -> Spending:
    """What the ranks spend these steps on; without steps, the whole traces."""
    windows = _windows(trace, ranks, steps)
    parts = {**_on_device(trace, ranks, windows), **_on_host(trace, ranks, windows)}
    known = processes_of(trace).rank
    return Spending(tuple(parts), np.stack(list(parts.values())), windows, known[windows.process])


def _windows(trace: Trace, ranks: Sequence[int], steps: Sequence[int]) -> Windows:
    marked = [step for step in steps if step >= 0]
    return step_windows(trace, Selection(ranks=ranks, steps=marked or None))


def _of_ranks(ranks: Sequence[int]) -> str:
    return f"rank IN ({', '.join(str(int(rank)) for rank in ranks)})"


_SPAN = "file_id, rank, start_ns, start_ns + duration_ns AS end_ns"


def _on_device(trace: Trace, ranks: Sequence[int], windows: Windows) -> dict[str, Array]:
    events = with_process(
        trace,
        trace.sql(f"""
            SELECT {_SPAN}, CASE type WHEN 'computation' THEN 0 WHEN 'memory' THEN 1 ELSE 2 END::TINYINT AS kind
            FROM kernels WHERE {_of_ranks(ranks)}
        """).columns(),
    )
    if not len(events["start_ns"]):
        return {}
    segments = sweep(events["start_ns"], events["end_ns"], events["kind"], events["process"])
    busy = union(segments.start, segments.end, segments.group)
    return {
        COMPUTATION: windows.covered(segments.having(0)),
        COPIES: windows.covered(difference(segments.having(1), segments.having(0))),
        DEVICE_IDLE: windows.end - windows.start - windows.covered(busy),
    }


def _host_events(ranks: Sequence[int]) -> str:
    """Everything that takes time on the host, with its place in _HOST_KINDS."""
    is_loader = f"regexp_matches(name, {quote_text(DATA_LOADER)}, 'i')"
    waits, compiles, collects, sleeps = (
        f"regexp_matches(name, {quote_text(pattern)})"
        for pattern in (_IS_WAIT, _IS_COMPILATION, _IS_COLLECTION, _IS_SLEEP)
    )
    of_ranks = _of_ranks(ranks)
    return f"""
        SELECT {_SPAN}, CASE WHEN {waits} THEN 0 WHEN {compiles} THEN 1 WHEN {is_loader} THEN 2 ELSE 5 END AS kind
        FROM (SELECT file_id, rank, start_ns, duration_ns, name FROM ops WHERE {of_ranks}
              UNION ALL SELECT file_id, rank, start_ns, duration_ns, name FROM runtime_calls WHERE {of_ranks})
        UNION ALL SELECT {_SPAN}, 6 FROM comms WHERE kernel_id IS NULL AND {of_ranks}
        UNION ALL SELECT {_SPAN}, CASE WHEN {compiles} THEN 1 ELSE 2 END FROM annotations
            WHERE kind = 'host' AND ({compiles} OR {is_loader}) AND {of_ranks}
        UNION ALL SELECT {_SPAN}, CASE WHEN {collects} THEN 3 ELSE 4 END FROM python_calls
            WHERE ({collects} OR {sleeps}) AND {of_ranks}
    """


def _host_segments(trace: Trace, ranks: Sequence[int]) -> Segments:
    events = with_process(trace, trace.sql(_host_events(ranks)).columns())
    return sweep(events["start_ns"], events["end_ns"], events["kind"], events["process"])


def _on_host(trace: Trace, ranks: Sequence[int], windows: Windows) -> dict[str, Array]:
    segments = _host_segments(trace, ranks)
    first = (segments.kinds & -segments.kinds).astype(np.int64)
    spent = {kind: windows.covered(segments.where(first == 1 << index)) for index, kind in enumerate(_HOST_KINDS)}
    return {**spent, FREE: windows.end - windows.start - sum(spent.values())}


def longest_stretch(trace: Trace, rank: int, steps: Sequence[int], part: str) -> tuple[int, int, int] | None:
    """The longest time that the rank's host spends on one of its parts: process, start and end."""
    windows = _windows(trace, [rank], steps)
    segments = _host_segments(trace, [rank])
    if part == FREE:
        busy = union(segments.start, segments.end, segments.group)
        stretches = difference(Intervals(windows.process, windows.start, windows.end), busy)
    elif part in _HOST_KINDS:
        spent = segments.where((segments.kinds & -segments.kinds) == 1 << _HOST_KINDS.index(part))
        stretches = overlap(spent, Intervals(windows.process, windows.start, windows.end))
    else:
        return None
    if not len(stretches.start):
        return None
    row = int(np.argmax(stretches.length))
    return int(stretches.group[row]), int(stretches.start[row]), int(stretches.end[row])
