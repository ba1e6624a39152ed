"""What chance explains: a rank is blamed for being late only where neither luck nor a crowded host explains it."""

from __future__ import annotations

from math import exp, lgamma, log

from rankscope.analyze.derived import derived
from rankscope.model.tables import Trace

_EXPLAINS = 0.5  # of the lost time: then other work on the host makes a rank late, a different one each time
WITHOUT_CORE = "threads_without_core"  # the metric of the collector


def likelihood(n_times: int, n_events: int, n_ranks: int) -> float:
    """The probability that some rank out of n is last in this many of the events or more, if all are equally likely."""
    if n_ranks < 2:
        return 1.0
    share = 1.0 / n_ranks
    terms = (
        exp(_log_choose(n_events, times) + times * log(share) + (n_events - times) * log(1 - share))
        for times in range(n_times, n_events + 1)
    )
    return min(1.0, n_ranks * sum(terms))


def _log_choose(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def without_core(trace: Trace, rank: int) -> float | None:
    """How many of its threads wanted to run but had no free core, on average; None if not recorded."""
    return derived(trace, _without_core).get(rank)


def explains(waited: float | None, lost_share: float) -> bool:
    """Whether waiting for a core can explain that others lost this share of the time waiting for the rank."""
    return waited is not None and waited >= _EXPLAINS * lost_share


def _without_core(trace: Trace) -> dict[int, float]:
    metrics = trace.table("metrics")
    chosen = metrics.text("name").equals(WITHOUT_CORE)
    ranks, values = metrics.array("rank")[chosen], metrics.array("value")[chosen]
    return {rank: float(values[ranks == rank].mean()) for rank in set(ranks.tolist())}
