"""`rankscope compile --compare OLD NEW` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankscope.cli import main
from rankscope.simulate.compile_log import TRAIN, LogBuilder


@pytest.fixture
def runs(tmp_path: Path) -> tuple[str, str]:
    """The newer run has a graph break that the older one had not."""
    LogBuilder(0).start().metrics().write(tmp_path / "old")
    LogBuilder(0).start().graph_break("0/0", TRAIN, 33, "Tensor.item()").metrics().write(tmp_path / "new")
    return str(tmp_path / "old"), str(tmp_path / "new")


def test_what_got_worse_is_said_and_fails(runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "--compare", *runs]) == 1
    told = capsys.readouterr().out
    assert "Worse: 1 new graph break." in told
    assert "(train.py:33)" in told


def test_what_got_better_does_not_fail(runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "--compare", *reversed(runs)]) == 0
    assert "Better: 1 graph break gone." in capsys.readouterr().out


def test_nothing_is_written_unless_a_file_is_named(
    runs: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["compile", "--compare", *runs])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]


def test_json_is_the_whole_comparison_and_nothing_else(
    runs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", "--compare", *runs, "--json"]) == 1
    changes = json.loads(capsys.readouterr().out)
    assert changes["schema"] == "rankscope.compile-changes/1"
    assert (changes["is_worse"], changes["new"]["n_graph_breaks"]) == (True, 1)
    [change] = changes["graph_breaks"]
    assert (change["kind"], change["file"], change["line"]) == ("new", TRAIN, 33)


def test_the_extension_of_the_output_decides_on_the_format(runs: tuple[str, str], tmp_path: Path) -> None:
    text, data = tmp_path / "changes.txt", tmp_path / "changes.json"
    for path in (text, data):
        assert main(["compile", "--compare", *runs, "-o", str(path)]) == 1
    assert text.read_text().startswith("Compared ")
    assert json.loads(data.read_text())["is_worse"]


def test_an_existing_file_is_not_overwritten_unless_forced(
    runs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "changes.txt"
    kept.write_text("mine")
    assert main(["compile", "--compare", *runs, "-o", str(kept)]) == 2
    assert kept.read_text() == "mine"
    assert "exists already" in capsys.readouterr().err
    assert main(["compile", "--compare", *runs, "-o", str(kept), "--force"]) == 1
    assert kept.read_text() != "mine"


def test_a_third_path_and_a_folder_without_logs_are_refused(
    runs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", "--compare", *runs, runs[0]]) == 2
    assert "is a third" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["compile", "--compare", runs[0], str(tmp_path / "empty")]) == 2
    assert str(tmp_path / "empty") in capsys.readouterr().err
