"""How the processes of a launcher ended, noted where they are waited for: the ranks themselves cannot say.

torchrun and mp.spawn are Python: their children are reaped by subprocess or multiprocessing, in the launcher.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

NAME = "exit_{host}_{pid}.json"
_killed: dict[int, int] = {}  # workers of this rank that a signal has ended: process id -> signal
_OOM = Path("/sys/fs/cgroup/memory.events")


def watch(folder: Path, is_rank: Callable[[], bool]) -> None:
    """Children of a rank (workers of a DataLoader, compilers) are not noted."""
    import subprocess

    def note(pid: int, status: int) -> None:
        with suppress(Exception):
            if not is_rank():
                _write(folder, pid, status)
            elif status < 0:
                _killed[pid] = -status

    original = subprocess.Popen._handle_exitstatus  # type: ignore[attr-defined]

    def handle_exitstatus(process: Any, status: int, *others: Any) -> None:
        original(process, status, *others)
        with suppress(Exception):
            note(process.pid, process.returncode)

    subprocess.Popen._handle_exitstatus = handle_exitstatus  # type: ignore[attr-defined]
    with suppress(ImportError):
        from multiprocessing import popen_fork

        polled = popen_fork.Popen.poll

        def poll(process: Any, *args: Any, **kwargs: Any) -> Any:
            had_ended = process.returncode is not None
            code = polled(process, *args, **kwargs)
            if code is not None and not had_ended:
                note(process.pid, code)
            return code

        popen_fork.Popen.poll = poll  # type: ignore[method-assign, assignment]


def killed_children() -> dict[int, int]:
    """The children of this rank that a signal has ended, as far as it has waited for them."""
    return dict(_killed)


def _write(folder: Path, pid: int, code: int) -> None:
    text = json.dumps({"host": socket.gethostname(), "pid": pid, "exit_code": code})
    (folder / NAME.format(host=_host(), pid=pid)).write_text(text + "\n", encoding="utf-8")


def take(folder: Path) -> dict[int, int]:
    """Exit codes by process id, of this host; -n for signal n. The notes are removed."""
    codes = {}
    for path in folder.glob(NAME.format(host=_host(), pid="*")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            noted = json.loads(path.read_text(encoding="utf-8"))
            codes[int(noted["pid"])] = int(noted["exit_code"])
            path.unlink()
    return codes


def n_killed_for_memory() -> int | None:
    """Processes that the kernel has killed so far in the container that this process runs in; None if unknown."""
    try:
        events = dict(line.split() for line in _OOM.read_text(encoding="ascii").splitlines())
        return int(events["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None


def _host() -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in socket.gethostname())[:60]
