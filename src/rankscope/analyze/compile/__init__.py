"""What torch.compile logs show: tables made from payloads on request, and the rules C4xx."""

from __future__ import annotations

from collections.abc import Callable

from rankscope.analyze.derived import makers_in
from rankscope.model.tables import Table, Trace

# Table -> the module beside this file that makes it.
_MAKERS = {
    "compile_events": "events",
    "compile_ledger": "ledger",
    "compile_graphs": "graphs",
    "compile_collectives": "schedules",
    "compile_estimates": "schedules",
    "graph_executions": "schedules",
}


def compile_table_makers() -> dict[str, Callable[[Trace], Table]]:
    """How each derived table is made when it is first asked for."""
    return makers_in(__name__, _MAKERS)
