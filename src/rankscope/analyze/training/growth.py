"""P332: memory of the process or its device that keeps growing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rankscope.analyze.registry import Effect, Skipped, rule
from rankscope.analyze.training.series import Series, blocks, by_rank
from rankscope.model.finding import Evidence, Finding, Severity, format_duration, format_size, ranks_phrase
from rankscope.model.tables import Array, Trace

_HOST, _DEVICE = "host_memory_bytes", "device_memory_bytes"
_AVAILABLE, _TOTAL = "host_memory_available_bytes", "device_memory_total_bytes"
_N_BLOCKS = 8
_BEGINNING = 0.25  # of the run, when buffers, caches and compiled code are created
_MIN_SAMPLES = 80
_MIN_SECONDS = 120.0
_MIN_BYTES = 64 << 20
_MIN_SHARE = 0.05  # of what was in use
_N_UP = 6  # of the 7 differences between blocks
_N_END = 2  # differences at the end that show whether it levels off
_AS_STEEP = 0.8  # of the mean: a cache that fills is slower at its end
_TROUGH = 10  # per cent: between steps a device holds only what stays
_SOON_S = 24 * 3600.0


class _Growth(NamedTuple):
    rank: int
    first: float
    last: float
    per_s: float
    step: int
    left_s: float | None  # until the memory is full, if its size is known


@rule("P332", "memory-climbing", needs=("metrics",))
def memory_climbing(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """The memory in use grows steadily through the whole run.

    What it means: after the first quarter of the run, when caches and buffers are created, memory keeps growing in
    nearly every part of it, and at the end as fast as before. If that continues, the host or the device runs out of
    memory, and the rank is killed or raises an exception.

    Why it happens: tensors kept together with their graphs (losses added up without .item()), lists of results and logs
    that grow, caches without a limit, data loader workers that copy the dataset page by page, a library that leaks.

    What to do: on the host, compare two tracemalloc snapshots, or look at the DataLoader workers; on the device,
    compare two of torch.cuda.memory._snapshot(). P305 finds the same in profiler traces, step by step.

    What could fool it: a cache that has a limit but has not reached it when the recording ends; data that grows by
    design.
    """
    has_memory = False
    for name, where in ((_HOST, "host"), (_DEVICE, "device")):
        series = by_rank(trace, name)
        has_memory |= bool(series)
        growing = [growth for each in series.values() if (growth := _growth(trace, each, where)) is not None]
        if growing:
            yield _finding(growing, where)
    if not has_memory:
        yield Skipped("no memory use in the metrics")


def _growth(trace: Trace, series: Series, where: str) -> _Growth | None:
    known = np.flatnonzero(np.isfinite(series.value) & (series.time_ns > 0))
    known = known[np.argsort(series.time_ns[known], kind="stable")]
    kept = known[int(len(known) * _BEGINNING) :]
    if len(kept) < _MIN_SAMPLES:
        return None
    values, seconds = series.value[kept], series.time_ns[kept] / 1e9
    if seconds[-1] - seconds[0] < _MIN_SECONDS:
        return None
    levels = blocks(values, _N_BLOCKS, np.median if where == "host" else _trough)
    if not _is_steady(levels):
        return None
    times = blocks(seconds, _N_BLOCKS, np.mean)
    per_s = float((levels[-1] - levels[0]) / (times[-1] - times[0]))
    left = _left(trace, series.rank, where, float(levels[-1]))
    step = int(series.step[kept[0]])
    return _Growth(series.rank, float(levels[0]), float(levels[-1]), per_s, step, left and left / per_s)


def _trough(values: Array) -> float:
    return float(np.percentile(values, _TROUGH))


def _is_steady(levels: Array) -> bool:
    steps = np.diff(levels)
    total = levels[-1] - levels[0]
    if total < max(_MIN_BYTES, _MIN_SHARE * levels[0]):
        return False
    end = steps[-_N_END:].sum() / _N_END
    return bool((steps > 0).sum() >= _N_UP and (steps[-_N_END:] > 0).all() and end >= _AS_STEEP * total / len(steps))


def _left(trace: Trace, rank: int, where: str, used: float) -> float | None:
    name = _AVAILABLE if where == "host" else _TOTAL
    series = by_rank(trace, name).get(rank)
    if series is None or not np.isfinite(series.value[-1]):
        return None
    last = float(series.value[np.argmax(series.time_ns)])
    return last if where == "host" else max(0.0, last - used)


def _finding(growing: list[_Growth], where: str) -> Finding:
    worst = max(growing, key=lambda growth: growth.per_s)
    ranks = tuple(sorted(growth.rank for growth in growing))
    known = [growth.left_s for growth in growing if growth.left_s is not None]
    left = min(known) if known else None
    if left is not None and where == "host":
        left /= len(growing)  # at worst all of them share one host
    severity: Severity = "warning" if left is not None and left < _SOON_S else "info"
    end = f"; the memory is full in {'at least ' * (len(ranks) > 1)}{_time(left)}" if left is not None else ""
    verb = "uses" if len(ranks) == 1 else "use up to"
    return Finding(
        severity=severity,
        certainty="likely",
        title=f"{ranks_phrase(ranks)} {verb} {format_size(worst.per_s * 60)} more {where} memory every minute{end}",
        ranks=ranks,
        evidence=Evidence(
            certain=(
                f"rank {worst.rank}: {format_size(worst.first)} after the first quarter of the run, "
                f"{format_size(worst.last)} at the end, still growing as fast as before",
            ),
            facts={
                "metric": _HOST if where == "host" else _DEVICE,
                "step": worst.step,
                "bytes_per_s": round(worst.per_s),
                "seconds_left": None if left is None else round(left),
            },
        ),
        help="detach what you keep from step to step, limit caches and lists; compare two tracemalloc snapshots"
        if where == "host"
        else "detach what you keep from step to step; compare two of torch.cuda.memory._snapshot()",
    )


def _time(seconds: float) -> str:
    return format_duration(round(seconds * 1e9))
