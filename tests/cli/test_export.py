from __future__ import annotations

import csv
import json
import pickle
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

from rankscope import pipeline
from rankscope.cli import main
from rankscope.model.tables import SCHEMA, Table, Trace
from rankscope.simulate import Fault, JobSpec, Mesh, simulate

pytestmark = pytest.mark.slow

Rows = list[tuple[Any, ...]]
Tables = Iterable[str]
INF = float("inf")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("job")
    simulate(JobSpec(Mesh(dp=2, tp=2, pp=2)), Fault("stuck", rank=5)).write(folder)
    return str(folder)


def read_duckdb(path: Path, tables: Tables) -> list[Rows]:
    with duckdb.connect(str(path), read_only=True) as connection:
        return [connection.execute(f"from {table}").fetchall() for table in tables]


def read_sqlite(path: Path, tables: Tables) -> list[Rows]:
    with closing(sqlite3.connect(path)) as connection:
        return [connection.execute(f"select * from {table}").fetchall() for table in tables]


def read_parquet(path: Path, tables: Tables) -> list[Rows]:
    return [duckdb.execute(f"from '{path / table}.parquet'").fetchall() for table in tables]


def read_csv(path: Path, table: str) -> Rows:
    return duckdb.execute(f"from read_csv('{path / table}.csv', header = true, all_varchar = true)").fetchall()


def read_json(path: Path, tables: Tables) -> list[Rows]:
    written = json.loads(path.read_text())
    return [[tuple(row.values()) for row in written[table]] for table in tables]


def read_pickle(path: Path, tables: Tables) -> list[Rows]:
    written = pickle.loads(path.read_bytes())
    return [list(zip(*written[table].values(), strict=True)) for table in tables]


READERS: dict[str, Callable[[Path, Tables], list[Rows]]] = {
    "out.duckdb": read_duckdb,
    "out.db": read_duckdb,
    "out.sqlite": read_sqlite,
    "out.json": read_json,
    "out.pickle": read_pickle,
    "out.pkl": read_pickle,
    "out.parquet": read_parquet,
    "folder": read_parquet,
}


@pytest.fixture(scope="module")
def trace(job: str) -> Trace:
    return pipeline.load([job])


