"""Execution traces linked with profiler traces: tables that are made when asked for, and the rules L5xx."""

from __future__ import annotations

from collections.abc import Callable

from rankscope.analyze.derived import makers_in
from rankscope.model.tables import Table, Trace

# Table -> the module below this one that makes it.
_MAKERS = {
    "et_pairs": "pairs",
    "et_links": "durations",
    "et_edges": "edges.table",
    "et_collectives": "collectives.table",
}


def link_table_makers() -> dict[str, Callable[[Trace], Table]]:
    """How each derived table is made when it is first asked for."""
    return makers_in(__name__, _MAKERS)
