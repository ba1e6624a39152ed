"""Arrows between the ranks of one collective: from each to the next, in the order in which they came."""

from __future__ import annotations

from rankscope.model.tables import Trace
from rankscope.render.timeline.drawing import Cut
from rankscope.render.timeline.sources import RECORDED_START, recorded_end

# The ranks whose collectives a Flight Recorder tells: theirs are not drawn once more from a profiler.
_RECORDED = "CREATE OR REPLACE TEMP TABLE timeline_recorded AS SELECT DISTINCT rank FROM collectives ORDER BY rank"
# At equal times viewers take the longer span first, then the one that comes first in the file.
_CHAINS = """
CREATE OR REPLACE TEMP TABLE timeline_chains AS
WITH calls AS (
    SELECT 0 AS kind, e.match_id, e.file_id, e.rank, e.record_id AS number, {start} AS start_ns, {end} AS end_ns
    FROM collectives AS e LEFT JOIN timeline_clocks AS o ON o.rank = e.rank WHERE e.match_id IS NOT NULL
    UNION ALL
    SELECT 1, e.match_id, e.file_id, e.rank, e.comm_id, e.start_ns, e.end_ns FROM comm_calls AS e
    WHERE e.match_id IS NOT NULL AND e.rank IS NOT NULL AND e.rank NOT IN (SELECT rank FROM timeline_recorded)
), drawn AS (
    SELECT * REPLACE (greatest(start_ns, {base_ns}) AS start_ns, greatest(end_ns, start_ns) AS end_ns) FROM calls AS e
    WHERE {condition}
), placed AS (
    SELECT *, row_number() OVER (PARTITION BY kind, match_id ORDER BY start_ns, end_ns DESC, rank, number) AS place,
           count(*) OVER (PARTITION BY kind, match_id) AS n
    FROM drawn
)
SELECT file_id, rank, number, dense_rank() OVER (ORDER BY kind, match_id) AS flow_id,
       printf('"bind_id":"0x%x"', flow_id) || CASE WHEN place < n THEN ',"flow_out":true' ELSE '' END
       || CASE WHEN place > 1 THEN ',"flow_in":true' ELSE '' END AS flow
FROM placed WHERE n > 1
"""


def chain_collectives(trace: Trace, cut: Cut) -> tuple[int, int]:
    """Makes timeline_recorded and timeline_chains; how many chains there are, and how many arrows they have."""
    condition = " AND ".join(
        (cut.of_ranks(), cut.of_time("start_ns", "greatest(end_ns, start_ns)"), cut.of_plausible_time())
    )
    axis = cut.axis
    trace.sql(_RECORDED)
    trace.sql(_CHAINS.format(start=RECORDED_START, end=recorded_end(axis), base_ns=axis.base_ns, condition=condition))
    [(n_chains, n_ends)] = trace.sql("SELECT coalesce(max(flow_id), 0), count(*) FROM timeline_chains").rows()
    return n_chains, n_ends - n_chains
