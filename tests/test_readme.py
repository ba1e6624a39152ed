"""What the front page promises; its commands are typed in tests/test_wheel.py, in a fresh environment."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
SHELL_BLOCK = re.compile(r"(?ms)^```sh\n(.*?)^```$")
SITUATIONS = 9
MAX_LINES = 130


def shell_lines(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = (line.partition("  #")[0].strip() for block in SHELL_BLOCK.findall(text) for line in block.splitlines())
    return [line for line in lines if line]


def run_rankscope(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *shlex.split(line)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_readme_is_short_and_leads_by_situation() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    situations = text.partition("| I have... | run |")[2].partition("\n\n")[0]
    assert len(situations.strip().splitlines()) - 1 == SITUATIONS


def test_measured_ratios_are_those_of_the_benchmarks() -> None:
    """A figure in the comparison that the benchmarks no longer have was not measured."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    measured = (ROOT / "bench" / "README.md").read_text(encoding="utf-8")
    table = text.partition("## Compared with other tools")[2].partition("\n\n")[2].partition("\n\n")[0]
    overhead = text.partition("Its overhead is measured")[2].partition("\n- ")[0]
    figures = re.findall(r"\b\d+\.\d+\b", table + overhead)
    assert len(figures) >= 12
    assert [figure for figure in figures if not re.search(rf"\b{re.escape(figure)}(?![\d.]*\d)", measured)] == []


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
