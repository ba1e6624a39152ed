"""Runs the cases of jobs/compiled.py under TORCH_TRACE, two at a time, and finds the lines that they are about."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

JOB = Path(__file__).parent / "jobs" / "compiled.py"
JOB_LIMIT_S = 240
N_AT_ONCE = 2
ODD_RANK = 1
# One thread and one compiler per process: the cases share whatever machine runs the tests.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


class Case(NamedTuple):
    """A function of the job, on one process or on several ranks."""

    name: str
    n_ranks: int = 1
    odd_rank: int = -1
    environment: tuple[tuple[str, str], ...] = ()

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
    environment = {**os.environ, **ENVIRONMENT, **shared, **dict(case.environment), "ODD_RANK": str(case.odd_rank)}
    if case.n_ranks > 1:
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port(), "WORLD_SIZE": str(case.n_ranks)}
    outputs = [root / f"{case.folder}.{rank}.out" for rank in range(case.n_ranks)]
    processes = [_start(case.name, out, {**environment, "RANK": str(rank)}) for rank, out in enumerate(outputs)]
    try:
        codes = [process.wait(JOB_LIMIT_S) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    printed = "\n".join(out.read_text(errors="replace") for out in outputs)
    assert not any(codes), f"{case.folder} ended with {codes}:\n{printed}"
    return printed


def _start(case: str, output: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Into a file: a pipe that nobody empties would stop a rank, and all that wait for it."""
    with output.open("wb") as stream:
        return subprocess.Popen(
            [sys.executable, str(JOB), case],
            env=dict(environment),
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def line_of(text: str) -> int:
    """The only line of the job that holds the text."""
    lines = JOB.read_text().splitlines()
    [number] = [number for number, line in enumerate(lines, 1) if text in line]
    return number
