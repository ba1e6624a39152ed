"""CPU time and peak memory of a command, its children included."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_SAMPLE_SECONDS = 0.02
# macOS counts ru_maxrss in bytes, Linux in kilobytes.
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True)
class Usage:
    cpu_s: float
    peak_bytes: int
    wall_s: float
    exit_code: int
    timed_out: bool
    output: str


def run_measured(command: Sequence[str], env: Mapping[str, str], limit_s: float) -> Usage:
    """Runs the command to its end, or kills it at the limit.

    CPU seconds are user and system time of the process and of every descendant it waited for. Peak memory is the
    largest sum of resident memory over the process tree, sampled, but never less than the largest single process, which
    the kernel knows exactly. Pages that forked processes share are counted once for each: the sum is an upper bound.
    """
    began = time.monotonic()
    with subprocess.Popen(
        command, env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        output = bytearray()
        peak_bytes, timed_out = 0, False
        while True:
            # Read while it runs: a full pipe would stop the command.
            output += process.stdout.read() or b""
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            peak_bytes = max(peak_bytes, sum(map(_resident_bytes, _process_tree(process.pid))))
            if time.monotonic() - began > limit_s and not timed_out:
                os.killpg(process.pid, signal.SIGKILL)
                timed_out = True
            time.sleep(_SAMPLE_SECONDS)
        process.returncode = os.waitstatus_to_exitcode(status)
        output += process.stdout.read() or b""
    return Usage(
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_bytes=max(peak_bytes, usage.ru_maxrss * _MAXRSS_UNIT),
        wall_s=time.monotonic() - began,
        exit_code=process.returncode,
        timed_out=timed_out,
        output=output.decode(errors="replace"),
    )


def _process_tree(root: int) -> Iterator[int]:
    yield root
    for listing in Path(f"/proc/{root}/task").glob("*/children"):
        try:
            children = listing.read_text().split()
        except OSError:  # ended meanwhile
            continue
        for child in children:
            yield from _process_tree(int(child))


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):  # ended meanwhile, or a system without /proc
        return 0
