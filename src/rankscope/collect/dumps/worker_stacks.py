"""Where the worker processes of a rank's DataLoaders are: each prints its stack into a file of its own on a signal."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from rankscope.collect.launching import child_exits

SIGNAL = signal.SIGUSR2
_WAIT_SECONDS = 0.5  # for all workers together
_POLL_SECONDS = 0.01
_MAX_WORKERS = 16
_STACK = re.compile(r"\(most recent call first\):\n(?P<frames>(?:  File [^\n]*\n)+)")
_FATAL = set(signal.Signals) - {signal.SIGTERM, signal.SIGINT}  # which loaders and people end workers with
_EXIT_CODE = 49  # of the fields after the name in /proc/PID/stat
_ORIGINAL = "Original Traceback (most recent call last):"
_FRAME = re.compile(r'^  File "([^"\n]+)", line (\d{1,9}), in (\S+)', re.MULTILINE)
_folder: Path | None = None
_kept: list[Any] = []  # faulthandler does not keep a file open


def install(folder: Path) -> None:
    """From now on workers that this process starts by forking can be asked."""
    global _folder
    if "torch" not in sys.modules:  # which takes seconds to import, and nobody else wants it
        return
    from torch.utils.data._utils import worker

    if _folder is None:
        original = worker._worker_loop

        def _worker_loop(*args: Any, **kwargs: Any) -> Any:
            with suppress(Exception):
                _register()
            return original(*args, **kwargs)

        _worker_loop.__module__, _worker_loop.__qualname__ = original.__module__, original.__qualname__
        worker._worker_loop = _worker_loop
    _folder = folder


def remove() -> None:
    global _folder
    _folder = None


def killed_workers() -> list[str]:
    """Child processes that a signal has ended, whether or not the job has waited for them."""
    from multiprocessing import process

    killed = child_exits.killed_children()
    for child in list(getattr(process, "_children", ())):
        with suppress(OSError, ValueError, AttributeError, IndexError):
            fields = Path(f"/proc/{child._popen.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            if fields[0] == "Z":
                killed[child._popen.pid] = int(fields[_EXIT_CODE]) & 0x7F
    fatal = {pid: number for pid, number in killed.items() if number in _FATAL}
    return [f"its worker process {pid} had been killed by {signal.Signals(fatal[pid]).name}" for pid in sorted(fatal)]


def raised_in_worker(text: str) -> tuple[str, list[tuple[str, int, str]]]:
    """The last line of what a worker raised, and its frames, innermost first, from what torch makes of it."""
    head, _, original = text.partition(_ORIGINAL)
    if not (original and head.startswith("Caught ")):
        return "", []
    frames = [(match[1], int(match[2]), match[3]) for match in _FRAME.finditer(original)]
    return original.rstrip().rpartition("\n")[2], frames[::-1]


def _register() -> None:
    """In the worker. A handler that the job has set for the signal stays."""
    if _folder is None or signal.getsignal(SIGNAL) != signal.SIG_DFL:
        return
    _kept.append(_path(_folder, os.getppid(), os.getpid()).open("ab", buffering=0))
    faulthandler.register(SIGNAL, file=_kept[-1], all_threads=False)


def read(folder: Path) -> Iterator[str]:
    """The stacks of the workers of this process, as further threads of it."""
    files = {_pid(path): path for path in sorted(folder.glob(_path(Path(), os.getpid(), "*").name))}
    asked = [pid for pid in list(files)[:_MAX_WORKERS] if _is_child(pid)]
    for pid in asked:
        with suppress(OSError):
            os.truncate(files[pid], 0)
            os.kill(pid, SIGNAL)
    deadline = time.monotonic() + _WAIT_SECONDS
    for number, pid in enumerate(asked):
        stack = None
        while stack is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            with suppress(OSError):
                stack = _STACK.search(files[pid].read_text(encoding="utf-8", errors="replace"))
        if stack is not None:
            name = f"DataLoader worker {number}, pid {pid}"
            yield f"Thread 0x{pid:016x} [{name}] (most recent call first):\n{stack['frames']}"


def clean(folder: Path, pid: int) -> None:
    for path in folder.glob(_path(Path(), pid, "*").name):
        path.unlink(missing_ok=True)


def _path(folder: Path, parent: int, pid: int | str) -> Path:
    return folder / f"worker_stacks.{parent}.{pid}.partial"


def _pid(path: Path) -> int:
    return int(path.name.split(".")[-2])


def _is_child(pid: int) -> bool:
    """Numbers of processes come again: a signal goes to children only."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    state, parent = stat.rpartition(")")[2].split()[:2]
    return int(parent) == os.getpid() and state not in "ZX"
