"""One behavior of another tool or guide, and the commands that show it here.

Each page of this folder (fr_trace.py, loader.py, ...) has TITLE, INTRO and BEHAVIORS. docs/coverage.md is made of them,
and test_behaviors.py runs every command: a behavior without a passing command fails the suite.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

# In the order of docs/coverage.md.
PAGES = ("fr_trace", "loader", "trace_utils", "trace_generation", "tlparse")


@dataclass(frozen=True)
class Behavior:
    """`commands` are typed one after another in a folder that holds the scenes (scenes.py) they mention by name."""

    there: str  # what the other tool does or its guide describes, in our own words
    commands: tuple[str, ...]  # `rankscope ...`, or a line of Python behind `>>> `
    shows: str  # a regular expression that must be found in what the last command prints
    check: Callable[[Path, str], None] | None = None  # further asserts on the folder and on what was printed
    exit_codes: tuple[int, ...] = (0, 1)
    needs_torch: bool = False  # it runs a real job


def pages() -> dict[str, ModuleType]:
    return {name: importlib.import_module(f"behaviors.{name}") for name in PAGES}
