"""Processes that collect stacks without torch, get stuck as jobs do, and are sent signals."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

LIMIT_S = 120
RANK = 3

_PROLOGUE = """
import ctypes, os, signal, sys, threading, time
from rankscope.collect.run import Run
from rankscope.collect.settings import Settings

signal.alarm(240)

def begin():
    off = dict.fromkeys(("execution_trace", "kineto", "recorder", "metrics", "compile_log", "host"), False)
    run = Run(Settings(folder=sys.argv[1], stall_seconds=float(sys.argv[2]), **off))
    run.begin(3, 4, 0)
    return run

def ready():
    print("ready", flush=True)

def wait_for_ever_in_c(library):
    mutex = ctypes.create_string_buffer(128)
    library.pthread_mutex_lock(mutex)
    ready()
    library.pthread_mutex_lock(mutex)

def do_python_for_ever():
    ready()
    while True:
        time.sleep(0.05)
"""


class Child:
    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self.folder = folder

    def read_line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """The exit status; minus the signal's number if one killed it."""
        return self.process.wait(LIMIT_S)

    def stacks(self) -> str:
        return (self.folder / f"stacks_{RANK}.txt").read_text()

    def printed_in_c(self) -> str:
        """What faulthandler has printed and nobody has taken yet."""
        return "".join(path.read_text() for path in self.folder.glob("stacks_*.held.txt.*.partial"))

    def has_told(self, reason: str) -> bool:
        try:
            return f"reason: {reason}" in self.stacks()
        except OSError:
            return False


@contextlib.contextmanager
def child(folder: Path, body: str, stall_seconds: float = 300.0) -> Iterator[Child]:
    """Runs `body`, which calls begin() itself and one of the functions above."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROLOGUE + textwrap.dedent(body), str(folder), str(stall_seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
    )
    try:
        yield Child(process, folder)
    finally:
        process.kill()
        process.communicate()


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)
