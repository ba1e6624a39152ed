"""Captures of simulated jobs, as `rankscope demo` writes them, and pages of them."""

from __future__ import annotations

from pathlib import Path

from rankscope.cli import main


def demo(folder: Path, fault: str, n_ranks: int, *options: str) -> Path:
    assert main(["demo", "-o", str(folder), "--ranks", str(n_ranks), "--fault", fault, *options]) in (0, 1)
    return folder


def demo_page(folder: Path, fault: str, n_ranks: int, *options: str) -> Path:
    traces = demo(folder / "traces", fault, n_ranks, *options)
    assert main(["report", str(traces), "-o", str(folder / "report.html")]) in (0, 1)
    return folder / "report.html"
