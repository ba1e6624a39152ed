"""Metrics: one function each, giving one derived table, which `rankscope metrics`, SQL and export show."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from rankscope.analyze.measured import measured
from rankscope.analyze.registry import OnUse
from rankscope.errors import UsageError, did_you_mean
from rankscope.model.parts import Catalogue, Entry, declared_parts, load_module
from rankscope.model.tables import Table, Trace, concat

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
class Metric(OnUse[MetricFunction]):
    name: str  # on the command line
    table: str  # in the schema
    needs: tuple[str, ...]
    settings: Mapping[str, Parameter] = field(default_factory=dict)  # with their defaults, in the order shown
    # Where rows in the tables that it needs are not enough: a function of its module, and how to record what it wants.
    applies_if: tuple[str, str] = ("", "")
    of_all_profiles: bool = False  # its table also covers what the observer slowed down

    def applies(self, trace: Trace) -> bool:
        """Whether it has rows for a trace that has the tables it needs."""
        function, _ = self.applies_if
        return not function or bool(getattr(load_module(self.part.module), function)(trace))

    def make(self, trace: Trace) -> Table:
        """Its derived table, over the whole capture; without rows where it has nothing to be made from."""
        if not any(map(trace.has, self.needs)):
            return concat(self.table, [])
        return self.compute(trace if self.of_all_profiles else measured(trace))

    def compute(self, trace: Trace, selection: Selection = EVERYTHING) -> Table:
        unknown = [name for name in selection.settings if name not in self.settings]
        if unknown:
            known = ", ".join(f"{name}={value}" for name, value in self.settings.items()) or "none"
            raise UsageError(f"{self.name} has no setting {unknown[0]}", f"its settings: {known}")
        chosen = {**self.settings, **selection.settings}
        return self.function(
            trace, Selection(selection.ranks, selection.steps, selection.since_ns, selection.until_ns, chosen)
        )


def _found_metrics() -> Iterator[Entry[Metric]]:
    for part in declared_parts("metric", "analyze"):
        metric_ = Metric(part, *part.values, **part.settings)
        yield metric_.name, part.module, metric_


METRICS: Catalogue[Metric] = Catalogue(_found_metrics)


def metric(
    name: str,
    table: str,
    *,
    needs: tuple[str, ...],
    settings: Mapping[str, Parameter] | None = None,
    applies_if: tuple[str, str] = ("", ""),
    of_all_profiles: bool = False,
) -> Callable[[MetricFunction], MetricFunction]:
    """Says that a function measures something: `Metric` says what the arguments mean, which are literals.

    Its docstring is the metric's manual: the first line says what a row is.
    """
    return lambda function: function


def find_metric(wanted: str) -> Metric:
    if wanted in METRICS:
        return METRICS[wanted]
    raise UsageError(
        f"no metric is called {wanted!r}", did_you_mean(wanted, METRICS) or "rankscope metrics lists them all"
    )
