"""Launches: what they cost the host, how soon their kernels run, and how many wait in a stream's queue."""

from __future__ import annotations

from rankscope.analyze.metric import Selection, metric
from rankscope.model.tables import Table, Trace


def _launches(selection: Selection) -> str:
    """One row per launch. A graph launch has many kernels, and so do the commands of some accelerators."""
    return f"""
        WITH launched AS (
            SELECT file_id, rank, call_id, arg_min(name, start_ns) AS kernel, count(*) AS n_kernels,
                   arg_min(stream, start_ns) AS stream, min(launch_start_ns) AS start_ns,
                   any_value(launch_end_ns - launch_start_ns) AS cpu_ns, sum(duration_ns) AS gpu_ns,
                   greatest(0, min(start_ns) - any_value(launch_end_ns)) AS delay_ns, min(step) AS step
            FROM kernels WHERE call_id IS NOT NULL AND {selection.where("launch_start_ns")}
            GROUP BY file_id, rank, call_id
        )
        SELECT l.*, c.name FROM launched AS l LEFT JOIN runtime_calls AS c USING (file_id, rank, call_id)
    """


@metric("launches", "launch_stats", needs=("kernels", "runtime_calls"))
def launch_stats(trace: Trace, selection: Selection) -> Table:
    """One row per call that launched work on the device: the time of the call, of its kernels, and in between.

    Every call whose work is in the trace counts: kernel launches by the runtime and by the driver (Triton), CUDA and
    HIP, graph launches, copies and fills. delay_ns runs from the end of the call to the start of its first kernel and
    is 0 if the kernel started during the call.
    """
    sql = f"{_launches(selection)} ORDER BY rank, start_ns, file_id, call_id"
    return trace.sql(sql).table("launch_stats")


@metric(
    "launch_summary", "launch_summary", needs=("kernels", "runtime_calls"), settings={"slow_us": 50, "delay_us": 100}
)
def launch_summary(trace: Trace, selection: Selection) -> Table:
    """One row per rank: how many of its launches took longer than their kernels, how many were slow, how many waited.

    n_short counts launches whose kernels took less time than the call, n_slow calls longer than the setting slow_us,
    n_delayed kernels that started more than delay_us after the call. The metric `launches` lists single launches.
    """
    sql = f"""
        SELECT rank, count(*) AS n_launches, sum(n_kernels) AS n_kernels, count(*) FILTER (gpu_ns < cpu_ns) AS n_short,
               count(*) FILTER (cpu_ns > $slow_us * 1000) AS n_slow,
               count(*) FILTER (delay_ns > $delay_us * 1000) AS n_delayed,
               sum(cpu_ns) AS cpu_ns, sum(gpu_ns) AS gpu_ns, median(cpu_ns) AS median_cpu_ns,
               median(gpu_ns) AS median_gpu_ns, median(delay_ns) AS median_delay_ns, max(delay_ns) AS max_delay_ns
        FROM ({_launches(selection)}) GROUP BY rank ORDER BY rank
    """
    limits = {name: float(selection.settings[name]) for name in ("slow_us", "delay_us")}
    return trace.sql(sql, **limits).table("launch_summary")


def _queue_series(selection: Selection) -> str:
    """The length of each stream's queue over time, including what earlier steps had queued."""
    return f"""
        WITH launched AS (
            SELECT file_id, rank, device, stream, call_id, min(launch_start_ns) AS launch_ns,
                   greatest(min(start_ns), min(launch_start_ns)) AS begin_ns, min(step) AS step
            FROM kernels WHERE call_id IS NOT NULL AND {Selection(selection.ranks).where()} GROUP BY ALL
        ), changes AS (
            SELECT file_id, rank, device, stream, launch_ns AS time_ns, 1 AS change, step FROM launched
            UNION ALL SELECT file_id, rank, device, stream, begin_ns, -1, step FROM launched
        ), moments AS (
            SELECT file_id, rank, device, stream, time_ns, sum(change) AS change, min(step) AS step
            FROM changes GROUP BY ALL HAVING sum(change) <> 0
        ), series AS (
            SELECT file_id, rank, device, stream, time_ns, step, sum(change) OVER in_time AS n_queued,
                   coalesce(lead(time_ns) OVER in_time, time_ns) - time_ns AS lasted_ns
            FROM moments WINDOW in_time AS (PARTITION BY file_id, rank, device, stream ORDER BY time_ns)
        )
        SELECT * FROM series WHERE {selection.where("time_ns")}
    """


