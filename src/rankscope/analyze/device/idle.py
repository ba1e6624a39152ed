"""Why streams have nothing to run."""

from __future__ import annotations

from rankscope.analyze.device.events import window_number
from rankscope.analyze.metric import Selection, metric
from rankscope.model.tables import Table, Trace


@metric("idle", "idle_breakdown", needs=("kernels",), settings={"gap_us": 30})
def idle(trace: Trace, selection: Selection) -> Table:
    """One row per stream and cause of its idle time.

    A gap is the time between the end of one kernel on a stream and the start of the next. It is host_wait if the next
    kernel was launched only after that end: the host was late. Otherwise it is kernel_wait if it is shorter than
    `gap_us` microseconds: the time the device needs between two kernels. Otherwise it is other: the stream waited for
    an event of another stream, or the device was busy elsewhere. If a launch is not in the trace, host_wait cannot be
    detected. An idle stream does not mean an idle device: see `temporal`.
    """
    shortest_ns = float(selection.settings["gap_us"]) * 1000
    return trace.sql(f"""
        WITH follows AS (
            SELECT file_id, rank, device, stream, start_ns, launch_start_ns,
                   max(start_ns + duration_ns) OVER (
                       PARTITION BY file_id, rank, device, stream, {window_number(selection)}
                       ORDER BY start_ns, kernel_id
                       ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS previous_end_ns
            FROM kernels WHERE {selection.where()}
        ), gaps AS (
            SELECT *, start_ns - previous_end_ns AS gap_ns,
                   CASE WHEN launch_start_ns > previous_end_ns THEN 'host_wait'
                        WHEN gap_ns < {shortest_ns} THEN 'kernel_wait' ELSE 'other' END AS category
            FROM follows WHERE start_ns > previous_end_ns
        )
        SELECT file_id, rank, device, stream, category, count(*) AS n_gaps, sum(gap_ns) AS idle_ns,
               min(gap_ns) AS min_ns, max(gap_ns) AS max_ns, round(avg(gap_ns)) AS mean_ns,
               100.0 * sum(gap_ns) / sum(sum(gap_ns)) OVER (PARTITION BY file_id, rank, device, stream) AS share_pct
        FROM gaps GROUP BY file_id, rank, device, stream, category
        ORDER BY file_id, rank, device, stream, idle_ns DESC
        """).table("idle_breakdown")
