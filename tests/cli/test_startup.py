from __future__ import annotations

import pytest

from cli.running import run_rankscope
from rankscope.commands import COMMANDS

HEAVY = {"numpy", "duckdb", "msgspec", "torch", "importlib.metadata", "dataclasses", "inspect"}
MAX_MODULES = 140  # Python itself loads 40 of them


@pytest.mark.parametrize("arguments", [("--help",), *((name, "--help") for name in COMMANDS)])
def test_help_loads_nothing_heavy(arguments: tuple[str, ...]) -> None:
    done = run_rankscope(*arguments, flags=("-X", "importtime"))
    assert done.returncode == 0, done.stderr
    loaded = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "rankscope.cli" in loaded
    assert not loaded & HEAVY
    assert len(loaded) < MAX_MODULES  # what an answer costs is what it imports; bench/startup.py measures it
