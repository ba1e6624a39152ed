"""What has to be recorded for a metric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankscope.analyze.metric import Metric
    from rankscope.model.tables import Trace


def how_to_record(tables: Iterable[str]) -> str:
    """What gives rows in the tables, as their declarations say; follows "record with"."""
    from rankscope.model.tables import SCHEMA

    ways = (SCHEMA[table].missing.record_with or f"data for the table {table}" for table in tables)
    return "; ".join(dict.fromkeys(ways))


def all_metrics() -> Mapping[str, Metric]:
    from rankscope.analyze.metric import METRICS

    return METRICS


def absent_tables(trace: Trace, metric: Metric) -> list[str]:
    """The tables without rows that a metric needs. Derived ones are not computed for that: what they need counts."""
    makers = {other.table: other for other in all_metrics().values()}
    absent: list[str] = []
    for table in metric.needs:
        if table in makers and table not in trace.tables:
            absent += absent_tables(trace, makers[table])
        elif not trace.has(table):
            absent.append(table)
    return list(dict.fromkeys(absent))
