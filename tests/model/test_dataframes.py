"""Tables as numpy, Arrow, pandas and polars hold them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rankscope
from rankscope.errors import RankscopeError
from rankscope.model.tables import SCHEMA, Table, Text, Trace
from rankscope.simulate.profiler import ProfileSpec, simulate_profile

LATE_NS = 2**63 - 2  # a float would lose its last digits
HOSTILE = "<b>\x00\x1b\u202e'\" NULL\n"
LIBRARIES = {"to_arrow": "pyarrow", "to_pandas": "pandas", "to_polars": "polars"}

Rows = list[tuple[Any, ...]]


@pytest.fixture
def calls() -> Table:
    rows = [
        {"rank": 3, "op": "all_reduce", "name": HOSTILE, "created_ns": LATE_NS, "is_p2p": False},
        {"rank": 4, "op": "send", "name": "na\u00efve \ud800", "peer": 5, "is_p2p": True},
        {"rank": 0, "op": "send", "name": "na\u00efve \\ud800", "peer": 0, "created_ns": 0, "is_p2p": True},
    ]
    return Table.from_rows("collectives", rows)


@pytest.fixture
def told() -> Table:
    rows = [{"rank": 0, "name": "loss", "value": value, "step": 1} for value in (0.1, np.nan, np.inf)]
    return Table.from_rows("metrics", rows)


def rows_of(converted: Any) -> Rows:
    """As Python values, so that the libraries can be compared; None is what is missing."""
    kind = type(converted).__module__.partition(".")[0]
    if kind == "pandas":
        columns = [converted[name].astype(object).where(converted[name].notna(), None).tolist() for name in converted]
    elif kind == "polars":
        columns = [column.to_list() for column in converted]
    else:
        columns = [column.to_pylist() for column in converted.columns]
    return list(zip(*columns, strict=True))


def in_database(table: Table) -> Rows:
    return Trace((), {table.name: table}).sql(f"from {table.name}").rows()


def test_numpy_keeps_numbers_and_has_text_as_objects(calls: Table, told: Table) -> None:
    arrays = calls.to_numpy()
    assert list(arrays) == [column.name for column in SCHEMA["collectives"].columns]
    assert arrays["created_ns"].tolist() == [LATE_NS, -1, 0]
    assert arrays["peer"].dtype == np.int32
    assert arrays["op"].dtype == object
    assert arrays["op"].tolist() == ["all_reduce", "send", "send"]
    assert arrays["is_p2p"].tolist() == [False, True, True]
    assert np.isnan(told.to_numpy()["value"]).tolist() == [False, True, False]


@pytest.mark.parametrize("method", LIBRARIES)
def test_every_library_holds_what_the_database_holds(method: str, calls: Table, told: Table) -> None:
    pytest.importorskip(LIBRARIES[method])
    for table in (calls, told):
        converted = getattr(table, method)()
        assert rows_of(converted) == in_database(table)
    assert in_database(calls)[0][list(calls.columns).index("created_ns")] == LATE_NS


@pytest.mark.parametrize("method", LIBRARIES)
def test_tables_without_rows_have_their_columns(method: str) -> None:
    pytest.importorskip(LIBRARIES[method])
    converted = getattr(Trace(()).table("kernels"), method)()
    names = converted.column_names if method == "to_arrow" else list(converted.columns)
    assert names == [column.name for column in SCHEMA["kernels"].columns]
    assert len(converted) == 0


def test_arrow_types(calls: Table) -> None:
    arrow = pytest.importorskip("pyarrow")
    schema = calls.to_arrow().schema
    assert schema.field("created_ns").type == arrow.int64()
    assert schema.field("rank").type == arrow.int32()
    assert schema.field("is_p2p").type == arrow.bool_()
    assert schema.field("op").type == arrow.dictionary(arrow.int32(), arrow.string())


def test_pandas_types(calls: Table) -> None:
    pytest.importorskip("pandas")
    frame = calls.to_pandas()
    assert [str(frame[name].dtype) for name in ("created_ns", "rank", "is_p2p", "op")] == [
        "Int64",
        "Int32",
        "bool",
        "category",
    ]


def test_polars_types(calls: Table) -> None:
    polars = pytest.importorskip("polars")
    frame = calls.to_polars()
    assert [frame.schema[name] for name in ("created_ns", "rank", "is_p2p", "op")] == [
        polars.Int64(),
        polars.Int32(),
        polars.Boolean(),
        polars.Categorical(),
    ]


def test_equal_values_that_a_column_has_twice_become_one(calls: Table) -> None:
    pandas = pytest.importorskip("pandas")
    twice = calls.replaced({"op": Text(np.array([0, 1, 2]), ["send", "recv", "send"])})
    frame = twice.to_pandas()
    assert frame["op"].tolist() == ["send", "recv", "send"]
    assert isinstance(frame["op"].dtype, pandas.CategoricalDtype)
    assert list(frame["op"].cat.categories) == ["send", "recv"]


def test_what_is_done_to_arrays_leaves_the_table_alone(calls: Table) -> None:
    arrays = calls.to_numpy()
    arrays["rank"][:] = 1
    assert calls.array("rank").tolist() == [3, 4, 0]


def test_what_is_done_to_a_frame_leaves_the_table_alone(calls: Table) -> None:
    pytest.importorskip("pandas")
    frame = calls.to_pandas()
    frame.loc[:, "rank"] = 1
    frame.loc[:, "is_p2p"] = True
    assert frame["rank"].tolist() == [1, 1, 1]
    assert calls.array("rank").tolist() == [3, 4, 0]
    assert calls.array("is_p2p").tolist() == [False, True, True]


@pytest.mark.parametrize("method", LIBRARIES)
def test_a_library_that_is_not_there_is_named(method: str, calls: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    library = LIBRARIES[method]
    monkeypatch.setitem(sys.modules, library, None)  # makes its import fail
    with pytest.raises(RankscopeError) as caught:
        getattr(calls, method)()
    assert caught.value.message == f"{library} is not installed"
    assert caught.value.hint == f"run pip install {library}"


def test_no_library_is_imported_before_it_is_asked_for() -> None:
    convert = "from rankscope.model.tables import Trace; Trace(()).table('ranks').to_numpy()"
    code = f"import sys; {convert}; print({set(LIBRARIES.values())} & set(sys.modules))"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert finished.stdout == "set()\n"


@pytest.mark.cases
@pytest.mark.parametrize("method", LIBRARIES)
def test_large_tables(method: str, tmp_path: Path) -> None:
    pytest.importorskip(LIBRARIES[method])
    simulate_profile(ProfileSpec(data_parallel=2, n_steps=1, n_layers=1)).write(tmp_path)
    trace = rankscope.load(tmp_path)
    assert "kernels" in trace.parts
    converted = getattr(trace.table("kernels"), method)()
    assert sorted(map(repr, rows_of(converted))) == sorted(map(repr, trace.sql("from kernels").rows()))
