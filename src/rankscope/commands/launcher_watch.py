"""Stands in for `rankscope record` if that is killed, so that the capture says so and is completed all the same.

A separate process waits at a pipe. When the other end disappears silently, the launcher was killed. As with a shell,
the job runs on unless it was to end with the launcher.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_DONE = b"done"
_LOOK_EVERY_S = 0.5


@contextmanager
def watched(folder: Path, about: Mapping[str, Any], *, ends_job: bool) -> Iterator[Callable[[int], None]]:
    """Gives the function that is to be told the job's process group."""
    reading, writing = os.pipe()  # the job inherits neither end
    watcher = os.fork()
    if watcher == 0:
        try:
            os.close(writing)
            _watch(reading, folder, about, ends_job)
        finally:
            os._exit(0)
    os.close(reading)
    try:
        yield lambda group: _say(writing, b"%d\n" % group)
    finally:
        _say(writing, _DONE)
        os.close(writing)
        with suppress(ChildProcessError):
            os.waitpid(watcher, 0)


def _say(pipe: int, message: bytes) -> None:
    with suppress(OSError):
        os.write(pipe, message)


def _watch(pipe: int, folder: Path, about: Mapping[str, Any], ends_job: bool) -> None:
    os.setsid()  # signals of the terminal are not for it
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # whoever waits for the end of the launcher's output must not wait for it
        os.dup2(nothing, stream)
    heard = b""
    while chunk := os.read(pipe, 64):
        heard += chunk
    if heard.endswith(_DONE):
        return
    group = int(heard.split(b"\n")[0] or 0)
    if group and ends_job:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGTERM)
    while group and _is_there(group):
        time.sleep(_LOOK_EVERY_S)
    from rankscope.collect.launching import leftovers

    with suppress(OSError):
        leftovers.finish(folder, {**about, "ended_ns": time.time_ns(), "launcher": "killed"})


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        return False
    return True
