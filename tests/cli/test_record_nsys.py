"""`record --nsys` with a stand-in for nsys: reports, exports, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import nsys_stand_in
from cli.running import run_rankscope

EXPORT = next((Path(__file__).parents[1] / "data" / "nsys").glob("*.sqlite"))


def record(folder: Path, *job: str, export: str = str(EXPORT), path: str = "") -> subprocess.CompletedProcess[str]:
    path = path or os.pathsep.join([str(nsys_stand_in.install(folder / "bin")), os.environ["PATH"]])
    environment = {"PATH": path, "STAND_IN_EXPORT": export}
    return run_rankscope("record", "--nsys", "-o", "t", "--no-diagnose", "--", *job, cwd=folder, env=environment)


def script(folder: Path, source: str = "") -> list[str]:
    (folder / "train.py").write_text(f"import os, sys; print(*sys.argv[1:]); {source}")
    return [sys.executable, "train.py", "--lr", "a b"]


def test_the_report_its_export_and_the_exit_code(tmp_path: Path) -> None:
    folder = tmp_path / "100% of it"  # nsys puts something in after a percent sign
    folder.mkdir()
    done = record(folder, *script(folder, "assert os.environ['NSYS_PROFILING_SESSION_ID']; sys.exit(7)"))
    assert (done.returncode, done.stdout) == (7, "--lr a b\n")
    assert (folder / "t" / "nsys_0.nsys-rep").exists()
    assert (folder / "t" / "nsys_0.sqlite").read_bytes() == EXPORT.read_bytes()
    assert "was not exported" not in done.stderr


def test_a_report_without_an_export_is_exported_after_the_job(tmp_path: Path) -> None:
    job = tmp_path / "run.sh"
    job.write_text(f'#!/bin/sh\nSTAND_IN_EXPORT=none exec "{sys.executable}" train.py\n')
    job.chmod(0o755)
    script(tmp_path)
    done = record(tmp_path, str(job))
    assert done.returncode == 0
    assert "Could not export" in done.stderr  # said by nsys while the job ended
    assert (tmp_path / "t" / "nsys_0.sqlite").read_bytes() == EXPORT.read_bytes()
    assert "was not exported" not in done.stderr


def test_an_export_that_fails_is_told_with_the_command_to_run(tmp_path: Path) -> None:
    done = record(tmp_path, *script(tmp_path), export="none")
    assert done.returncode == 0
    report = tmp_path / "t" / "nsys_0"
    assert "nsys_0.nsys-rep was not exported: nsys ended with exit code 1: Could not export" in done.stderr
    assert f"nsys export --type sqlite --output {report}.sqlite {report}.nsys-rep" in done.stderr


@pytest.mark.parametrize("where", ["", "bin"])
def test_no_report_at_all_is_told(where: str, tmp_path: Path) -> None:
    """Without nsys, and with one that fails."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nsys").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "bin" / "nsys").chmod(0o755)
    done = record(tmp_path, *script(tmp_path), path=str(tmp_path / where) if where else "/nowhere")
    told = "nsys wrote no report" if where else "nsys is not on the PATH"
    assert told in done.stderr
    assert done.returncode == (3 if where else 0)
