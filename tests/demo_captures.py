"""Captures of simulated jobs, as `rankscope demo` writes them."""

from __future__ import annotations

from pathlib import Path

from rankscope.cli import main


def demo(folder: Path, fault: str, n_ranks: int, *options: str) -> Path:
    assert main(["demo", "-o", str(folder), "--ranks", str(n_ranks), "--fault", fault, *options]) in (0, 1)
    return folder
