"""Runs a command as a shell would: same input and output, signals passed on, its exit code given back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankscope.commands.job_output import KeptOutput

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_MAY_END = (signal.SIGINT, signal.SIGTERM)
_STDIN = 0
_SAME_SIGNAL_S = 0.25  # timeout(1) signals its child and then the child's group: torchrun would take that for two
_KILLED = 128  # what shells add to the number of the signal that ended a command


def run_job(
    command: Sequence[str],
    environment: Mapping[str, str],
    on_request: Callable[[int], None],
    kept: KeptOutput | None = None,
    on_start: Callable[[int], None] = lambda group: None,
) -> int:
    """Runs the job. Returns its exit code, 128 + n when signal n killed it. OSError: it cannot be started.

    SIGUSR2 calls `on_request` and is not passed on: it would end every process that does not expect it. Other signals
    call it too before they are passed on, as they may end the job.
    What it prints goes through `kept`, if given. `on_start` gets its process group.
    The job has its own process group: Ctrl-C on the terminal reaches only us, and is passed on once, to all of it.
    """
    job = _Job(on_request)
    handlers = {**dict.fromkeys(_PASSED_ON, job.pass_on), signal.SIGTSTP: job.suspend}
    handlers[signal.SIGUSR2] = lambda number, frame: on_request(number)
    previous = {number: signal.getsignal(number) for number in handlers}
    ignored = [number for number, handler in previous.items() if handler is signal.SIG_IGN]
    for number in handlers.keys() - set(ignored):
        signal.signal(number, handlers[number])
    try:
        sys.stdout.flush()
        try:
            on_start(job.start(command, environment, kept))
        finally:
            if kept is not None:
                kept.job_started()
        # As nohup or a script's & have set it: the job has inherited that, but may have changed its mind, as torchrun.
        for number in set(ignored) & set(_PASSED_ON):
            signal.signal(number, handlers[number])
        return job.wait()
    finally:
        if kept is not None:
            kept.wait()
        for number, handler in previous.items():
            signal.signal(number, handler)
        job.give_terminal_back()


class _Job:
    def __init__(self, on_request: Callable[[int], None]) -> None:
        self._on_request = on_request
        self._process: subprocess.Popen[bytes] | None = None
        self._group = 0
        self._waiting: list[int] = []  # signals that came before there was a job
        self._has_terminal = False
        self._passed_on: dict[int, float] = {}  # signal -> when it came last

    def start(self, command: Sequence[str], environment: Mapping[str, str], kept: KeptOutput | None) -> int:
        own_group: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}
        out, err = (kept.stdout, kept.stderr) if kept is not None else (None, None)
        self._process = subprocess.Popen([*command], env=dict(environment), stdout=out, stderr=err, **own_group)
        self._group = self._process.pid
        for number in self._waiting:
            self._send(number)
        return self._group

    def wait(self) -> int:
        while True:
            _, status = os.waitpid(self._group, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                code = os.waitstatus_to_exitcode(status)
                if self._process is not None:
                    self._process.returncode = code  # else it would still wait for it
                return _KILLED - code if code < 0 else code
            wants_terminal = os.WSTOPSIG(status) in (signal.SIGTTIN, signal.SIGTTOU)
            if wants_terminal and _is_in_foreground():
                _set_foreground(self._group)
                self._has_terminal = True
            else:
                self._stop_with_it()
            self._send(signal.SIGCONT)

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._passed_on.get(number, -_SAME_SIGNAL_S) < _SAME_SIGNAL_S:
            return
        self._passed_on[number] = now
        if self._group:
            if number in _MAY_END:
                self._on_request(number)
            self._send(number)
        else:
            self._waiting.append(number)

    def suspend(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-Z: the job stops first, and waiting for it then stops us."""
        self.pass_on(number, frame)

    def give_terminal_back(self) -> None:
        if self._has_terminal:
            _set_foreground(os.getpgrp())
            self._has_terminal = False

    def _stop_with_it(self) -> None:
        """Comes back when the shell has continued us."""
        self.give_terminal_back()
        os.kill(os.getpid(), signal.SIGSTOP)

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._group, number)


def _is_in_foreground() -> bool:
    try:
        return os.tcgetpgrp(_STDIN) == os.getpgrp()
    except OSError:  # no terminal
        return False


def _set_foreground(group: int) -> None:
    """Makes the group the one that may read from the terminal."""
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # else it would stop us where we are in the background
    try:
        with suppress(OSError):
            os.tcsetpgrp(_STDIN, group)
    finally:
        signal.signal(signal.SIGTTOU, before)
