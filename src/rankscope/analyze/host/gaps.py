"""Times when a device ran nothing, and whether the host caused them."""

from __future__ import annotations

from rankscope.analyze.device.events import DATA_LOADER
from rankscope.analyze.metric import Selection, metric
from rankscope.model.sql import quote_text
from rankscope.model.tables import Table, Trace

# Device and host clock agree to within some microseconds: a wait may seem to end before what it waited for.
_CLOCK_SLACK_NS = 20_000
# Between two launches that follow each other without pause: an eager operator takes 5 to 100 us of Python and dispatch,
# a heavy one under the profiler some hundreds. Who does not launch for longer is doing something else.
_LAUNCH_PACE_NS = 500_000


@metric("gaps", "idle_gaps", needs=("kernels",))
def idle_gaps(trace: Trace, selection: Selection) -> Table:
    """One row per time in which a device ran nothing on any of its streams, with what the next kernel waited for.

    A gap runs from the end of all earlier work to the start of the next kernel. Its cause is `device` if that kernel
    had been launched before the gap, or if the delay after its launch is longer than the wait for the launch; else
    `data` if the launching thread spent at least half of the gap in a data loader; `sync` if that thread was waiting
    for the device (host_waits) when it ran out of work, for at least half as long as the gap lasted: without the wait
    it would have launched that much earlier; `launch` if it was launching without a pause, each launch taking longer
    than the previous kernel ran; and `host` if it did something else. It is `unknown` if the launch is not in the
    trace.
    """
    sql = f"""
        WITH work AS (
            SELECT file_id, rank, device, kernel_id, start_ns AS next_ns, step, launch_tid,
                   launch_start_ns, launch_end_ns,
                   max(start_ns + duration_ns) OVER (PARTITION BY file_id, rank, device ORDER BY start_ns, kernel_id
                       ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS start_ns,
                   max(launch_end_ns) OVER (PARTITION BY file_id, rank, launch_tid ORDER BY launch_start_ns
                       RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS last_launch_ns
            FROM kernels WHERE {Selection(selection.ranks).where()}
        ), gaps AS (
            SELECT *, next_ns - start_ns AS duration_ns,
                   CASE WHEN launch_start_ns IS NOT NULL THEN greatest(0, launch_start_ns - start_ns) END AS late_ns,
                   CASE WHEN launch_end_ns IS NOT NULL
                        THEN greatest(0, next_ns - greatest(launch_end_ns, start_ns)) END AS delay_ns
            FROM work WHERE next_ns > start_ns AND {selection.where()}
        ), loading AS (
            SELECT file_id, rank, tid, start_ns, start_ns + duration_ns AS end_ns FROM annotations
            WHERE kind = 'host' AND regexp_matches(name, {quote_text(DATA_LOADER)}, 'i')
            UNION ALL SELECT file_id, rank, tid, start_ns, start_ns + duration_ns FROM ops
            WHERE regexp_matches(name, {quote_text(DATA_LOADER)}, 'i')
        ), loads AS (  -- the outermost ones
            SELECT * FROM loading QUALIFY start_ns >= coalesce(max(end_ns) OVER (PARTITION BY file_id, rank, tid
                ORDER BY start_ns, end_ns DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)
        ), waited AS (
            SELECT g.*, w.call_id AS wait_id, w.duration_ns AS wait_ns, w.start_ns + w.duration_ns AS wait_end_ns,
                   CASE WHEN l.end_ns IS NOT NULL
                        THEN least(l.end_ns, g.launch_start_ns) - greatest(l.start_ns, g.start_ns) END AS loading_ns
            FROM gaps AS g
            ASOF LEFT JOIN host_waits AS w
                ON w.file_id = g.file_id AND w.rank = g.rank AND w.tid = g.launch_tid
                AND g.start_ns + {_CLOCK_SLACK_NS} >= w.start_ns
            ASOF LEFT JOIN loads AS l
                ON l.file_id = g.file_id AND l.rank = g.rank AND l.tid = g.launch_tid
                AND g.launch_start_ns >= l.start_ns
        )
        SELECT *, CASE WHEN launch_start_ns IS NULL THEN 'unknown'
                       WHEN late_ns = 0 OR delay_ns > late_ns THEN 'device'
                       WHEN loading_ns >= duration_ns / 2 THEN 'data'
                       WHEN wait_end_ns BETWEEN start_ns - {_CLOCK_SLACK_NS} AND launch_start_ns
                            AND wait_ns >= duration_ns / 2 THEN 'sync'
                       WHEN launch_start_ns - last_launch_ns <= {_LAUNCH_PACE_NS} THEN 'launch'
                       ELSE 'host' END AS cause,
               CASE WHEN cause = 'sync' THEN wait_id END AS wait_call_id
        FROM waited ORDER BY rank, start_ns, file_id, device
    """
    return trace.sql(sql).table("idle_gaps")
