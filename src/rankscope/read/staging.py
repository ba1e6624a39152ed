"""Where readers of large traces stage their events: one database per process, one connection per file."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rankscope.model.database import spill_folder

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


_MEMORY_LIMIT = "320MiB"  # of a process, however large the trace is; beyond it the database uses the disk


@contextmanager
def staging() -> Iterator[DuckDBPyConnection]:
    """A connection of its own: what is TEMP in it goes with it."""
    connection = _database(os.getpid()).cursor()
    try:
        yield connection
    finally:
        connection.close()


@functools.lru_cache(maxsize=1)
def _database(_pid: int) -> DuckDBPyConnection:
    """Making one takes as long as reading a small trace; after a fork it must be recreated."""
    import duckdb

    config: dict[str, str | bool | int | float | list[str]] = {
        "threads": 1,  # files are read side by side, in processes; threads within one gained nothing
        "memory_limit": _MEMORY_LIMIT,
        "temp_directory": spill_folder(),
    }
    return duckdb.connect(":memory:", config=config)
