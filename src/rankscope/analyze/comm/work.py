"""How the work of one rank compares with that of its peers: how many calls, how large, how long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rankscope.model.clock import median
from rankscope.model.tables import Trace

# Blocks say how much a kernel has to do; on the host it is the number of elements of the inputs, where shapes were
# recorded. Nested operators are counted with all that they call: that is the same for all ranks.
_KERNELS = """
    SELECT rank, name, count(*) AS n, sum(duration_ns)::DOUBLE AS total_ns,
           coalesce(sum(list_product(try_cast(grid AS BIGINT[]))), 0)::DOUBLE AS size
    FROM kernels WHERE type = 'computation' AND {chosen} GROUP BY ALL
"""
_OPERATORS = """
    SELECT rank, name, count(*) AS n, sum(duration_ns)::DOUBLE AS total_ns,
           coalesce(sum(list_sum(
               [list_product(try_cast(shape AS BIGINT[])) FOR shape IN try_cast(input_dims AS JSON[])]
           )), 0)::DOUBLE AS size
    FROM ops WHERE {chosen} GROUP BY ALL
"""


class NamedWork(NamedTuple):
    """One kernel or operator: calls in all, and means per call, of the rank and of its median peer."""

    name: str
    own_calls: float
    peers_calls: float
    own_ns: float
    peers_ns: float
    own_size: float
    peers_size: float

    @property
    def longer_ns(self) -> float:
        return self.own_calls * self.own_ns - self.peers_calls * self.peers_ns

    @property
    def by_count_ns(self) -> float:
        """What the number of calls alone would make longer."""
        return (self.own_calls - self.peers_calls) * (self.peers_ns or self.own_ns)

    @property
    def by_size_ns(self) -> float:
        """What the size of the calls alone would make longer, if time followed it."""
        return self.peers_calls * self.peers_ns * (self.own_size / self.peers_size - 1) if self.peers_size else 0.0


class Work(NamedTuple):
    time_ratio: float  # of the rank by its median peer, all calls together
    count_share: float  # of the longer time: what the number of calls explains
    size_share: float  # what their sizes explain, among the calls whose sizes were recorded
    by_name: tuple[NamedWork, ...]  # where most of the longer time goes first


class _Totals(NamedTuple):
    n: float
    total_ns: float
    size: float


def compare_work(trace: Trace, on_device: bool, rank: int, peers: Sequence[int], steps: Sequence[int]) -> Work:
    """Without steps the whole traces are compared."""
    ranks = ", ".join(str(int(one)) for one in (rank, *peers))
    marked = [str(int(step)) for step in steps if step >= 0]
    chosen = f"rank IN ({ranks})" + (f" AND step IN ({', '.join(marked)})" if marked else "")
    query = (_KERNELS if on_device else _OPERATORS).format(chosen=chosen)
    totals_of: dict[str, dict[int, _Totals]] = {}
    for one, name, *totals in trace.sql(query).rows():
        totals_of.setdefault(name, {})[one] = _Totals(*totals)
    works = [_named(name, by_rank, rank, peers) for name, by_rank in totals_of.items()]
    sized = [work for work in works if work.peers_size]
    late_rank_ns, theirs = (
        sum(work.own_calls * work.own_ns for work in works),
        sum(w.peers_calls * w.peers_ns for w in works),
    )
    return Work(
        time_ratio=late_rank_ns / theirs if theirs > 0 else 0.0,
        count_share=_share(sum(work.by_count_ns for work in works), works),
        size_share=_share(sum(work.by_size_ns for work in sized), sized),
        by_name=tuple(sorted(works, key=lambda work: -work.longer_ns)),
    )


def _share(explained_ns: float, works: Sequence[NamedWork]) -> float:
    longer = sum(work.longer_ns for work in works)
    return explained_ns / longer if longer > 0 else 0.0


def _named(name: str, by_rank: dict[int, _Totals], rank: int, peers: Sequence[int]) -> NamedWork:
    none = _Totals(0.0, 0.0, 0.0)
    late_rank = by_rank.get(rank, none)
    theirs = _Totals(*median(np.asarray([by_rank.get(peer, none) for peer in peers], np.float64)).tolist())
    means = [(one.total_ns / max(one.n, 1), one.size / max(one.n, 1)) for one in (late_rank, theirs)]
    return NamedWork(name, late_rank.n, theirs.n, means[0][0], means[1][0], means[0][1], means[1][1])
