"""Reads a file in a process of its own with little memory and time, so that a bomb that goes off hurts nobody."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import rankscope

SOURCE = Path(rankscope.__path__[0]).parent
MEGABYTE = 1 << 20

_SCRIPT = """
import json, resource, sys
from pathlib import Path
from rankscope.errors import BadFileError
from rankscope.read.files import Source
from rankscope.read.flight_recorder import read

resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (8, 8))
path = Path(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF)
problem = ""
try:
    list(read(Source(path, str(path), path.stat().st_size, rank=0, file_id=0)))
except BadFileError as error:
    problem = f"{error.message} ({error.hint})"
after = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([problem, after.ru_maxrss - before.ru_maxrss, after.ru_utime - before.ru_utime]))
"""


class Outcome(NamedTuple):
    problem: str
    """Why the file was refused; empty when it was read."""
    n_bytes: int
    """By how much the process grew."""
    cpu_s: float


_COMMAND = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
from rankscope.cli import main
sys.exit(main(sys.argv[1:]))
"""


def diagnose_caged(folder: Path, jobs: str) -> subprocess.CompletedProcess[str]:
    """The real command on a folder, with less memory than a bomb would take."""
    return _run(_COMMAND, str(folder), "--jobs", jobs)


def read_caged(path: Path) -> Outcome:
    ran = _run(_SCRIPT, str(path))
    assert ran.returncode == 0, f"the reader ended with {ran.returncode}: {ran.stderr[-1000:]}"
    problem, n_kilobytes, cpu_s = json.loads(ran.stdout)
    return Outcome(problem, n_kilobytes * 1024, cpu_s)


def _run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(SOURCE), "OPENBLAS_NUM_THREADS": "1"},
        check=False,
    )
