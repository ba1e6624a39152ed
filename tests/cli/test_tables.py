from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankscope.cli import main
from rankscope.model.tables import SCHEMA
from rankscope.simulate import JobSpec, Mesh, simulate
from rankscope.simulate.compile_job import simulate_compiling
from rankscope.simulate.profiler import ProfileSpec, simulate_profile


def test_every_table_and_column_is_listed_with_its_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables"]) == 0
    printed = capsys.readouterr().out
    for spec in SCHEMA.values():
        assert f"\n{spec.name}: {spec.doc}\n" in f"\n{printed}"
        for column in spec.columns:
            assert f"    {column.name} " in printed
            assert f" {column.doc}\n" in printed
    assert printed.splitlines()[-1] == 'Next: rankscope query PATH "from collectives limit 10"'


def test_rows_are_counted_when_there_are_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(JobSpec(Mesh(dp=2, tp=2))).write(tmp_path)
    assert main(["tables", str(tmp_path), "--json"]) == 0
    counts = {record["table"]: record["n_rows"] for record in json.loads(capsys.readouterr().out)}
    assert counts.keys() == SCHEMA.keys()
    assert (counts["ranks"], counts["files"]) == (4, 4)
    main(["tables", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "ranks (4 rows): " in printed
    assert f"collectives ({counts['collectives']:,} rows): " in printed


def test_some_tables_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(JobSpec(Mesh(dp=2, tp=2))).write(tmp_path)
    assert main(["tables", str(tmp_path), "--table", "metrics", "--table", "ranks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines if line and line[0] != " "] == [
        "metrics (0 rows)",
        "ranks (4 rows)",
        "Next",
    ]
    assert lines[-1] == f'Next: rankscope query {tmp_path} "from ranks limit 10"'


def test_the_next_command_names_a_table_that_has_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate_profile(ProfileSpec(data_parallel=2, n_steps=1, n_layers=1)).write(tmp_path / "profiles")
    (tmp_path / "logs").mkdir()
    simulate_compiling(2, "graph-break").write(tmp_path / "logs")
    for folder, table in (("profiles", "kernels"), ("logs", "compilations")):
        assert main(["tables", str(tmp_path / folder)]) == 0
        shown = capsys.readouterr().out
        assert "collectives (0 rows)" in shown
        assert shown.splitlines()[-1] == f'Next: rankscope query {tmp_path / folder} "from {table} limit 10"'


def test_a_table_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables", "--table", "metric"]) == 2
    printed = capsys.readouterr().err
    assert "no table is called 'metric'" in printed
    assert "did you mean metrics?" in printed


def test_large_tables_are_counted_without_being_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("loaded")

    simulate_profile(ProfileSpec(data_parallel=2, n_steps=1, n_layers=1)).write(tmp_path)
    monkeypatch.setattr("rankscope.model.tables.Trace.sql", refuse)
    assert main(["tables", str(tmp_path), "--table", "kernels", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["n_rows"] > 0
