"""Why a job hangs: what its Flight Recorder dumps tell."""

from __future__ import annotations

from collections.abc import Callable

from rankscope.analyze.derived import makers_in
from rankscope.model.tables import Table, Trace

# Table -> the module beside this file that makes it.
_MAKERS = {"waits": "wait_tables", "standings": "wait_tables"}


def hang_table_makers() -> dict[str, Callable[[Trace], Table]]:
    """How each derived table is made when it is first asked for."""
    return makers_in(__name__, _MAKERS)
