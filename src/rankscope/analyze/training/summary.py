"""What the metrics of a run say at a glance."""

from __future__ import annotations

from rankscope.analyze.metric import Selection, metric
from rankscope.model.tables import Table, Trace


@metric("training", "metric_summary", needs=("metrics",))
def training(trace: Trace, selection: Selection) -> Table:
    """One row per metric of the job and rank: its range, its first and last value, and where it is not finite.

    Covers losses, throughput, memory and other numbers that were recorded while the job trained, or read from its own
    logs. First and last are by step, or by time if there are no steps. The rank is NULL if a log does not contain it.
    """
    return trace.sql(f"""
        SELECT name, rank, count(*) AS n_values, min(step) AS first_step, max(step) AS last_step,
               arg_min(value, (coalesce(step, 0), time_ns)) AS first_value,
               arg_max(value, (coalesce(step, 0), time_ns)) AS last_value,
               min(value) FILTER (isfinite(value)) AS min_value, median(value) FILTER (isfinite(value)) AS median_value,
               max(value) FILTER (isfinite(value)) AS max_value,
               count(*) FILTER (value IS NULL OR NOT isfinite(value)) AS n_not_finite,
               min(step) FILTER (value IS NULL OR NOT isfinite(value)) AS first_not_finite_step
        FROM metrics WHERE {selection.where("time_ns")}
        GROUP BY name, rank ORDER BY name, rank
        """).table("metric_summary")
