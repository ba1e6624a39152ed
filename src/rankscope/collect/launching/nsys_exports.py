"""Exports of Nsight Systems' reports that were not made while the job ran: rankscope reads SQLite, not nsys-rep."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from rankscope.collect.launching import folders
from rankscope.collect.launching.nsys import PROGRAM, REPORT, SUFFIXES

_REPORT_SUFFIX, _EXPORT_SUFFIX = SUFFIXES
_SECONDS_PER_REPORT = 600.0


def export_all(folder: Path) -> Iterator[str]:
    """Exports each report of the run that has no export yet; yields what the user should know."""
    nsys = shutil.which(PROGRAM)
    pattern = REPORT.format(rank="*") + _REPORT_SUFFIX
    reports = [report for attempt in folders.places(folder) for report in sorted(attempt.glob(pattern))]
    if nsys and not reports:
        yield "nsys wrote no report: see its messages above"
    for report in (report for report in reports if not report.with_suffix(_EXPORT_SUFFIX).exists()):
        command = export_command(report)
        problem = _export([nsys, *command[1:]]) if nsys else "nsys is not on the PATH"
        if problem:
            yield f"{report.name} was not exported: {problem}"
            yield f"  = fix: {shlex.join(command)}"


def export_command(report: Path) -> list[str]:
    export = report.with_suffix(_EXPORT_SUFFIX)
    return [PROGRAM, "export", "--type", "sqlite", "--output", str(export), str(report)]


def _export(command: list[str]) -> str:
    """Runs it; why it failed, if it did."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS_PER_REPORT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    said = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines() or ["no message"]
    return f"nsys ended with exit code {done.returncode}: {said[-1]}"
