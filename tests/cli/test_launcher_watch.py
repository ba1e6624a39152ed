"""What is left when `rankscope record` is killed: the job runs on or ends, and the capture says what happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankscope import load
from rankscope.read.files import Source
from rankscope.read.manifest import read

WAIT_S = 120
JOB = """
import pathlib, sys, time
pathlib.Path(sys.argv[1]).write_text("runs")
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.05)
"""


def wait_for(condition: Callable[[], Any]) -> Any:
    limit = time.monotonic() + WAIT_S
    while not (result := condition()):
        assert time.monotonic() < limit
        time.sleep(0.05)
    return result


def killed_run(folder: Path) -> dict[str, Any] | None:
    try:
        run: dict[str, Any] = json.loads((folder / "manifest.json").read_text())["run"]
    except (OSError, ValueError):
        return None
    return run if run.get("launcher") else None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("ends_job", [False, True])
def test_a_killed_launcher_is_told_and_the_job_does_as_it_was_asked(ends_job: bool, tmp_path: Path) -> None:
    begun, told, capture = tmp_path / "begun", tmp_path / "told", tmp_path / "capture"
    command = [sys.executable, "-m", "rankscope", "record", "-o", str(capture), "--no-diagnose"]
    command += ["--end-with-launcher"] if ends_job else []
    record = subprocess.Popen([*command, "--", sys.executable, "-c", JOB, str(begun), str(told)])
    try:
        wait_for(begun.exists)
        record.send_signal(signal.SIGKILL)
        record.wait(WAIT_S)
        if not ends_job:
            assert killed_run(capture) is None  # it runs on
            told.touch()
        assert wait_for(lambda: killed_run(capture))["exit_code"] is None
    finally:
        told.touch()
        record.kill()


def test_the_capture_says_that_the_launcher_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    content = {"schema": "rankscope.manifest/1", "run": {"id": "a", "launcher": "killed"}, "ranks": [{"rank": 0}]}
    path.write_text(json.dumps(content))
    tables = {table.name: table for table in read(Source(path, str(path), path.stat().st_size, file_id=0))}
    (problem,) = tables["collection_problems"].rows()
    assert "killed" in problem["problem"]
    assert load(path).n_rows("collection_problems") == 1
