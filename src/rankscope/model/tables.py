"""The data model: every table and column, and the columnar containers that hold them.

Names here are public: they are what `rankscope query` and `rankscope export` show.
What is missing is NULL in SQL. In memory it is -1 among integers (no column has negative values otherwise), NaN among
floats, False, or empty text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rankscope.errors import UsageError, did_you_mean
from rankscope.model.schema import Column, TableSpec
from rankscope.model.schema_calls import CALL_TABLES
from rankscope.model.schema_collected import COLLECTED_TABLES
from rankscope.model.schema_comms import COMM_TABLES
from rankscope.model.schema_compile import COMPILE_TABLES
from rankscope.model.schema_desync import DESYNC_TABLES
from rankscope.model.schema_device import DEVICE_TABLES
from rankscope.model.schema_execution import EXECUTION_TABLES
from rankscope.model.schema_hangs import HANG_TABLES
from rankscope.model.schema_host import HOST_TABLES
from rankscope.model.schema_logs import LOG_TABLES
from rankscope.model.schema_path import PATH_TABLES
from rankscope.model.schema_profiler import PROFILER_TABLES
from rankscope.model.schema_recorder import RECORDER_TABLES

__all__ = ["MISSING", "SCHEMA", "Array", "Column", "Part", "Table", "TableSpec", "Text", "Trace", "concat"]

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    from numpy.typing import NDArray

    from rankscope.model.answer import Answer
    from rankscope.model.finding import Check

    Array: TypeAlias = NDArray[Any]
else:
    Array = np.ndarray  # numpy.typing costs start-up time and says nothing at run time
MISSING = -1

_ALL_TABLES = (
    *RECORDER_TABLES,
    *HANG_TABLES,
    *PROFILER_TABLES,
    *COMM_TABLES,
    *CALL_TABLES,
    *DEVICE_TABLES,
    *HOST_TABLES,
    *PATH_TABLES,
    *COMPILE_TABLES,
    *EXECUTION_TABLES,
    *COLLECTED_TABLES,
    *DESYNC_TABLES,
    *LOG_TABLES,
)
SCHEMA: dict[str, TableSpec] = {table.name: table for table in _ALL_TABLES}


def distinct(numbers: Array) -> Array:
    """The different numbers in order, as np.unique has them. (numpy's own imports all of numpy.ma.)"""
    ordered: Array = np.sort(numbers)
    is_first: Array = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    result: Array = ordered[is_first]
    return result


class Text:
    """A text column: integer codes into a list of distinct values, so that 2 million rows cost 4 bytes each."""

    __slots__ = ("codes", "values")

    def __init__(self, codes: Array, values: Sequence[str]) -> None:
        self.codes = codes
        self.values = list(values)

    @classmethod
    def constant(cls, value: str, n_rows: int) -> Text:
        return cls(np.zeros(n_rows, np.int32), [value])

    @classmethod
    def encode(cls, strings: Iterable[str]) -> Text:
        pool: dict[str, int] = {}
        codes = [pool.setdefault(string, len(pool)) for string in strings]
        return cls(np.asarray(codes, np.int32), list(pool))

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> str:
        return self.values[int(self.codes[row])]

    def take(self, rows: Array) -> Text:
        return Text(self.codes[rows], self.values)

    def to_objects(self) -> Array:
        values = np.empty(len(self.values), dtype=object)
        values[:] = self.values
        return values[self.codes] if len(values) else np.empty(0, dtype=object)

    def equals(self, value: str) -> Array:
        """Which rows hold the value; distinct values are compared once, not row by row."""
        hits = np.fromiter((each == value for each in self.values), bool, len(self.values))
        return hits[self.codes] if len(hits) else np.zeros(len(self.codes), bool)

    def tolist(self) -> list[str]:
        values = self.values
        return [values[code] for code in self.codes.tolist()]


class Table:
    """Named columns of equal length, as declared in SCHEMA."""

    def __init__(self, name: str, columns: Mapping[str, Array | Text]) -> None:
        spec = SCHEMA[name]
        self.name = name
        self.columns: dict[str, Array | Text] = {column.name: columns[column.name] for column in spec.columns}
        lengths = {len(column) for column in self.columns.values()}
        if len(lengths) > 1:
            raise ValueError(f"columns of {name} differ in length: {sorted(lengths)}")
        self.n_rows = lengths.pop() if lengths else 0

    @classmethod
    def from_rows(cls, name: str, rows: Sequence[Mapping[str, Any]]) -> Table:
        """For small tables: one mapping per row, absent values are missing."""
        columns: dict[str, Array | Text] = {}
        for column in SCHEMA[name].columns:
            if column.is_text:
                columns[column.name] = Text.encode(str(row.get(column.name, "")) for row in rows)
            else:
                default: Any = {"bool": False, "float32": np.nan, "float64": np.nan}.get(column.kind, MISSING)
                columns[column.name] = np.array([row.get(column.name, default) for row in rows], dtype=column.kind)
        return cls(name, columns)

    def __len__(self) -> int:
        return self.n_rows

    def array(self, column: str) -> Array:
        values = self.columns[column]
        assert not isinstance(values, Text), f"{self.name}.{column} is text"
        return values

    def text(self, column: str) -> Text:
        values = self.columns[column]
        assert isinstance(values, Text), f"{self.name}.{column} is not text"
        return values

    def take(self, rows: Array) -> Table:
        return Table(
            self.name,
            {
                name: values.take(rows) if isinstance(values, Text) else values[rows]
                for name, values in self.columns.items()
            },
        )

    def replaced(self, columns: Mapping[str, Array | Text]) -> Table:
        return Table(self.name, {**self.columns, **columns})

    def rows(self) -> Iterator[dict[str, Any]]:
        """Row by row, for small tables and tests."""
        lists = {name: values.tolist() for name, values in self.columns.items()}
        for row in range(self.n_rows):
            yield {name: values[row] for name, values in lists.items()}

    def to_numpy(self) -> dict[str, Array]:
        """One array per column, text as objects. A missing integer is -1, a missing float NaN, a missing text empty."""
        from rankscope.model.dataframes import to_numpy

        return to_numpy(self)

    def to_arrow(self) -> pyarrow.Table:
        """What is missing is null, text is dictionary-encoded, times are int64."""
        from rankscope.model.dataframes import to_arrow

        return to_arrow(self)

    def to_pandas(self) -> pandas.DataFrame:
        """Integers are nullable (Int64), text is categorical, times are integers."""
        from rankscope.model.dataframes import to_pandas

        return to_pandas(self)

    def to_polars(self) -> polars.DataFrame:
        """What is missing is null, text is Categorical, times are Int64."""
        from rankscope.model.dataframes import to_polars

        return to_polars(self)

    def __repr__(self) -> str:
        from rankscope.model.finding import count_noun

        return f"Table {self.name}: {count_noun(self.n_rows, 'row')} of {', '.join(self.columns)}"

    def _repr_html_(self) -> str:
        from rankscope.render.notebook import table_html

        return table_html(self)


def concat(name: str, parts: Sequence[Table]) -> Table:
    """Appends tables of one kind, with one common list of values per text column. The parts are consumed."""
    if len(parts) == 1:
        return parts[0]
    spec = SCHEMA[name]
    columns: dict[str, Array | Text] = {}
    for column in spec.columns:
        if column.is_text:
            columns[column.name] = _concat_text([part.text(column.name) for part in parts])
        elif parts:
            columns[column.name] = np.concatenate([part.array(column.name) for part in parts])
        else:
            columns[column.name] = np.empty(0, dtype=column.kind)
        for part in parts:  # frees each column as soon as it is copied: the peak is one column, not one table
            part.columns[column.name] = np.empty(0, dtype=np.int8)
    return Table(name, columns)


def _concat_text(parts: Sequence[Text]) -> Text:
    pool: dict[str, int] = {}
    codes = []
    for part in parts:
        lookup = np.fromiter((pool.setdefault(value, len(pool)) for value in part.values), np.int32, len(part.values))
        codes.append(lookup[part.codes] if len(lookup) else part.codes)
    # Most columns have few distinct values: one byte per row instead of four.
    small = np.min_scalar_type(len(pool))
    return Text(np.concatenate([part.astype(small) for part in codes]) if codes else np.empty(0, small), list(pool))


@dataclass(frozen=True)
class Part:
    """The rows that one traced process gave to one large table: in a Parquet file, without the keys of the process."""

    table: str
    path: str
    n_rows: int
    file_id: int
    rank: int
    process: int | None = None  # its number where processes share the file, whose column `process` has it


@dataclass(frozen=True)
class World:
    """One of several jobs that were alive side by side, each with a default group and ranks from 0."""

    number: int  # as `--capture N` counts
    name: str


@dataclass
class Trace:
    """Everything that was read from one capture: named tables, and the paths it came from."""

    paths: tuple[str, ...]
    tables: dict[str, Table] = field(default_factory=dict)
    parts: dict[str, list[Part]] = field(default_factory=dict)  # the large tables
    makers: dict[str, Callable[[Trace], Table]] = field(default_factory=dict, repr=False)  # of the derived tables
    derived: dict[Any, Any] = field(
        default_factory=dict, repr=False
    )  # what analyses computed from the tables, by maker
    world: World | None = None  # which one it is of, where several worlds were alive side by side
    beside: list[Trace] = field(default_factory=list, repr=False)  # the other worlds
    failed: list[Check] = field(default_factory=list, repr=False)  # stages that ended in a bug of ours

    def has(self, name: str) -> bool:
        """True when the table holds rows."""
        return self.n_rows(name) > 0

    def n_rows(self, name: str) -> int:
        if name in self.parts:
            return sum(part.n_rows for part in self.parts[name])
        return len(self.table(name)) if name in self.tables or name in self.makers else 0

    def table(self, name: str) -> Table:
        """The table, empty when the capture has no such data. A large one is loaded, a derived one computed."""
        if name in self.tables:
            return self.tables[name]
        if name in self.parts:
            return self.sql(f'FROM "{name}"').table(name)
        if name in self.makers:
            self.tables[name] = self.makers[name](self)
            return self.tables[name]
        if name not in SCHEMA:
            raise UsageError(
                f"unknown table {name!r}", did_you_mean(name, SCHEMA) or "run rankscope tables to list them"
            )
        return concat(name, [])

    def sql(self, query: str, /, **parameters: Any) -> Answer:
        """The result of a statement in DuckDB's dialect; parameters are written as $name.

        Derived tables that it names are computed. A parameter that is a dictionary of arrays is a table of that name.
        Only the columns that the statement names are read from large tables, and only its rows are kept.
        """
        from rankscope.model.answer import Answer

        return Answer(self, query, parameters)

    def __repr__(self) -> str:
        from rankscope.model.finding import count_noun

        return f"Trace of {', '.join(self.paths)}: {count_noun(len(self.held_rows()), 'table')} with rows"

    def _repr_html_(self) -> str:
        from rankscope.render.notebook import trace_html

        return trace_html(self)

    def held_rows(self) -> dict[str, int]:
        """Row counts of the tables that are loaded and not empty; derived tables count once they were computed."""
        counts = {name: self.n_rows(name) for name in SCHEMA if name in self.parts or name in self.tables}
        return {name: count for name, count in counts.items() if count}
