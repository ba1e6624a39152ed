"""Which pipeline stage each rank is, inferred from which rank sends to which first."""

from __future__ import annotations

import json
import re

import numpy as np

from rankscope.analyze.derived import derived
from rankscope.analyze.path.work import same_process
from rankscope.model.tables import MISSING, Array, Trace

# How frameworks describe the group of a pipeline: pp, pp_forward, mesh_pp, PIPELINE_MODEL_PARALLEL_GROUP.
_PIPELINE = re.compile(r"(^|[^a-z])(pp|pipe|pipeline)([^a-z]|$)", re.IGNORECASE)

# In each step the first exchange between two neighbours goes forward; both ends say so on their own clocks. The other
# end is who made the matching call or, where that is not in the traces, the other member of a group of two.
_DIRECTIONS = f"""
WITH ends AS (
    SELECT c.rank, c.file_id, c.step, c.op, c.start_ns, m.match_id, try_cast(g.ranks AS INTEGER[]) AS members
    FROM comms AS c JOIN comm_calls AS m ON {same_process("c", "m")} AND c.comm_id = m.comm_id
    LEFT JOIN comm_groups AS g USING (group_key)
    WHERE c.op IN ('send', 'recv')
), pairs AS (
    SELECT e.*, p.rank AS peer FROM ends AS e JOIN ends AS p ON e.match_id = p.match_id AND e.rank <> p.rank
    UNION ALL
    SELECT *, CASE WHEN rank = members[1] THEN members[2] ELSE members[1] END FROM ends WHERE len(members) = 2
), firsts AS (
    SELECT rank, peer, arg_min(op, start_ns) AS op FROM pairs GROUP BY rank, peer, file_id, step
)
SELECT least(rank, peer) AS low, greatest(rank, peer) AS high,
       sum(CASE WHEN (op = 'send') = (rank < peer) THEN 1 ELSE -1 END) AS votes
FROM firsts GROUP BY ALL ORDER BY ALL
"""


def stages_of(trace: Trace) -> dict[int, int]:
    """Rank -> stage, for the ranks that are part of a pipeline."""
    return derived(trace, _find_stages)


def stage_column(trace: Trace, ranks: Array) -> Array:
    stages = stages_of(trace)
    return np.array([stages.get(rank, MISSING) for rank in ranks.tolist()], np.int64)


def _find_stages(trace: Trace) -> dict[int, int]:
    hops: dict[int, list[int]] = {}
    for low, high, votes in trace.sql(_DIRECTIONS).rows():
        source, target = (low, high) if votes > 0 else (high, low)
        hops.setdefault(source, []).append(target)
        hops.setdefault(target, [])
    return _levels(hops) or _positions_in_groups(trace)


def _levels(hops: dict[int, list[int]]) -> dict[int, int]:
    """How many hops each rank is from the first stage. Nothing for rings, as of ring attention: they have no first."""
    n_open = dict.fromkeys(hops, 0)
    for targets in hops.values():
        for target in targets:
            n_open[target] += 1
    stage = {rank: 0 for rank, n_before in n_open.items() if n_before == 0}
    ready = list(stage)
    for rank in ready:
        for target in hops[rank]:
            stage[target] = max(stage.get(target, 0), stage[rank] + 1)
            n_open[target] -= 1
            if n_open[target] == 0:
                ready.append(target)
    return stage if len(ready) == len(hops) else {}


def _positions_in_groups(trace: Trace) -> dict[int, int]:
    """If transfers do not show it: the position in the largest group that calls itself a pipeline."""
    rows = trace.sql(
        "SELECT DISTINCT group_desc, group_ranks FROM comms WHERE group_ranks IS NOT NULL AND group_desc IS NOT NULL"
    ).rows()
    lines = []
    for desc, text in rows:
        try:
            members = json.loads(text)
        except ValueError:  # torch shortens the list of a large group with dots
            continue
        if _PIPELINE.search(desc) and len(members) > 1:
            lines.append(members)
    lines.sort(key=len)
    return {rank: index for members in lines for index, rank in enumerate(members)}
