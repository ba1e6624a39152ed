"""Tables computed from profiler traces when asked for."""

from __future__ import annotations

from rankscope.model.schema import TableSpec

HOST_TABLES: tuple[TableSpec, ...] = ()
