"""Captures to read from many places, and everything that was read from one, in a form that can be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankscope.model.sql import quote_name
from rankscope.model.tables import SCHEMA, Trace
from rankscope.simulate.profiler import ProfileSpec, simulate_profile

PLACE_COLUMNS = {"files": ("path",)}  # what differs with the place, and with nothing else


def write_traces(folder: Path, n_ranks: int = 2, *, gzip: bool = False) -> list[Path]:
    spec = ProfileSpec(data_parallel=n_ranks, n_steps=1, n_layers=1, n_microbatches=1)
    return simulate_profile(spec).write(folder, gzip=gzip)


def contents(trace: Trace) -> dict[str, list[Any]]:
    """All rows that were read: of the small tables and of the parts."""
    tables = {}
    for spec in SCHEMA.values():
        if spec.storage == "derived" or not (spec.name in trace.tables or spec.name in trace.parts):
            continue
        names = [column.name for column in spec.columns if column.name not in PLACE_COLUMNS.get(spec.name, ())]
        columns = ", ".join(map(quote_name, names))
        tables[spec.name] = trace.sql(f"SELECT {columns} FROM {spec.name} ORDER BY ALL").rows()
    assert tables["kernels"]
    return tables
