"""Tables as other libraries hold them: numpy, Arrow, pandas, polars. Each is imported on demand.

The values are those of the database: what is missing is a null where the target has one, and text that is no Unicode is
kept as escapes. Times stay int64 nanoseconds. Nothing shares memory that could be changed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from rankscope.errors import RankscopeError
from rankscope.model.tables import MISSING, Array, Table, Text

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


def to_numpy(table: Table) -> dict[str, Array]:
    """numpy has no nulls: a missing integer stays -1, a missing float NaN, a missing text empty."""
    return {
        name: _unicode(column).to_objects() if isinstance(column, Text) else column.copy()
        for name, column in table.columns.items()
    }


def to_arrow(table: Table) -> pyarrow.Table:
    arrow = _imported("pyarrow")

    def convert(column: Array | Text) -> Any:
        if isinstance(column, Text):
            text = _unicode(column)
            codes = arrow.array(text.codes.astype(np.int32), mask=text.equals(""))
            return arrow.DictionaryArray.from_arrays(codes, arrow.array(text.values, "string"))
        return arrow.array(column, mask=_is_missing(column))

    return arrow.table({name: convert(column) for name, column in table.columns.items()})


def to_pandas(table: Table) -> pandas.DataFrame:
    pandas = _imported("pandas")

    def convert(column: Array | Text) -> Any:
        if isinstance(column, Text):
            text = _unicode(column)
            return pandas.Categorical.from_codes(np.where(text.equals(""), -1, text.codes), text.values)
        if column.dtype.kind == "i":
            return pandas.arrays.IntegerArray(column.copy(), _is_missing(column))
        return column.copy()

    return pandas.DataFrame({name: convert(column) for name, column in table.columns.items()}, copy=False)


def to_polars(table: Table) -> polars.DataFrame:
    polars = _imported("polars")

    def convert(name: str, column: Array | Text) -> Any:
        if isinstance(column, Text):
            text = _unicode(column)
            known = [value or None for value in text.values]
            return polars.Series(name, known, dtype=polars.Categorical).gather(text.codes)
        series = polars.Series(name, column)
        return series.set(polars.Series(_is_missing(column)), None) if column.dtype.kind in "if" else series

    return polars.DataFrame([convert(name, column) for name, column in table.columns.items()])


def _is_missing(column: Array) -> Array:
    if column.dtype.kind == "f":
        return np.isnan(column)
    return column == MISSING if column.dtype.kind == "i" else np.zeros(len(column), bool)


def _unicode(text: Text) -> Text:
    """Distinct values that every library takes: a dump may hold lone surrogates, which become escapes."""
    pool: dict[str, int] = {}
    clean = (value.encode("utf-8", "backslashreplace").decode() for value in text.values)
    places = np.fromiter((pool.setdefault(value, len(pool)) for value in clean), np.int32, len(text.values))
    return Text(places[text.codes] if len(places) else np.zeros(0, np.int32), list(pool))


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise RankscopeError(f"{name} is not installed", f"run pip install {name}") from error
