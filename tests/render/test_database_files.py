"""A small database in the formats that are text, or can be told as text."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rankscope.model.database import connect
from rankscope.model.tables import Table, Trace
from rankscope.render.database_files import write_database
from render.snapshot import check_snapshot

TABLES = ("ranks", "group_members", "metrics")


@pytest.fixture
def trace() -> Trace:
    metrics = [
        {"rank": 0, "step": 1, "name": "loss", "value": 0.5, "time_ns": 2**63 - 1},
        {"rank": 1, "name": 'it\'s "quoted", <b>\n\x1b[2J\u202e', "value": -2.25},
        {"rank": 2, "name": "", "value": float("nan")},
    ]
    ranks = [{"rank": 0, "host": "NULL", "clock_offset_ns": 0}]
    tables = (Table.from_rows("ranks", ranks), Table.from_rows("metrics", metrics))
    return Trace(("job",), {table.name: table for table in tables})


def write(trace: Trace, path: Path, chosen: str) -> list[tuple[int, int, str]]:
    told: list[tuple[int, int, str]] = []
    counts = write_database(
        connect(trace), {name: name for name in TABLES}, str(path), chosen, lambda *step: told.append(step)
    )
    assert counts == {"ranks": 1, "group_members": 0, "metrics": 3}
    return told


def test_json(trace: Trace, tmp_path: Path) -> None:
    told = write(trace, tmp_path / "out.json", "json")
    assert told == [(0, 3, "writing ranks"), (1, 3, "writing group_members"), (2, 3, "writing metrics")]
    check_snapshot("database.json", (tmp_path / "out.json").read_text("utf-8"))


def test_csv(trace: Trace, tmp_path: Path) -> None:
    write(trace, tmp_path / "out", "csv")
    written = [f"{name}.csv\n{(tmp_path / 'out' / f'{name}.csv').read_text('utf-8')}" for name in TABLES]
    check_snapshot("database_csv.txt", "\n".join(written))


def test_sqlite(trace: Trace, tmp_path: Path) -> None:
    write(trace, tmp_path / "out.sqlite", "sqlite")
    with closing(sqlite3.connect(tmp_path / "out.sqlite")) as connection:
        check_snapshot("database_sqlite.sql", "\n".join(connection.iterdump()) + "\n")
