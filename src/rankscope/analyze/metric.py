"""Metrics: one function each, giving one derived table, which `rankscope metrics`, SQL and export show."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from rankscope.errors import UsageError, did_you_mean
from rankscope.model.tables import Table, Trace

Parameter = int | float | str


@dataclass(frozen=True)
class Selection:
    """Which part of the capture a metric looks at, and its settings."""

    ranks: Collection[int] | None = None
    steps: Collection[int] | None = None
    since_ns: int | None = None  # only what starts at or after
    until_ns: int | None = None  # only what starts before
    settings: Mapping[str, Parameter] = field(default_factory=dict)

    def where(self, time: str = "start_ns", alias: str = "") -> str:
        """The conditions on rank, step and start, for the WHERE of a query; TRUE when there are none."""
        prefix = f"{alias}." if alias else ""
        conditions = []
        for column, wanted in (("rank", self.ranks), ("step", self.steps)):
            if wanted is not None:
                conditions.append(f"{prefix}{column} IN ({', '.join(str(int(number)) for number in wanted) or 'NULL'})")
        if self.since_ns is not None:
            conditions.append(f"{prefix}{time} >= {int(self.since_ns)}")
        if self.until_ns is not None:
            conditions.append(f"{prefix}{time} < {int(self.until_ns)}")
        return " AND ".join(conditions) or "TRUE"


EVERYTHING = Selection()
MetricFunction = Callable[[Trace, Selection], Table]


@dataclass(frozen=True)
class Metric:
    name: str  # on the command line
    table: str  # in the schema
    needs: tuple[str, ...]
    settings: Mapping[str, Parameter]  # with their defaults, in the order in which they are shown
    doc: str
    function: MetricFunction
    has_rows: Callable[[Trace], bool] | None = None  # where rows in the tables that it needs are not enough

    @property
    def summary(self) -> str:
        return self.doc.partition("\n")[0]

    def compute(self, trace: Trace, selection: Selection = EVERYTHING) -> Table:
        unknown = [name for name in selection.settings if name not in self.settings]
        if unknown:
            known = ", ".join(f"{name}={value}" for name, value in self.settings.items()) or "none"
            raise UsageError(f"{self.name} has no setting {unknown[0]}", f"its settings: {known}")
        chosen = {**self.settings, **selection.settings}
        return self.function(
            trace, Selection(selection.ranks, selection.steps, selection.since_ns, selection.until_ns, chosen)
        )


METRICS: dict[str, Metric] = {}


def metric(
    name: str,
    table: str,
    *,
    needs: tuple[str, ...],
    settings: Mapping[str, Parameter] | None = None,
    has_rows: Callable[[Trace], bool] | None = None,
) -> Callable[[MetricFunction], MetricFunction]:
    """Registers a function whose docstring is the metric's manual: its first line says what a row is."""

    def register(function: MetricFunction) -> MetricFunction:
        if name in METRICS:
            raise ValueError(f"metric {name} is defined twice")
        text = inspect.getdoc(function) or ""
        METRICS[name] = Metric(name, table, needs, dict(settings or {}), text, function, has_rows)
        return function

    return register


def find_metric(wanted: str) -> Metric:
    if wanted in METRICS:
        return METRICS[wanted]
    raise UsageError(
        f"no metric is called {wanted!r}", did_you_mean(wanted, METRICS) or "rankscope metrics lists them all"
    )
