"""The tables as SQL sees them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import duckdb
import pytest

from rankscope import load
from rankscope.model.database import connect, forbid_outside_access, named_tables
from rankscope.model.replicas import shift_replica_ranks
from rankscope.model.tables import SCHEMA, Part, Table, Trace
from rankscope.simulate.profiler import ProfileSpec, simulate_profile

SQL_KINDS = {"text": "VARCHAR", "bool": "BOOLEAN", "int32": "INTEGER", "int64": "BIGINT", "float64": "DOUBLE"}


@pytest.fixture
def trace() -> Trace:
    calls = [
        {"rank": 3, "op": "all_reduce", "is_p2p": False, "created_ns": 1_700_000_000_000_000_000},
        {"rank": 4, "op": "send", "is_p2p": True, "peer": 5, "name": "na\u00efve \ud800"},
    ]
    groups = [{"group_id": 0, "name": "0", "description": "dp", "size": 2}]
    tables = (Table.from_rows("collectives", calls), Table.from_rows("groups", groups))
    return Trace(("job",), {table.name: table for table in tables})


def rows(connection: duckdb.DuckDBPyConnection, sql: str) -> list[Any]:
    return connection.execute(sql).fetchall()


def test_every_table_has_its_columns_and_types_with_and_without_rows(trace: Trace) -> None:
    connection = connect(trace)
    for name, spec in SCHEMA.items():
        found = [(row[0], row[1]) for row in rows(connection, f"DESCRIBE {name}")]
        assert found == [(column.name, SQL_KINDS[column.kind]) for column in spec.columns], name
    assert rows(connection, "SELECT count(*) FROM ranks") == [(0,)]


def test_what_is_missing_is_null(trace: Trace) -> None:
    connection = connect(trace)
    found = rows(connection, "SELECT rank, peer, created_ns, group_name, is_p2p FROM collectives ORDER BY rank")
    assert found == [(3, None, 1_700_000_000_000_000_000, None, False), (4, 5, None, None, True)]


def test_text_that_is_no_unicode_is_kept_as_escapes(trace: Trace) -> None:
    assert rows(connect(trace), "SELECT name FROM collectives WHERE rank = 4") == [("na\u00efve \\ud800",)]


def test_only_the_tables_that_are_needed_are_filled(trace: Trace) -> None:
    connection = connect(trace, only=named_tables("SELECT op FROM Collectives"))
    assert rows(connection, "SELECT count(*) FROM collectives") == [(2,)]
    assert rows(connection, "SELECT count(*) FROM groups") == [(0,)]


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("select * from GROUPS g join matches m using (group_id)", {"groups", "matches"}),
        ('from "collectives"', {"collectives"}),
        ("select 1", set()),
        ("from group_membership", set()),
        ("summarize frames", {"frames"}),
    ],
)
def test_names_in_a_statement(sql: str, tables: set[str]) -> None:
    assert named_tables(sql) == tables


@pytest.mark.parametrize(
    "sql",
    [
        "FROM read_text('{secret}')",
        "FROM '{secret}'",
        "FROM read_csv('{secret}')",
        "FROM glob('{folder}/*')",
        "COPY (SELECT 1) TO '{folder}/new.csv'",
        "ATTACH '{folder}/new.duckdb'",
        "EXPORT DATABASE '{folder}/new'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "FROM 'https://localhost:1/x.parquet'",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "FROM calls_of_this_test",
    ],
)
def test_a_query_reaches_nothing_outside(sql: str, trace: Trace, tmp_path: Path) -> None:
    calls_of_this_test = [{"a": 1}]
    (tmp_path / "secret.csv").write_text("a\n1\n")
    connection = connect(trace)
    forbid_outside_access(connection, trace)
    with pytest.raises(duckdb.Error):
        rows(connection, sql.format(secret=tmp_path / "secret.csv", folder=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]
    assert calls_of_this_test
    assert rows(connection, "SELECT count(*) FROM collectives") == [(2,)]


def test_one_file_can_be_allowed(trace: Trace, tmp_path: Path) -> None:
    connection = connect(trace)
    allowed, other = tmp_path / "o'ne.csv", tmp_path / "other.csv"
    forbid_outside_access(connection, trace, may_write=str(allowed))
    rows(connection, f"COPY (SELECT 1 AS a) TO '{str(allowed).replace(chr(39), chr(39) * 2)}' (FORMAT csv)")
    assert allowed.read_text() == "a\n1\n"
    with pytest.raises(duckdb.PermissionException):
        rows(connection, f"COPY (SELECT 1) TO '{other}'")


def test_replicas_that_count_from_zero_get_global_ranks() -> None:
    config = Table.from_rows(
        "group_config",
        [
            {"rank": 1, "name": "0", "description": "default_pg", "members": "[0,1]"},
            {"rank": 4, "name": "0", "description": "default_pg", "members": "[1,0]"},
            {"rank": 5, "name": "", "description": "", "members": "[0,1]"},
            {"rank": 5, "name": "quorum", "description": "across", "members": "[1,3,5]"},
            {"rank": 5, "name": "odd", "description": "of others", "members": "[1,3]"},
            {"rank": 5, "name": "0", "description": "default_pg", "members": "[]"},
        ],
    )
    shifted = shift_replica_ranks(config, replica_size=2)
    assert shifted.text("members").tolist() == ["[0,1]", "[5,4]", "[4,5]", "[1,3,5]", "[1,3]", "[]"]
    assert config.text("members")[1] == "[1,0]", "the table given stays as it is"


def test_large_tables_are_read_where_they_lie_whatever_the_folder_is_called(tmp_path: Path) -> None:
    folder = tmp_path / "a [b] * ? 'c'"
    folder.mkdir()
    path = folder / "steps.parquet"
    rows_of_part = "SELECT 7 AS step, 'x' AS name, 1 AS tid, 5 AS start_ns, 2 AS duration_ns"
    target = str(path).replace("'", "''")
    duckdb.connect().execute(f"COPY ({rows_of_part}) TO '{target}' (FORMAT parquet)").fetchall()
    trace = Trace(("job",), {}, {"steps": [Part("steps", str(path), 1, file_id=3, rank=9)]})
    assert trace.has("steps")
    connection = connect(trace)
    forbid_outside_access(connection, trace)
    assert rows(connection, "SELECT file_id, rank, step FROM steps") == [(3, 9, 7)]
    assert list(trace.table("steps").rows()) == [
        {"file_id": 3, "rank": 9, "step": 7, "name": "x", "tid": 1, "start_ns": 5, "duration_ns": 2}
    ]


def test_derived_tables_are_made_when_they_are_asked_for(trace: Trace) -> None:
    made: list[str] = []

    def make(_: Trace) -> Table:
        made.append("steps")
        return Table.from_rows("steps", [{"step": 1}])

    trace.makers = {"steps": make}
    connect(trace, only=named_tables("SELECT op FROM collectives"))
    assert made == []
    assert rows(connect(trace, only=named_tables("SELECT * FROM steps")), "SELECT step FROM steps") == [(1,)]
    assert trace.table("steps") is trace.table("steps")
    assert made == ["steps"]


def test_a_small_capture_is_asked_in_memory_and_a_large_one_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate_profile(ProfileSpec(data_parallel=2, n_steps=1, n_layers=1)).write(tmp_path)
    sql = "SELECT * FROM kernels ORDER BY ALL"
    monkeypatch.setattr("rankscope.model.database._ROWS_IN_MEMORY", 0)
    large = load(tmp_path, cache=str(tmp_path / "large"))
    expected = large.sql(sql).rows()
    monkeypatch.undo()
    small = load(tmp_path, cache=str(tmp_path / "small"))
    assert small.sql(sql).rows() == expected
    for trace in (large, small):
        for path in {part.path for part in trace.parts["kernels"]}:  # of small traces, several are in one file
            os.remove(path)
    assert small.sql(sql).rows() == expected
    with pytest.raises(duckdb.IOException):
        large.sql(sql).rows()
