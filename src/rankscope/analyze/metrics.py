"""All metrics, and the derived tables that they make."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType

from rankscope.analyze.metric import EVERYTHING, METRICS, Metric
from rankscope.model.tables import Table, Trace

__all__ = ["METRICS", "METRIC_MODULES", "table_makers"]

METRIC_MODULES: tuple[ModuleType, ...] = tuple(
    import_module(f"rankscope.analyze.{name}")
    for name in (
        "call_tree",
        "host_gaps",
        "host_launches",
        "host_modules",
        "host_ops",
        "host_waits",
        "device_annotations",
        "device_copies",
        "device_counters",
        "device_idle",
        "device_kernels",
        "device_memory",
        "device_steps",
        "device_time",
        "comm_metrics",
        "comm_stragglers",
        "comm_tables",
        "profile_clocks",
        "path_critical",
        "bubbles",
        "whatif",
        "late_causes",
    )
)


def table_makers() -> dict[str, Callable[[Trace], Table]]:
    """How each derived table is made when it is first asked for."""
    return {metric.table: _maker(metric) for metric in METRICS.values()}


def _maker(metric: Metric) -> Callable[[Trace], Table]:
    return lambda trace: metric.compute(trace, EVERYTHING)
