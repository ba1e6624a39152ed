"""Runs the real command in a process of its own, as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import rankscope

SOURCE = Path(rankscope.__path__[0]).parent


def run_rankscope(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, flags: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *flags, "-m", "rankscope", *arguments],
        capture_output=True,
        text=True,
        env=clean_environment(env),
        cwd=cwd,
        timeout=60,
        check=False,
    )


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without what would change the output from one machine to the next."""
    ignored = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "RANKSCOPE_DEBUG")
    kept = {name: value for name, value in os.environ.items() if name not in ignored}
    return {**kept, "PYTHONPATH": str(SOURCE), **(extra or {})}
