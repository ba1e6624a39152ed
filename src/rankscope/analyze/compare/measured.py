"""Quantities of a capture by rank: means over steps where steps are known, over calls where they are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rankscope.analyze.compare.noise import Samples, standard_error
from rankscope.model.changes import Basis
from rankscope.model.tables import Trace

Key = tuple[str, ...]


def common_basis(old: Trace, new: Trace) -> Basis:
    """Per step is fair between captures of any length; without steps on one side only the mean call is."""
    return "step" if old.has("steps") and new.has("steps") else "call"


def measure(trace: Trace, values: str, keys: Sequence[str], per: Basis, only: Sequence[int] = ()) -> dict[Key, Samples]:
    """Samples by key. `values` is SQL with one row per call: the keys, unit, file_id, step and value.

    Per step a unit without calls did nothing of the kind, and that counts as zero; per call it says nothing.
    `only` are the steps to look at; none: all.
    """
    chosen = f"step IN ({', '.join(map(str, only))})" if only else "step IS NOT NULL"
    steps = f"SELECT rank, step FROM steps WHERE {chosen}"
    sql = _per_step(values, keys, steps) if per == "step" else _per_call(values, keys)
    rows = trace.sql(sql).columns()
    names = list(zip(*(rows[key].tolist() for key in keys), strict=True))
    known = {name: position for position, name in enumerate(dict.fromkeys(names))}
    position = np.array([known[name] for name in names], np.int64)
    units, column = np.unique(rows["unit"], return_inverse=True)
    if per == "step":
        units, n_steps = _steps_of(trace, steps)
        column = np.searchsorted(units, rows["unit"])
    shape = (len(known), len(units))
    total, squares, calls = (_grid(shape, position, column, rows[name]) for name in ("total", "squares", "n_calls"))
    n = np.broadcast_to(n_steps, shape) if per == "step" else calls
    error, mean = standard_error(n, total, squares), total / np.maximum(n, 1)
    count = calls / np.maximum(n, 1) if per == "step" else np.full(shape, np.nan)
    kept = n > 0
    return {
        name: Samples(units[kept[row]], mean[row][kept[row]], error[row][kept[row]], count[row][kept[row]])
        for name, row in known.items()
    }


def _per_step(values: str, keys: Sequence[str], steps: str) -> str:
    named = ", ".join(keys)
    return f"""
        SELECT {named}, unit, sum(n) AS n_calls, sum(spent) AS total, sum(spent * spent) AS squares
        FROM (SELECT {named}, unit, file_id, step, count(*) AS n, sum(value)::DOUBLE AS spent FROM ({values})
              WHERE (unit, step) IN ({steps}) GROUP BY ALL)
        GROUP BY ALL ORDER BY ALL"""


def _per_call(values: str, keys: Sequence[str]) -> str:
    named, value = ", ".join(keys), "value::DOUBLE"
    return f"""
        SELECT {named}, unit, count(value) AS n_calls, sum({value}) AS total, sum({value} * {value}) AS squares
        FROM ({values}) WHERE value IS NOT NULL AND unit IS NOT NULL GROUP BY ALL ORDER BY ALL"""


def _steps_of(trace: Trace, steps: str) -> tuple[Any, Any]:
    sql = f"SELECT rank, count(*) AS n FROM ({steps}) GROUP BY rank ORDER BY rank"
    columns = trace.sql(sql).columns()
    return columns["rank"], columns["n"].astype(np.float64)


def _grid(shape: tuple[int, int], row: Any, column: Any, values: Any) -> Any:
    grid = np.zeros(shape)
    grid[row, column] = np.asarray(values, np.float64)
    return grid
