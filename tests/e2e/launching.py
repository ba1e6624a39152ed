"""Starts a job of jobs/, waits for its end, and asks rankscope about the dumps it leaves."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

JOBS = Path(__file__).parent / "jobs"
N_RANKS = 4
JOB_LIMIT_S = 300  # on a machine ten times slower; a job takes seconds
JOB_ENVIRONMENT = {
    # Loopback only, one thread and one compiler per rank: four ranks share whatever machine runs the tests.
    "GLOO_SOCKET_IFNAME": "lo",
    "MASTER_ADDR": "127.0.0.1",
    "OMP_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    # Nobody reads the kernels: without vector instructions they are built faster, and on any processor.
    "TORCHINDUCTOR_VEC_ISA_OK": "0",
}


class Diagnosis(NamedTuple):
    exit_code: int
    report: dict[str, Any]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [finding for finding in self.report["findings"] if finding["severity"] == "error"]


def run_job(job: str, dumps: Path, arguments: Sequence[str], environment: Mapping[str, str], *imported: str) -> int:
    """The highest exit code of the ranks; what they printed goes to stdout, where a failing test shows it."""
    output = dumps / ".output.txt"
    started = Started(job, ["--dumps", str(dumps), *arguments], {**JOB_ENVIRONMENT, **environment}, N_RANKS, output)
    codes = run_forked(started, *imported)
    print(output.read_text(errors="replace"))
    output.unlink()
    return max(map(abs, codes))


class Started(NamedTuple):
    job: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    n_ranks: int
    output: Path
    limit_s: float = JOB_LIMIT_S


def run_forked(started: Started, *imported: str) -> list[int]:
    """The exit codes of the ranks, forked from a process that has already imported torch and the modules named."""
    asked = {**started._asdict(), "script": str(JOBS / f"{started.job}.py"), "output": str(started.output)}
    nursery = _nursery(threading.get_ident(), *imported)
    assert nursery.stdin
    assert nursery.stdout
    nursery.stdin.write(json.dumps(asked) + "\n")
    nursery.stdin.flush()
    codes: list[int] | str = json.loads(nursery.stdout.readline())
    assert not isinstance(codes, str), f"{started.job} did not end within {started.limit_s} s"
    return codes


@functools.cache
def _nursery(_thread: int, *imported: str) -> subprocess.Popen[str]:
    """One for all jobs of a thread. It ends with its input, thus with this process."""
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "nursery.py"), *imported],
        env={**os.environ, **JOB_ENVIRONMENT},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def run_under_torchrun(job: str, dumps: Path, arguments: Sequence[str]) -> int:
    """The exit code of torchrun, which itself ends the ranks when one of them fails."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(N_RANKS)]
    free_port = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    process = subprocess.Popen(
        [*torchrun, *free_port, str(JOBS / f"{job}.py"), "--dumps", str(dumps), *arguments],
        env={**os.environ, **JOB_ENVIRONMENT},
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
