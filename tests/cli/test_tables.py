from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankscope.cli import main
from rankscope.model.tables import SCHEMA
from rankscope.simulate import JobSpec, Mesh, simulate


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
