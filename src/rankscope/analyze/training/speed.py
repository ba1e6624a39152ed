"""P331: steps that take longer and longer, or longer from some step on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from rankscope.analyze.registry import Effect, Skipped, rule
from rankscope.analyze.training.series import Series, blocks, by_rank, series_of
from rankscope.model.finding import Evidence, Finding, format_duration, ranks_phrase
from rankscope.model.tables import MISSING, Array, Trace

_STEP_TIME = "step_time_s"
_RATES = ("tokens_per_s", "samples_per_s")
_OTHERS_RATE = re.compile(
    r"(^|[/_.\- ])(throughput|tps|(tokens|samples|steps|it|iter|examples|images|sequences)"
    r"(_per_|[_ ]?/[_ ]?)(s|sec|second|gpu))([/_.\- ]|$)",
    re.IGNORECASE,
)
_N_BLOCKS = 10
_N_FIRST, _N_LAST = 3, 3  # blocks that are compared: what is slow for a while only is no fall
_WARM_UP = 0.1  # of the steps, which are not looked at
_MIN_STEPS = 200
_MIN_SECONDS = 60.0  # of the steps that are looked at: a busy moment of the machine is shorter
_FALL = 0.8  # of the speed at first: what is left of it in all of the last blocks
_SLOWER = 0.9  # of the last steps are slower than the usual first one
_HELD = 0.9  # of a rate: then steps are longer because more is in them
_EXPLAINS = 0.5  # of what a step has become longer by
_CAUSES = {
    "loader_wait_s": (
        "waiting for its DataLoader",
        "check the data loader of this rank: its storage, its cache, its workers (num_workers, prefetch_factor)",
    ),
    "gc_time_s": (
        "Python's garbage collection",
        "objects accumulate from step to step: find them (gc.get_objects, tracemalloc), or call gc.freeze() after "
        "setup and collect every N steps",
    ),
}
_HELP = (
    "compare an early step with a late one: record again with a larger --wait, then `rankscope compare EARLY LATE`; "
    "check device clocks and temperature, storage, and lists and caches that grow"
)


class _Fall(NamedTuple):
    before: float  # seconds per step, or what a rate is counted in
    after: float
    step: int  # about where it began

    @property
    def lost(self) -> float:
        """The share of the speed that is lost."""
        return 1 - self.before / self.after


@rule("P331", "throughput-falling", needs=("metrics",))
def throughput_falling(trace: Trace) -> Iterator[Finding | Effect | Skipped]:
    """The job trains clearly more slowly at the end than at the start, and does not recover.

    What it means: the typical step of the last third takes at least a quarter longer than that of the first third, and
    nine out of ten late steps are slower than the typical early one. Single slow steps (an evaluation, a checkpoint) do
    not count, nor do the first steps. If tokens or samples per second are known and stay the same, steps are longer
    because they do more, and nothing is reported.

    Why it happens: a data loader that falls behind (cold storage, a full cache, workers that leak), garbage collection
    over more and more objects, lists and logs that grow, devices that get hot and clock down, other jobs on the host or
    the network.

    What to do: follow the cause if one is named. Otherwise record some steps early and some late in the job and compare
    them: `rankscope compare EARLY LATE`.

    What could fool it: sequences or images that grow by design, if the loader does not report tokens or samples.
    """
    times = by_rank(trace, _STEP_TIME)
    falls = {rank: fall for rank, series in times.items() if (fall := _slower(series)) is not None}
    falls = {rank: fall for rank, fall in falls.items() if not _holds(trace, rank)}
    if falls and len(falls) * 2 >= len(times):
        yield _finding(trace, falls, len(times))
        return
    if not times:
        logged = list(series_of(trace, _is_rate))
        for series in logged:
            fall = _slower(replace(series, value=1 / np.where(series.value > 0, series.value, np.nan)))
            if fall is not None:
                yield _of_log(series, fall)
                return
        if not logged:
            yield Skipped("no step times and no throughput in the metrics")


def _is_rate(name: str) -> bool:
    return bool(_OTHERS_RATE.search(name))


def _slower(series: Series) -> _Fall | None:
    """For seconds per step, or per whatever is counted."""
    finite = np.flatnonzero(np.isfinite(series.value) & (series.value > 0))
    kept = finite[int(len(finite) * _WARM_UP) :]
    if len(kept) < _MIN_STEPS or _seconds(series, kept) < _MIN_SECONDS:
        return None
    values = series.value[kept]
    middles = blocks(values, _N_BLOCKS, np.median)
    first, last = middles[:_N_FIRST], middles[-_N_LAST:]
    before, after = float(np.median(first)), float(np.median(last))
    if first.max() >= _FALL * last.min():
        return None
    late = np.concatenate(np.array_split(values, _N_BLOCKS)[-_N_LAST:])
    if np.mean(late > before) < _SLOWER:
        return None
    began = _began(middles, before) * len(kept) // _N_BLOCKS
    return _Fall(before, after, int(series.step[kept[began]]))


def _seconds(series: Series, kept: Array) -> float:
    times = series.time_ns[kept]
    known = times[times > 0]
    return float(known.max() - known.min()) / 1e9 if len(known) else float(series.value[kept].sum())


def _began(middles: Array, before: float) -> int:
    """The first block after which all are slower."""
    quick = np.flatnonzero(middles <= before / _FALL)
    return int(quick[-1]) + 1 if len(quick) else 0


def _holds(trace: Trace, rank: int) -> bool:
    """Whether it still does as much per second as before."""
    for name in _RATES:
        series = by_rank(trace, name).get(rank)
        if series is not None and len(series) >= _MIN_STEPS:
            kept = series.value[int(len(series) * _WARM_UP) :]
            middles = blocks(kept, _N_BLOCKS, np.median)
            return bool(np.median(middles[-_N_LAST:]) >= _HELD * np.median(middles[:_N_FIRST]))
    return False


class _Cause(NamedTuple):
    name: str
    rank: int
    share: float
    more_s: float


def _cause(trace: Trace, falls: dict[int, _Fall]) -> _Cause | None:
    """The rank whose wait for one thing grew most, if that explains why steps take longer."""
    causes = []
    for name in _CAUSES:
        for rank, series in by_rank(trace, name).items():
            if rank in falls and len(series) >= _MIN_STEPS // 2:
                kept = series.value[int(len(series) * _WARM_UP) :]
                means = blocks(kept, _N_BLOCKS, np.mean)
                more = float(means[-_N_LAST:].mean() - means[:_N_FIRST].mean())
                causes.append(_Cause(name, rank, more / (falls[rank].after - falls[rank].before), more))
    best = max(causes, key=lambda cause: cause.share, default=None)
    return best if best is not None and best.share >= _EXPLAINS else None


def _finding(trace: Trace, falls: dict[int, _Fall], n_ranks: int) -> Finding:
    worst = max(falls.values(), key=lambda fall: fall.lost)
    cause = _cause(trace, falls)
    likely: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    help_ = _HELP
    if cause is not None:
        what, help_ = _CAUSES[cause.name]
        ranks = (cause.rank,)
        likely = (
            f"rank {cause.rank} spends {_time(cause.more_s)} more per step on {what}: "
            f"{min(cause.share, 1):.0%} of the slowdown",
        )
    elif len(falls) < n_ranks:
        ranks = tuple(sorted(falls))
    of_whom = f" on {ranks_phrase(ranks)}" if ranks and cause is None else ""
    return Finding(
        severity="warning",
        certainty="likely",
        title=f"steps{of_whom} take {_time(worst.after)} at the end but took {_time(worst.before)} at the start: "
        f"throughput is down {worst.lost:.0%} from about step {worst.step:,} on",
        ranks=ranks,
        evidence=_evidence(worst, likely, _STEP_TIME),
        help=help_,
    )


def _of_log(series: Series, fall: _Fall) -> Finding:
    return Finding(
        severity="warning",
        certainty="likely",
        title=f"{series.name} falls from {1 / fall.before:.4g} to {1 / fall.after:.4g}: "
        f"throughput is down {fall.lost:.0%} from about step {fall.step:,} on",
        ranks=(series.rank,) if series.rank != MISSING else (),
        evidence=_evidence(fall, (), series.name),
        help=_HELP,
    )


def _evidence(fall: _Fall, likely: tuple[str, ...], metric: str) -> Evidence:
    facts: dict[str, Any] = {"metric": metric, "step": fall.step, "before": fall.before, "after": fall.after}
    return Evidence(
        certain=(
            f"of {_N_BLOCKS} equal parts of the run, each of the last {_N_LAST} is slower than each of the first "
            f"{_N_FIRST}: the median step takes {fall.after / fall.before - 1:.0%} longer",
        ),
        likely=likely,
        cost_pct=round(100 * fall.lost, 1),
        facts=facts,
    )


def _time(seconds: float) -> str:
    return format_duration(round(seconds * 1e9))
