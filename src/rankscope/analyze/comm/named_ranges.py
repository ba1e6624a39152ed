"""The range that a job named itself (record_function) and in which a late rank spends what its peers do not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rankscope.analyze.comm.stragglers import Standing
from rankscope.model.tables import Trace

_EXPLAINS = 0.4  # of the delay
_TIMES = 3.0  # what the peers spend there: in a range that is merely slower, the reason lies inside or beside it
_MAX_STEPS = 16
# What ends one step makes the peers wait in the next one: the step before a late one counts as well.
_RANGES = """
    SELECT a.rank, a.name, sum(a.duration_ns)::DOUBLE
    FROM annotations AS a JOIN steps AS s
        ON s.file_id = a.file_id AND s.rank = a.rank
           AND a.start_ns >= s.start_ns AND a.start_ns < s.start_ns + s.duration_ns
    WHERE a.kind = 'host' AND a.name <> s.name AND a.name NOT LIKE 'ProfilerStep%'
          AND a.rank IN ({ranks}) AND s.step IN ({steps})
    GROUP BY ALL
"""


class NamedRange(NamedTuple):
    """Per late step."""

    name: str
    own_ns: float
    peers_ns: float


def named_range(trace: Trace, standing: Standing, peers: Sequence[int], late_ns: float) -> NamedRange | None:
    """None if no range explains the delay; of ranges within each other, the innermost that does."""
    steps = {step - back for step in standing.late_steps[:_MAX_STEPS] for back in (0, 1) if step >= back}
    if not steps or not trace.has("annotations"):
        return None
    ranks = ", ".join(str(int(rank)) for rank in (standing.rank, *peers))
    totals: dict[str, dict[int, float]] = defaultdict(dict)
    for rank, name, ns in trace.sql(_RANGES.format(ranks=ranks, steps=", ".join(map(str, sorted(steps))))).rows():
        totals[name][rank] = ns
    n_late = min(len(standing.late_steps), _MAX_STEPS)
    ranges = []
    for name, by_rank in totals.items():
        usual = float(np.median([by_rank.get(peer, 0.0) for peer in peers])) / n_late
        late_rank_ns = by_rank.get(standing.rank, 0.0) / n_late
        if late_rank_ns - usual >= _EXPLAINS * late_ns and late_rank_ns >= _TIMES * usual:
            ranges.append(NamedRange(name, late_rank_ns, usual))
    return min(ranges, key=lambda one: (one.own_ns, one.name), default=None)
