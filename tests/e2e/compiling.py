"""Runs the cases of jobs/compiled.py under TORCH_TRACE, two at a time, and finds the lines that they are about."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from launching import JOB_ENVIRONMENT, Started, run_forked

JOB = Path(__file__).parent / "jobs" / "compiled.py"
JOB_LIMIT_S = 240
N_AT_ONCE = 2
ODD_RANK = 1


class Case(NamedTuple):
    """A function of the job, on one process or on several ranks."""

    name: str
    n_ranks: int = 1
    odd_rank: int = -1
    environment: tuple[tuple[str, str], ...] = ()
    imports_torch: bool = False  # as a job does that a user starts; else it is forked from a process that has

    @property
    def folder(self) -> str:
        ranks = f"_{self.n_ranks}_{self.odd_rank}" if self.n_ranks > 1 else ""
        return "_".join((self.name + ranks, *(value for _, value in self.environment)))


def run_cases(root: Path, in_order: Sequence[Sequence[Case]]) -> dict[str, str]:
    """Folder -> what the case printed. The cases of one sequence run one after the other."""
    printed: dict[str, str] = {}

    def run_all(cases: Sequence[Case]) -> None:
        for case in cases:
            printed[case.folder] = run_case(root, case)

    with ThreadPoolExecutor(N_AT_ONCE) as pool:
        list(pool.map(run_all, in_order))
    return printed


def run_case(root: Path, case: Case) -> str:
    """What it printed; an AssertionError when it failed. All cases share one cache of compiled code."""
    shared = {"TORCHINDUCTOR_CACHE_DIR": str(root / "cache"), "TORCH_TRACE": str(root / case.folder)}
    environment = {**JOB_ENVIRONMENT, **shared, **dict(case.environment), "ODD_RANK": str(case.odd_rank)}
    output = root / f"{case.folder}.out"
    if case.imports_torch:
        codes = [_run_alone(case.name, output, {**os.environ, **environment})]
    else:
        started = Started(JOB.stem, [case.name], environment, case.n_ranks, output, JOB_LIMIT_S)
        codes = run_forked(started, "inductor_nursery")
    printed = output.read_text(errors="replace")
    assert not any(codes), f"{case.folder} ended with {codes}:\n{printed}"
    return printed


def _run_alone(case: str, output: Path, environment: Mapping[str, str]) -> int:
    """Into a file, as a pipe would stay open for as long as a child of the job lives."""
    with output.open("wb") as stream:
        command = [sys.executable, str(JOB), case]
        done = subprocess.run(
            command, env=environment, stdout=stream, stderr=subprocess.STDOUT, timeout=JOB_LIMIT_S, check=False
        )
    return done.returncode


def line_of(text: str) -> int:
    """The only line of the job that holds the text."""
    lines = JOB.read_text().splitlines()
    [number] = [number for number, line in enumerate(lines, 1) if text in line]
    return number