@pytest.fixture(autouse=True)
def _loaded(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written is compared with what was read, so it is read once."""
    monkeypatch.setattr(pipeline, "load", lambda *_, **__: trace)


def values_of(trace: Trace, table: str) -> Rows:
    """What should be written: what is missing is None."""
    found = trace.table(table)
    missing = {column.name: "" if column.is_text else -1 for column in SCHEMA[table].columns if column.kind != "bool"}
    return [
        tuple(None if name in missing and value == missing[name] else value for name, value in row.items())
        for row in found.rows()
    ]


@pytest.mark.parametrize("name", READERS)
def test_every_format_holds_every_row(
    name: str, job: str, trace: Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    assert main(["export", job, "-o", str(path)]) == 0
    for table, rows in zip(SCHEMA, READERS[name](path, SCHEMA), strict=True):
        assert rows == values_of(trace, table), table
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("Wrote ")
    assert f" to {path} (" in printed.err
    assert printed.err.splitlines()[-1].startswith("Next: ")
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_csv_has_to_be_asked_for(job: str, trace: Trace, tmp_path: Path) -> None:
    assert main(["export", job, "-o", str(tmp_path / "out"), "--to", "csv"]) == 0
    rows = read_csv(tmp_path / "out", "group_members")
    assert rows == [tuple(map(str, row)) for row in values_of(trace, "group_members")]


def test_the_format_alone_names_the_place(
    job: str, trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", job, "--to", "sqlite"]) == 0
    assert read_sqlite(tmp_path / "rankscope.sqlite", ["ranks"]) == [values_of(trace, "ranks")]
    capsys.readouterr()
    assert main(["export", job]) == 2
    assert "add -o OUT, --to FORMAT or both" in capsys.readouterr().err


HOSTILE = [
    "",
    "NULL",
    'it\'s "quoted", with comma',
    "line\nbreak\r\n",
    "\x1b[2J\u202e na\u00efve",
    "nul\x00nul",
    "=1+1",
    "\\",
]


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> Trace:
    """Texts that formats could trip over, times that a float would round, numbers that JSON does not know."""
    values = [0.1, float("nan"), float("inf"), float("-inf"), 5e-324, 1e308, 1 / 3, -0.0]
    rows = [
        {"name": name, "value": value, "time_ns": 2**63 - 1 - position, "step": position if position % 2 else -1}
        for position, (name, value) in enumerate(zip(HOSTILE, values, strict=True))
    ]
    found = Trace(("job",), {"metrics": Table.from_rows("metrics", rows)})
    monkeypatch.setattr(pipeline, "load", lambda *_, **__: found)
    return found


@pytest.mark.parametrize("name", ["out.duckdb", "out.sqlite", "out.json", "out.pickle", "out.parquet"])
def test_hostile_values_come_back_as_they_were(name: str, hostile: Trace, tmp_path: Path) -> None:
    path = tmp_path / name
    assert main(["export", "job", "-o", str(path)]) == 0
    (rows,) = READERS[name](path, ["metrics"])
    expected = hostile.sql("from metrics").rows()
    if name == "out.json":
        expected = [tuple(None if value in (INF, -INF) else value for value in row) for row in expected]
        assert "Infinity" not in path.read_text()
    assert rows == expected
    assert [row[4] for row in rows] == [text or None for text in HOSTILE]


def test_hostile_values_as_csv(hostile: Trace, tmp_path: Path) -> None:
    assert main(["export", "job", "-o", str(tmp_path / "raw"), "--to", "csv", "--raw-csv"]) == 0
    with (tmp_path / "raw" / "metrics.csv").open(newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == HOSTILE
    assert main(["export", "job", "-o", str(tmp_path / "out"), "--to", "csv"]) == 0
    with (tmp_path / "out" / "metrics.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    assert [row["name"] for row in written] == [f"'{text}" if text[:1] in set("=+-@") else text for text in HOSTILE]
    assert [int(row["time_ns"]) for row in written] == hostile.table("metrics").array("time_ns").tolist()
    assert [row["step"] for row in written[:2]] == ["", "1"]


def test_a_pickle_needs_no_class(job: str, tmp_path: Path) -> None:
    class Refusing(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            raise AssertionError(f"{module}.{name}")

    main(["export", job, "-o", str(tmp_path / "out.pickle")])
    with (tmp_path / "out.pickle").open("rb") as file:
        assert Refusing(file).load().keys() == SCHEMA.keys()


def test_json_tells_what_was_written(job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "out.duckdb")
    assert main(["export", job, "-o", path, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["path"], record["format"], record["n_rows"]["ranks"]) == (path, "duckdb", 8)


@pytest.mark.parametrize("name", ["out.duckdb", "out.sqlite", "out.json"])
def test_a_file_is_overwritten_only_by_force(
    name: str, job: str, trace: Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text("mine")
    assert main(["export", job, "-o", str(path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert main(["export", job, "-o", str(path), "--force"]) == 0
    assert READERS[name](path, ["ranks"]) == [values_of(trace, "ranks")]


def test_force_replaces_no_file_of_others(
    job: str, trace: Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "ranks.parquet").write_text("old")
    assert main(["export", job, "-o", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main(["export", job, "-o", str(tmp_path), "--force"]) == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert read_parquet(tmp_path, ["ranks"]) == [values_of(trace, "ranks")]


@pytest.mark.parametrize("kind", ["duckdb", "sqlite", "parquet", "csv", "json", "pickle"])
def test_a_failure_leaves_nothing_behind(
    kind: str, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    path = tmp_path / "out"
    assert main(["export", job, "-o", str(path), "--to", kind]) == 2
    assert f"error: cannot write {path}: No space left on device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("out.xlsx", "unknown file extension"),
        ("nosuch/out.duckdb", "does not exist"),
        ("nosuch/folder", "does not exist"),
        ("folder.duckdb", "is not empty"),
    ],
)
def test_places_that_cannot_be_written(
    name: str, message: str, job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder.duckdb").mkdir()
    (tmp_path / "folder.duckdb" / "x").touch()
    assert main(["export", job, "-o", str(tmp_path / name)]) == 2
    assert message in capsys.readouterr().err