@metric("queue", "queue_length", needs=("kernels", "runtime_calls"))
def queue_length(trace: Trace, selection: Selection) -> Table:
    """One row per change of a stream's launch queue: how many launches wait in it from then on.

    A launch enters its stream's queue when its call starts and leaves it when its first kernel there starts; a graph
    counts once per stream. Kernels whose launch is not in the trace are left out. If the queue is empty while the
    device is idle, the host is late.
    """
    sql = f"{_queue_series(selection)} ORDER BY rank, file_id, device, stream, time_ns"
    return trace.sql(sql).table("queue_length")


@metric("queue_summary", "queue_summary", needs=("kernels", "runtime_calls"))
def queue_summary(trace: Trace, selection: Selection) -> Table:
    """One row per rank and stream: the mean length of its launch queue over time, and how long it gets.

    The mean weights each length by how long it lasted; median and 95th percentile are over the changes that the metric
    `queue` lists.
    """
    sql = f"""
        SELECT rank, device, stream, count(*) AS n_changes,
               sum(n_queued::DOUBLE * lasted_ns) / nullif(sum(lasted_ns), 0) AS mean_queued,
               median(n_queued) AS median_queued, quantile_cont(n_queued, 0.95) AS p95_queued,
               max(n_queued) AS max_queued
        FROM ({_queue_series(selection)}) GROUP BY rank, device, stream ORDER BY rank, device, stream
    """
    return trace.sql(sql).table("queue_summary")


@metric("blocked", "queue_blocked", needs=("kernels", "runtime_calls"), settings={"max_queue": 1024})
def queue_blocked(trace: Trace, selection: Selection) -> Table:
    """One row per rank and stream: how long its launch queue was full, so that the host waited inside a launch.

    Full means at or above the setting max_queue (CUDA takes about 1024 launches). All streams of all ranks are listed,
    including those that were never full. blocked_pct is the share of the time between the first and the last change of
    any of the rank's queues.
    """
    sql = f"""
        WITH lengths AS (
            SELECT *, n_queued >= $limit AS is_full, lag(n_queued >= $limit) OVER in_time AS was_full
            FROM ({_queue_series(selection)})
            WINDOW in_time AS (PARTITION BY file_id, rank, device, stream ORDER BY time_ns)
        ), times AS (
            SELECT *, sum((is_full AND NOT coalesce(was_full, false))::INTEGER) OVER (
                          PARTITION BY file_id, rank, device, stream ORDER BY time_ns) AS time_full
            FROM lengths
        ), per_time AS (
            SELECT file_id, rank, device, stream, time_full, coalesce(sum(lasted_ns) FILTER (is_full), 0) AS full_ns
            FROM times GROUP BY ALL
        ), windows AS (
            SELECT rank, sum(window_ns) AS window_ns FROM (
                SELECT file_id, rank, max(time_ns) - min(time_ns) AS window_ns FROM lengths GROUP BY ALL) GROUP BY rank
        )
        SELECT rank, device, stream, sum((time_full > 0)::INTEGER) AS n_blocked, sum(full_ns) AS blocked_ns,
               max(full_ns) AS longest_ns, any_value(w.window_ns) AS window_ns,
               100.0 * sum(full_ns) / nullif(any_value(w.window_ns), 0) AS blocked_pct
        FROM per_time JOIN windows AS w USING (rank) GROUP BY rank, device, stream ORDER BY rank, device, stream
    """
    return trace.sql(sql, limit=int(selection.settings["max_queue"])).table("queue_blocked")
