"""The one axis of time: each rank's offset with its error, and from when to when the capture goes."""

from __future__ import annotations

from typing import Any, NamedTuple

from rankscope.model.clock import MIN_SHARED, POLL_NS
from rankscope.model.tables import Trace
from rankscope.render.timeline.chrome import JOIN_CLOCK, common_clock

# The derived tables that a timeline needs.
DERIVED = ("profile_clocks", "comm_groups", "comm_matches", "comm_calls", "compile_events")
UNKNOWN_RANK = 1 << 24  # the process of a file that tells no rank is this plus the number of the file
LATEST_NS = 4 * 10**18  # sums of two times within this stay within 64 bits
_PLAUSIBLE_NS = 366 * 86_400 * 10**9  # what is further from the middle of the capture has a broken clock

# Ends of shared collectives tell a profiler's clock far better than they tell that of a recorder, which polls: where
# both are known, the profiler's holds for all sources of the rank. Both are relative to a median clock, which need not
# be the same one: `shift` is what lies between them.
_CLOCKS = f"""
CREATE OR REPLACE TEMP TABLE timeline_clocks AS
WITH told AS (
    SELECT rank, host FROM ranks UNION ALL SELECT rank, host FROM profiles UNION ALL SELECT rank, host FROM manifests
    UNION ALL SELECT rank, NULL FROM compile_logs UNION ALL SELECT DISTINCT rank, NULL FROM metrics
    UNION ALL SELECT DISTINCT rank, NULL FROM thread_stacks
), known AS (
    SELECT rank, max(host) AS host, count(DISTINCT coalesce(max(host), '#' || rank)) OVER () AS n_clocks
    FROM told WHERE rank IS NOT NULL GROUP BY rank
), profiled AS (
    SELECT rank, arg_min(offset_ns, file_id) AS offset_ns, max(error_ns) AS error_ns, bool_and(is_aligned) AS is_aligned
    FROM profile_clocks GROUP BY rank
), shared AS (
    SELECT c.rank FROM collectives AS c JOIN matches AS m USING (match_id)
    WHERE NOT m.is_p2p AND m.n_done > 1 AND c.completed_ns > 0 GROUP BY c.rank HAVING count(*) >= {MIN_SHARED}
), other AS (
    SELECT k.rank, coalesce(r.clock_offset_ns, m.clock_offset_ns) AS offset_ns,
           coalesce(r.clock_error_ns, m.clock_error_ns, CASE WHEN s.rank IS NOT NULL THEN {POLL_NS} END) AS error_ns
    FROM known AS k LEFT JOIN ranks AS r USING (rank) LEFT JOIN shared AS s USING (rank)
    LEFT JOIN (SELECT rank, any_value(clock_offset_ns) AS clock_offset_ns, any_value(clock_error_ns) AS clock_error_ns
               FROM manifests GROUP BY rank) AS m USING (rank)
), shift AS (
    SELECT coalesce(median(p.offset_ns - o.offset_ns), 0)::BIGINT AS shift_ns
    FROM profiled AS p JOIN other AS o USING (rank) WHERE p.is_aligned
)
SELECT k.rank, k.host,
       CASE WHEN p.is_aligned THEN p.offset_ns ELSE coalesce(o.offset_ns, 0) + shift_ns END AS offset_ns,
       CASE WHEN p.is_aligned THEN p.error_ns WHEN k.n_clocks = 1 THEN 0 ELSE o.error_ns END AS error_ns,
       k.n_clocks = 1 OR (coalesce(p.is_aligned, true) AND (p.is_aligned OR o.error_ns IS NOT NULL)) AS is_aligned
FROM known AS k LEFT JOIN profiled AS p USING (rank) LEFT JOIN other AS o USING (rank) CROSS JOIN shift
ORDER BY k.rank
"""
_CREATE_MOMENTS = f"""
CREATE OR REPLACE TEMP TABLE timeline_moments AS
WITH own AS (
    SELECT file_id, rank, created_ns AS first_ns, greatest(created_ns, started_ns, completed_ns) AS last_ns
    FROM collectives
    UNION ALL SELECT file_id, rank, written_ns, written_ns FROM ranks
    UNION ALL SELECT file_id, rank, first_ns, last_ns FROM compile_logs
    UNION ALL SELECT file_id, rank, time_ns, time_ns FROM metrics
    UNION ALL SELECT file_id, rank, time_ns, time_ns FROM thread_stacks
)
SELECT file_id, least(first_ns, {LATEST_NS}) - coalesce(o.offset_ns, 0) AS first_ns,
       least(coalesce(last_ns, first_ns), {LATEST_NS}) - coalesce(o.offset_ns, 0) AS last_ns
FROM own LEFT JOIN timeline_clocks AS o USING (rank) WHERE first_ns > 0
UNION ALL
SELECT e.file_id, {common_clock(f"least(e.start_ns, {LATEST_NS})")}, {common_clock(f"least(e.end_ns, {LATEST_NS})")}
FROM profiles AS e {JOIN_CLOCK} WHERE e.start_ns > 0
"""
_MIDDLE = """
SELECT coalesce(quantile_disc(middle, 0.5), 0)::BIGINT
FROM (SELECT quantile_disc(first_ns, 0.5) AS middle FROM timeline_moments GROUP BY file_id)
"""


class Axis(NamedTuple):
    """Nanoseconds on the common clock: where the capture begins and ends, and the limits of plausible times."""

    base_ns: int
    end_ns: int
    low_ns: int
    high_ns: int


def prepare_axis(trace: Trace) -> Axis:
    """Leaves timeline_clocks in the trace's database."""
    trace.sql(_CLOCKS)
    trace.sql(_CREATE_MOMENTS)
    [(middle,)] = trace.sql(_MIDDLE).rows()
    low, high = middle - _PLAUSIBLE_NS, middle + _PLAUSIBLE_NS
    bounds = (
        f"SELECT min(first_ns) FILTER (first_ns BETWEEN {low} AND {high}), "
        f"max(last_ns) FILTER (last_ns BETWEEN {low} AND {high}) FROM timeline_moments"
    )
    [(base, end)] = trace.sql(bounds).rows()
    trace.sql("DROP TABLE timeline_moments")
    return Axis(base or 0, end or 0, low, high)


def rank_clocks(trace: Trace) -> dict[int, dict[str, Any]]:
    """Per rank: its host, what its times were moved by, how far off that may be, and whether that is known."""
    rows = trace.sql("FROM timeline_clocks").rows()
    return {
        rank: {"host": host or "", "offset_ns": offset, "error_ns": error, "is_aligned": bool(is_aligned)}
        for rank, host, offset, error, is_aligned in rows
    }
