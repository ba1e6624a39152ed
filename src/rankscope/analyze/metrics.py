"""All metrics, and the derived tables that they make."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from rankscope.analyze.metric import EVERYTHING, METRICS, Metric
from rankscope.model.tables import Table, Trace

METRIC_MODULES: tuple[ModuleType, ...] = ()


def table_makers() -> dict[str, Callable[[Trace], Table]]:
    """How each derived table is made when it is first asked for."""
    return {metric.table: _maker(metric) for metric in METRICS.values()}


def _maker(metric: Metric) -> Callable[[Trace], Table]:
    return lambda trace: metric.compute(trace, EVERYTHING)
