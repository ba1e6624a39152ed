"""The commands that the pages tell people to type are run here, in order, in an empty folder."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.cli import main

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
SHELL_BLOCK = re.compile(r"(?ms)^```sh\n(.*?)^```$")
INSTALLS = {"pip install ."}
# A job that runs, or a server that does not end: see tests/e2e.
NEEDS_A_JOB = ("rankscope record ", "rankscope desync ", "rankscope attach ", "rankscope serve ")


def shell_lines(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = (line.partition("  #")[0].strip() for block in SHELL_BLOCK.findall(text) for line in block.splitlines())
    return [line for line in lines if line]


def run_rankscope(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *shlex.split(line)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_commands_of_the_page_work(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: there are dozens of them, and starting one takes as long as most of them run."""
    monkeypatch.chdir(tmp_path)
    ours = [line for line in shell_lines(page) if line.startswith("rankscope ") and not line.startswith(NEEDS_A_JOB)]
    assert ours
    for line in ours:
        exit_code = main(shlex.split(line)[1:])
        printed = capsys.readouterr()
        assert exit_code in (0, 1), f"{line}\n{printed.err}"
        assert printed.out or printed.err, f"{line} says nothing"


def test_readme_shows_no_command_that_is_not_tested() -> None:
    others = [line for line in shell_lines("README.md") if not line.startswith("rankscope ")]
    assert {line for line in others if not line.startswith("make ")} == INSTALLS


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_knows_the_targets_of_the_pages() -> None:
    pages = ("README.md", "CONTRIBUTING.md")
    targets = {line.split()[1] for page in pages for line in shell_lines(page) if line.startswith("make ")}
    assert {"demo", "test", "check", "docs"} <= targets
    for target in targets:
        finished = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
        assert finished.returncode == 0, finished.stderr


def test_exit_codes_are_as_the_readme_says(tmp_path: Path) -> None:
    run_rankscope("rankscope demo -o hung --fault stuck --ranks 8", tmp_path)
    run_rankscope("rankscope demo -o healthy --fault none --ranks 8", tmp_path)
    lines = ("rankscope healthy", "rankscope hung", "rankscope hung --fail-on never", "rankscope no/such/folder")
    assert [run_rankscope(line, tmp_path).returncode for line in lines] == [0, 1, 0, 2]
