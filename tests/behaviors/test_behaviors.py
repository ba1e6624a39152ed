"""Every command of docs/coverage.md is run, and shows what the page says that it shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nsys_stand_in
from behaviors.row import Behavior, pages
from behaviors.scenes import Stage
from cli.running import clean_environment
from rankscope.cli import main

pytestmark = pytest.mark.slow
JOB_LIMIT_S = 300  # a real job on a busy machine


def _cases() -> Iterator[Any]:
    for page, module in pages().items():
        for number, behavior in enumerate(module.BEHAVIORS):
            marks = [pytest.mark.e2e] if behavior.needs_torch else []
            yield pytest.param(behavior, id=f"{page}-{number}", marks=marks)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("scenes"))


@pytest.mark.parametrize("behavior", list(_cases()))
def test_the_commands_show_the_behavior(
    behavior: Behavior,
    stage: Stage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stage.set_up(behavior.commands, tmp_path)
    monkeypatch.chdir(tmp_path)
    # `python` is the one with torch; where there is no Nsight Systems, a stand-in is.
    programs = [os.path.dirname(sys.executable), os.environ["PATH"], str(nsys_stand_in.install(tmp_path / ".programs"))]
    monkeypatch.setenv("PATH", os.pathsep.join(programs))
    printed = ""
    for command in behavior.commands:
        capsys.readouterr()
        code, printed = _run(command, behavior.needs_torch, capsys)
        assert code in behavior.exit_codes, f"{command} ended with {code}:\n{printed}"
    assert re.search(behavior.shows, printed, re.MULTILINE), f"{behavior.shows!r} is not in:\n{printed}"
    if behavior.check:
        behavior.check(tmp_path, printed)


def test_every_page_has_behaviors() -> None:
    assert all(module.BEHAVIORS for module in pages().values())


def _run(command: str, in_own_process: bool, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and all that was printed; in this process where no job runs: that is faster."""
    if command.startswith(">>> "):
        return _run_process([sys.executable, "-c", command.removeprefix(">>> ")])
    words = shlex.split(command)
    assert words[0] == "rankscope", command
    if in_own_process:
        return _run_process([sys.executable, "-m", *words])
    try:
        code = main(words[1:])
    except SystemExit as ended:  # --help and a wrong option
        code = int(ended.code or 0)
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def _run_process(words: list[str]) -> tuple[int, str]:
    finished = subprocess.run(
        words,
        env=clean_environment({"GLOO_SOCKET_IFNAME": "lo"}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=JOB_LIMIT_S,
        check=False,
    )
    return finished.returncode, finished.stdout
