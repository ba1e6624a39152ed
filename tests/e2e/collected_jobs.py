"""Runs jobs under the collector, and without it; tells how they ended and what they left."""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launching import JOB_ENVIRONMENT, JOB_LIMIT_S, JOBS

from rankscope.collect.launching.environment import job_environment
from rankscope.collect.settings import Settings

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
_NURSERY = Path(__file__).parent / "collected_nursery.py"


class Ended(NamedTuple):
    code: int | None  # None: it did not end by itself
    out: str
    err: str


class Script(NamedTuple):
    """A job of one process: a file of jobs/, what it is told, and its environment."""

    job: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = {}


def environment(**more: str) -> dict[str, str]:
    """As a shell would have it, with nothing left of tests that collect themselves."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RANK", "TORCH", "WORLD_SIZE"))}
    return {**kept, **JOB_ENVIRONMENT, **more}


def collected(settings: Settings, given: Mapping[str, str]) -> dict[str, str]:
    """The environment in which `rankscope record` would start a job."""
    return job_environment(settings, given).variables


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def start_record(
    folder: Path, options: Sequence[str], job: Sequence[str], programs: Path | None = None
) -> subprocess.Popen[str]:
    """`programs`: a folder of programs that come before those of this machine."""
    path = os.pathsep.join([*([str(programs)] if programs else []), os.environ["PATH"]])
    return subprocess.Popen(
        [sys.executable, "-m", "rankscope", "record", "-o", str(folder), *options, "--", *job],
        env=environment(MASTER_PORT=free_port(), PATH=path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> Ended:
    """Waits for it; what it printed is shown by a test that fails."""
    try:
        out, err = process.communicate(timeout=JOB_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.terminate()  # passed on to the job
        out, err = process.communicate(timeout=JOB_LIMIT_S)
    print(out, err, sep="\n")
    return Ended(process.returncode, out, err)


def run_scripts(scratch: Path, scripts: Sequence[Script], *imported: str) -> list[Ended]:
    """At the same time, in interpreters that are forked with torch and the modules named imported."""
    outputs = [(scratch / f"out_{number}.txt", scratch / f"err_{number}.txt") for number in range(len(scripts))]
    asked = [
        {
            "script": str(JOBS / f"{script.job}.py"),
            "arguments": list(script.arguments),
            "environment": {**environment(), **script.environment},
            "out": str(out),
            "err": str(err),
        }
        for script, (out, err) in zip(scripts, outputs, strict=True)
    ]
    nursery = _nursery(*imported)
    assert nursery.stdin
    assert nursery.stdout
    nursery.stdin.write(json.dumps(asked) + "\n")
    nursery.stdin.flush()
    codes = json.loads(nursery.stdout.readline())
    ended = [Ended(code, *(path.read_text() for path in paths)) for code, paths in zip(codes, outputs, strict=True)]
    print(*ended, sep="\n")
    return ended


@functools.cache
def _nursery(*imported: str) -> subprocess.Popen[str]:
    """One for all tests of a process. It ends with its input, thus with this process."""
    return subprocess.Popen(
        [sys.executable, str(_NURSERY), *imported],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def manifest_of(folder: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return manifest


def problems_of(folder: Path) -> list[tuple[int, str, str]]:
    return [
        (rank["rank"], problem["what"], problem["problem"])
        for rank in manifest_of(folder)["ranks"]
        for problem in rank["problems"]
    ]


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
