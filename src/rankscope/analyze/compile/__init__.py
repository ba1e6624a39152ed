"""What the logs of torch.compile tell: tables that are made of payloads when asked for, and the rules C4xx."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from rankscope.model.tables import Table, Trace

# Table -> the module beside this file with a function of the table's name. Imported on use.
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
    return {table: _maker(table, module) for table, module in _MAKERS.items()}


def _maker(table: str, module: str) -> Callable[[Trace], Table]:
    def make(trace: Trace) -> Table:
        made: Table = getattr(import_module(f"{__name__}.{module}"), table)(trace)
        return made

    return make
