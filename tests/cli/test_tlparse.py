"""`rankscope tlparse`: each option of tlparse's command line, over the report of `rankscope compile`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from demo_captures import demo
from rankscope.cli import main
from rankscope.simulate.compile_log import LogBuilder


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The logs of two runs: the older one of two graphs, the newer one of one."""
    for number, name in enumerate(("older", "newer")):
        log = LogBuilder(None, at=f"2026-11-16 0{number + 6}:18:20")
        for frame in range(2 - number):
            log.start(f"{frame}/0").graph(f"{frame}/0").metrics(f"{frame}/0", function=name)
        path = log.write(tmp_path / "logs", f"dedicated_log_torch_trace_{name}.log")
        os.utime(path, (1000 + number, 1000 + number))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "logs"


def test_latest_takes_the_newest_log_of_the_folder_and_writes_tl_out(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tlparse", str(logs), "--latest"]) == 0
    assert Path("tl_out/-_0_0_0").is_dir()
    assert not Path("tl_out/-_1_0_0").exists()
    assert Path("tl_out/raw.log").read_bytes() == (logs / "dedicated_log_torch_trace_newer.log").read_bytes()
    printed = capsys.readouterr().out
    assert "Report: tl_out/index.html" in printed
    assert "contains your model's code, but no weights" in printed


def test_a_log_by_its_name_and_all_options(logs: Path) -> None:
    log = str(logs / "dedicated_log_torch_trace_older.log")
    options = [
        "--strict",
        "--strict-compile-id",
        "--no-browser",
        "-v",
        "-p",
        "-i",
        "--custom-header-html",
        "<p>Ours</p>",
    ]
    assert main(["tlparse", log, "-o", "my_folder", *options]) == 0
    assert Path("my_folder/-_1_0_0").is_dir()
    assert "<main><p>Ours</p>" in Path("my_folder/index.html").read_text()
    assert main(["tlparse", log, "-o", "my_folder"]) == 2  # it is there already
    assert main(["tlparse", log, "--out", "my_folder", "--overwrite"]) == 0


def test_a_folder_per_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    demo(tmp_path / "logs", "recompiles", 2)
    header = ["--custom-header-html", "<p>Ours</p>"]
    assert main(["tlparse", "logs", "--all-ranks-html", *header]) == 0  # errors that were found are no failure
    assert "<main><p>Ours</p>" in Path("tl_out/index.html").read_text()
    for rank in range(2):
        assert "<main><p>Ours</p>" not in Path(f"tl_out/rank_{rank}/index.html").read_text()


def test_what_excludes_each_other(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tlparse", str(logs), "--latest", "--all-ranks-html"]) == 2
    assert "cannot be combined" in capsys.readouterr().err


def test_a_folder_without_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tlparse", str(tmp_path), "--latest"]) == 2
    assert "no log in" in capsys.readouterr().err


def test_a_browser_opens_only_when_asked_for(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert main(["tlparse", str(logs), "--latest"]) == 0
    assert opened == []
    assert main(["tlparse", str(logs), "--latest", "--overwrite", "--open"]) == 0
    assert [url.rpartition("/")[2] for url in opened] == ["index.html"]
