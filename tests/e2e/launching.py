"""Starts a job of jobs/ under torchrun, waits for its end, and asks rankscope about the dumps it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

JOBS = Path(__file__).parent / "jobs"
N_RANKS = 4
JOB_LIMIT_S = 90
# Loopback only, and one thread per rank: four ranks share whatever machine runs the tests.
JOB_ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}


class Diagnosis(NamedTuple):
    exit_code: int
    report: dict[str, Any]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [finding for finding in self.report["findings"] if finding["severity"] == "error"]


def run_job(job: str, dumps: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """The exit code of torchrun; what the job printed goes to stdout, where a failing test shows it."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(N_RANKS)]
    free_port = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    process = subprocess.Popen(
        [*torchrun, *free_port, str(JOBS / f"{job}.py"), "--dumps", str(dumps), *arguments],
        env={**os.environ, **JOB_ENVIRONMENT, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=JOB_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        printed, _ = process.communicate()
        raise AssertionError(f"{job} did not end within {JOB_LIMIT_S} s:\n{printed}") from None
    print(printed)
    return process.returncode


def diagnose(traces: Path, *options: str) -> Diagnosis:
    command = [sys.executable, "-m", "rankscope", str(traces), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 1), done.stderr
    return Diagnosis(done.returncode, json.loads(done.stdout))


def code_site(job: str, function: str, call: str) -> dict[str, Any]:
    """Where a job makes a call, as a report names it."""
    path = JOBS / f"{job}.py"
    lines = path.read_text().splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith(f"def {function}("))
    line = next(index for index in range(start, len(lines)) if call in lines[index])
    return {"file": str(path), "line": line + 1, "function": function}
