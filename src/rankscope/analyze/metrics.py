"""All metrics, and the derived tables that they make."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType

from rankscope.analyze.measured import measured
from rankscope.analyze.metric import EVERYTHING, METRICS, Metric
from rankscope.model.tables import Table, Trace

# Linked traces refer to rows of these: they are about all profiles.
_OF_ALL_PROFILES = ("comm_groups", "comm_matches", "comm_calls", "profile_clocks")

__all__ = ["METRICS", "METRIC_MODULES", "table_makers"]

METRIC_MODULES: tuple[ModuleType, ...] = tuple(
    import_module(f"rankscope.analyze.{name}")
    for name in (
        "host.call_tree",
        "host.gaps",
        "host.launches",
        "host.modules",
        "host.ops",
        "host.waits",
        "device.annotations",
        "device.copies",
        "device.counters",
        "device.idle",
        "device.kernels",
        "device.memory",
        "device.steps",
        "device.time",
        "comm.metrics",
        "comm.stragglers",
        "comm.tables",
        "comm.profile_clocks",
        "path.critical",
        "path.bubbles",
        "whatif.outcomes",
        "comm.late_causes",
        "training.summary",
    )
)


def table_makers() -> dict[str, Callable[[Trace], Table]]:
    """How each derived table is made when it is first asked for."""
    return {metric.table: _maker(metric) for metric in METRICS.values()}


def _maker(metric: Metric) -> Callable[[Trace], Table]:
    if metric.table in _OF_ALL_PROFILES:
        return lambda trace: metric.compute(trace, EVERYTHING)
    return lambda trace: metric.compute(measured(trace), EVERYTHING)
