from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cli.running import clean_environment, run_rankscope
from rankscope.commands import COMMANDS

HEAVY = {"numpy", "duckdb", "rich", "msgspec", "torch", "importlib.metadata", "dataclasses", "inspect"}


@pytest.mark.parametrize("arguments", [("--help",), *((name, "--help") for name in COMMANDS)])
def test_help_loads_nothing_heavy(arguments: tuple[str, ...]) -> None:
    done = run_rankscope(*arguments, flags=("-X", "importtime"))
    assert done.returncode == 0, done.stderr
    loaded = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "rankscope.cli" in loaded
    assert not loaded & HEAVY


def test_help_is_fast() -> None:
    """The fastest of several runs, because the machine may be busy with other things."""
    assert min(_cpu_seconds() for _ in range(7)) < 0.1


def _cpu_seconds() -> float:
    process = subprocess.Popen(
        [sys.executable, "-m", "rankscope", "--help"], stdout=subprocess.DEVNULL, env=clean_environment()
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime
