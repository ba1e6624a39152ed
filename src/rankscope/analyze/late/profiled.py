"""What the profiled steps and the metrics say about a rank's work: more of it, larger, or of another type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rankscope.model.tables import Trace

MORE, DTYPE = "more-work", "dtype"
_MORE = 1.2  # times the peers' work
_MAIN = 0.5  # of the time in operators that have types
_COUNTED = ("tokens", "samples")
# The collector writes rates: what a step held is its rate times its length.
_PER_STEP = """
    SELECT replace(rate.name, '_per_s', ''), rate.rank, median(rate.value * length.value)
    FROM metrics AS rate JOIN metrics AS length
         ON length.name = 'step_time_s' AND length.rank = rate.rank AND length.step = rate.step
    WHERE rate.name IN ('tokens_per_s', 'samples_per_s') AND rate.rank IN ({ranks}) GROUP BY ALL
"""
_MAX_SHOWN = 3
_NOTABLE = 0.1  # of the operators' time
# Operators that do arithmetic on tensors, by what their first input is. Each is counted without what it calls.
_TYPES = """
    SELECT rank, try_cast(input_types AS VARCHAR[])[1] AS type, sum(duration_ns)::DOUBLE AS spent_ns
    FROM ops WHERE rank IN ({ranks}) AND regexp_matches(name, '^aten::(mm|addmm|bmm|baddbmm|matmul|linear|convolution|'
        || 'scaled_dot_product_attention|layer_norm|native_layer_norm|mul|add|relu|gelu)')
    GROUP BY ALL HAVING type IS NOT NULL AND type NOT IN ('', 'Scalar', 'ScalarList', 'int', 'long int', 'GenericList')
"""
# A product of matrices costs as much as its three sizes multiplied; all else as much as its largest input.
_SIZES = """
    SELECT rank, count(*)::DOUBLE AS n, sum(CASE
        WHEN name IN ('aten::mm', 'aten::bmm') THEN list_product(dims[1]) * coalesce(dims[2][-1], 1)
        WHEN name = 'aten::addmm' THEN list_product(dims[2]) * coalesce(dims[3][-1], 1)
        ELSE 0 END)::DOUBLE AS flops
    FROM (SELECT rank, name, [try_cast(one AS BIGINT[]) FOR one IN try_cast(input_dims AS JSON[])] AS dims
          FROM ops WHERE rank IN ({ranks}) AND name IN ('aten::mm', 'aten::bmm', 'aten::addmm'))
    GROUP BY rank
"""
_OPERATORS = """
    SELECT name, rank, count(*) AS n, sum(duration_ns)::BIGINT AS spent_ns
    FROM ops WHERE rank IN ({ranks}) AND name LIKE 'aten::%' GROUP BY ALL
"""


class Measure(NamedTuple):
    """Of the rank, and of its median peer."""

    name: str
    own: float
    peers: float


def kind_of_work(trace: Trace, rank: int, peers: Sequence[int]) -> str:
    """Why the same line takes longer there; empty if nothing in the data says so."""
    if dtypes(trace, rank, peers) is not None:
        return DTYPE
    return MORE if next(more_work(trace, rank, peers), None) is not None else ""


def dtypes(trace: Trace, rank: int, peers: Sequence[int]) -> tuple[str, str] | None:
    """The type that the rank computes in and that of its peers, where all peers agree on another one."""
    spent: dict[int, dict[str, float]] = {}
    for one, kind, ns in trace.sql(_TYPES.format(ranks=_listed(rank, peers))).rows():
        spent.setdefault(one, {})[kind] = ns
    main = {one: max(kinds, key=lambda kind: kinds[kind]) for one, kinds in spent.items()}
    is_main = all(spent[one][kind] >= _MAIN * sum(spent[one].values()) for one, kind in main.items())
    theirs = {main[peer] for peer in peers if peer in main}
    if not is_main or rank not in main or len(theirs) != 1 or main[rank] in theirs:
        return None
    return main[rank], theirs.pop()


def more_work(trace: Trace, rank: int, peers: Sequence[int]) -> Iterator[Measure]:
    """What the rank has clearly more of than its median peer: tokens and samples per step, arithmetic."""
    rows = trace.sql(_PER_STEP.format(ranks=_listed(rank, peers))).rows()
    numbers = {(name, one): value for name, one, value in rows}
    for name in _COUNTED:
        yield from _compared(f"{name} per step", {one: v for (what, one), v in numbers.items() if what == name}, rank)
    flops = {one: flops for one, _, flops in trace.sql(_SIZES.format(ranks=_listed(rank, peers))).rows()}
    yield from _compared("multiplications in matrix products", flops, rank)


def _compared(name: str, numbers: dict[int, float], rank: int) -> Iterator[Measure]:
    theirs = [value for one, value in numbers.items() if one != rank]
    if rank in numbers and theirs:
        usual = float(np.median(theirs))
        if numbers[rank] >= _MORE * usual > 0:
            yield Measure(name, numbers[rank], usual)


def odd_operators(trace: Trace, rank: int, peers: Sequence[int]) -> list[Measure]:
    """Operators that it calls at least twice as often as its median peer, those that take longest first."""
    calls: dict[str, dict[int, tuple[int, int]]] = {}
    total = 0
    for name, one, n, ns in trace.sql(_OPERATORS.format(ranks=_listed(rank, peers))).rows():
        calls.setdefault(name, {})[one] = (n, ns)
        total += ns if one == rank else 0
    odd = []
    for name, by_rank in calls.items():
        n_calls, spent = by_rank.get(rank, (0, 0))
        usual = float(np.median([by_rank.get(peer, (0, 0))[0] for peer in peers])) if peers else 0.0
        if n_calls > 2 * usual and spent >= _NOTABLE * total:
            odd.append((spent, Measure(name, n_calls, usual)))
    return [measure for _, measure in sorted(odd, key=lambda item: -item[0])[:_MAX_SHOWN]]


def _listed(rank: int, peers: Sequence[int]) -> str:
    return ", ".join(str(int(one)) for one in (rank, *peers))
