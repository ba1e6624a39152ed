"""What happens to a capture between reading and judging: tables are resolved and matched, and can be derived."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from rankscope.analyze.derived import Maker
from rankscope.analyze.metric import METRICS
from rankscope.errors import RankscopeError
from rankscope.model.border import bug_text, bugs_are_raised
from rankscope.model.finding import Check
from rankscope.model.parts import Entry, by_name, declared_parts, load_module
from rankscope.model.tables import Table, Trace

_ABOUT_CALLS = ("ranks", "collectives", "group_config", "group_status", "group_progress")


class Stage(NamedTuple):
    """A function that gives tables, new or in place of those that were read."""

    what: str  # for people who wait
    needs: tuple[str, ...]  # it runs, and its module is imported, where one of these has rows
    module: str
    function: str


STAGES = (
    Stage("sorting compile logs", ("compile_logs",), "compile.runs", "settle_compile_logs"),
    Stage("resolving process groups", _ABOUT_CALLS, "hangs.groups", "resolve_groups"),
    Stage("aligning clocks", _ABOUT_CALLS, "hangs.clocks", "align_clocks"),
    Stage("matching collectives", _ABOUT_CALLS, "hangs.matching", "match_collectives"),
)


def prepare(trace: Trace, progress: Callable[[int, int, str], None] | None = None) -> None:
    """Matches what belongs together in a capture as it was read, and registers how its derived tables are made."""
    trace.makers = table_makers()
    for done, stage in enumerate(STAGES):
        if not any(map(trace.has, stage.needs)):
            continue
        if progress is not None:
            progress(done, len(STAGES), stage.what)
        run: Callable[[Trace], dict[str, Table]] = getattr(
            load_module(f"rankscope.analyze.{stage.module}"), stage.function
        )
        try:
            trace.tables.update(run(trace))
        except RankscopeError:
            raise
        except Exception as error:  # a bug of ours: rules that stand on this stage find nothing, and the report says so
            if bugs_are_raised():
                raise
            trace.failed.append(Check(stage.what, "failed", bug_text(error)))


def table_makers() -> dict[str, Callable[[Trace], Table]]:
    """How each derived table is made when it is first asked for; metrics are derived tables as well."""
    return by_name(_found_makers())


def _found_makers() -> Iterator[Entry[Callable[[Trace], Table]]]:
    for part in declared_parts("table", "analyze"):
        maker = Maker(part, *part.values, **part.settings)
        yield maker.name, part.module, maker
    for metric in METRICS.values():
        yield metric.table, metric.part.module, metric.make
