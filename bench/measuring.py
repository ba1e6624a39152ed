"""CPU time and peak memory of commands, their children included, and where the results are written down."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

# Runs shorter than this are repeated and the best counts, as other work on the machine only ever adds time.
SHORT_SECONDS = 60.0
REPEATS = 3
_SAMPLE_SECONDS = 0.02
# macOS counts ru_maxrss in bytes, Linux in kilobytes.
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024
_MEMORY = re.compile(r"^(VmRSS|VmHWM):\s*(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True)
class Usage:
    cpu_s: float
    peak_bytes: int
    wall_s: float
    exit_code: int
    timed_out: bool
    output: str


@dataclass(frozen=True)
class Command:
    arguments: Sequence[str]
    env: Mapping[str, str]
    check: Callable[[Usage], None]
    """Stops the whole measurement when the command did not do its work: a wrong answer in no time is worth nothing."""
    repeats: int = REPEATS


def finish(text: str, write_to: tuple[Path, tuple[str, str]] | None, targets: Iterable[tuple[str, bool]]) -> int:
    """Prints the result, puts it between the markers of a file if one is given, and says whether all was reached."""
    print(text)
    if write_to:
        path, markers = write_to
        replace_between(path, markers, text)
    return 0 if all(reached for _, reached in targets) else 1


def measure_in_turns(commands: Mapping[str, Command], limit_s: float, note: Callable[[str], None]) -> dict[str, Usage]:
    """The best run of each. They take turns, in alternating order: a busy spell of the machine then hits all."""
    best: dict[str, Usage] = {}
    for turn in range(REPEATS):
        for name in list(commands)[:: -1 if turn % 2 else 1]:
            command = commands[name]
            is_long = name in best and (best[name].cpu_s > SHORT_SECONDS or best[name].timed_out)
            if is_long or turn >= command.repeats:
                continue
            usage = run_measured(command.arguments, command.env, limit_s)
            note(f"{name}: {usage.cpu_s:.2f} s CPU, {usage.wall_s:.2f} s, {usage.peak_bytes / 1e6:.0f} MB")
            if not usage.timed_out:
                command.check(usage)
            best[name] = usage if name not in best else _better(best[name], usage)
    return best


def _better(one: Usage, other: Usage) -> Usage:
    """The least CPU time and the least time on the clock may be of two runs: each has its own noise."""
    return replace(min(one, other, key=lambda usage: usage.cpu_s), wall_s=min(one.wall_s, other.wall_s))


def run_measured(command: Sequence[str], env: Mapping[str, str], limit_s: float) -> Usage:
    """Runs the command to its end, or kills it at the limit.

    CPU seconds are user and system time of the process and of every descendant it waited for. Peak memory is the
    largest sum of resident memory over the process tree, sampled, but never less than the high-water mark of a single
    process. Pages that forked processes share are counted once for each: the sum is an upper bound.
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
            peak_bytes = max(peak_bytes, _tree_bytes(process.pid))
            if time.monotonic() - began > limit_s and not timed_out:
                os.killpg(process.pid, signal.SIGKILL)
                timed_out = True
            time.sleep(_SAMPLE_SECONDS)
        process.returncode = os.waitstatus_to_exitcode(status)
        output += process.stdout.read() or b""
    return Usage(
        cpu_s=usage.ru_utime + usage.ru_stime,
        # Without /proc only this is left. It also counts this script's memory, of which the command began as a copy.
        peak_bytes=peak_bytes or usage.ru_maxrss * _MAXRSS_UNIT,
        wall_s=time.monotonic() - began,
        exit_code=process.returncode,
        timed_out=timed_out,
        output=output.decode(errors="replace"),
    )


def check_printed(expected: Mapping[str, int], usage: Usage) -> None:
    """A tool that skipped a part of the input would be fast: it has to have found everything."""
    printed = [line for line in usage.output.splitlines() if line.startswith("{")]
    if usage.exit_code != 0 or not printed or json.loads(printed[-1]) != expected:
        raise SystemExit(f"expected {expected}, exit code {usage.exit_code}:\n{usage.output[-2000:]}")


def _process_tree(root: int) -> Iterator[int]:
    yield root
    for listing in Path(f"/proc/{root}/task").glob("*/children"):
        try:
            children = listing.read_text().split()
        except OSError:  # ended meanwhile
            continue
        for child in children:
            yield from _process_tree(int(child))


def _tree_bytes(root: int) -> int:
    now_and_peak = [_resident_bytes(pid) for pid in _process_tree(root)]
    return max(sum(now for now, _ in now_and_peak), *(peak for _, peak in now_and_peak))


def _resident_bytes(pid: int) -> tuple[int, int]:
    """Now, and at most so far."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # ended meanwhile, or a system without /proc
        return 0, 0
    kilobytes = dict(_MEMORY.findall(status))
    return int(kilobytes.get("VmRSS", 0)) * 1024, int(kilobytes.get("VmHWM", 0)) * 1024


def processor() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.machine()


def replace_between(page: Path, markers: tuple[str, str], text: str) -> None:
    """Puts the text where the page has the two markers."""
    begin, end = markers
    before, found, rest = page.read_text().partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise SystemExit(f"{page} has no place for the result: it needs the lines {begin} and {end}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")
