"""Stacks that are printed without the interpreter: by faulthandler's C code, which the job may use as well.

faulthandler has one timer for the whole process and one file per signal. The job's own use of them goes first; which
files faulthandler has open is found with the garbage collector.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_FATAL_SIGNALS = {signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL}
_NEVER, _GIVEN_UP = -float("inf"), float("inf")

# A child that is forked while the timer runs inherits its locks without its thread, and would wait for that thread for
# ever at its end. So the timer stops for the time of a fork.
_timer_lock = threading.Lock()
_printer: CPrinter | None = None


class CPrinter:
    """Prints into a file aside: when `put_off` has not been called for some time, on a signal, and on a crash."""

    def __init__(self, path: Path, seconds: float) -> None:
        global _printer
        self._path = path
        self._file = Descriptor(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644))
        self._seconds = seconds
        self._armed_at = _NEVER
        self._was_registered = False
        self._timer, self._signal, self._crash = _Target(self._file), _Target(self._file), _Target(self._file)
        if not faulthandler.is_enabled():  # else the job prints crashes itself, where it wants them
            faulthandler.enable(file=self._crash, all_threads=True)  # then does what the process did before
        _printer = self

    def put_off(self) -> None:
        """Sets the timer back. It stops for good when the job starts or cancels faulthandler's timer itself."""
        now = time.monotonic()
        if now - self._armed_at < min(5.0, self._seconds / 4) or not _timer_lock.acquire(blocking=False):
            return
        try:
            may_arm = not _others_use_timer(self._signal) if self._armed_at == _NEVER else _holds(self._timer)
            if not self._file.is_intact():
                self._let_go()
            elif may_arm:
                faulthandler.dump_traceback_later(self._seconds, file=self._timer)
            self._armed_at = now if _holds(self._timer) else _GIVEN_UP
        finally:
            _timer_lock.release()

    def pause(self) -> None:
        if _holds(self._timer):
            faulthandler.cancel_dump_traceback_later()
            self._armed_at = _NEVER

    def leave_crashes(self) -> None:
        if _holds(self._crash):
            faulthandler.disable()

    def print_on(self, number: signal.Signals) -> None:
        """From now on that signal prints, then does what it did. Its handler must be in place, as it is chained."""
        if hasattr(faulthandler, "register"):
            faulthandler.register(number, file=self._signal, all_threads=True, chain=True)
            self._was_registered = True

    def stop_printing_on(self, number: signal.Signals) -> bool:
        """False if the job has faulthandler print into a file of its own by now: then the signal is not touched."""
        is_ours = not self._was_registered or _holds(self._signal)
        if is_ours and self._was_registered:
            faulthandler.unregister(number)
            self._was_registered = False
        return is_ours

    def take(self) -> str:
        """What was printed since the last time. What nobody takes, as the process is killed, stays in the file."""
        printed = self._file.is_intact() and os.pread(self._file.number, os.fstat(self._file.number).st_size, 0)
        if not printed:
            return ""
        os.ftruncate(self._file.number, 0)
        return printed.decode("utf-8", "replace")

    def close(self) -> None:
        global _printer
        _printer = None
        with _timer_lock:
            self._let_go()
            self._armed_at = _GIVEN_UP
        self._file.close()
        self._path.unlink(missing_ok=True)

    def _let_go(self) -> None:
        self.pause()
        self.leave_crashes()
        if _holds(self._signal):
            faulthandler.unregister(signal.SIGUSR2)


class Descriptor:
    """A file of the collector alone. A job that closes all files, as daemons do, may give its number to others."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._file = _identity(number)

    def is_intact(self) -> bool:
        return _identity(self.number) == self._file

    def close(self) -> None:
        if self.is_intact():
            os.close(self.number)


def _identity(number: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(number)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class _Target:
    """A file as faulthandler takes it; one object per use, so that the uses can be distinguished."""

    def __init__(self, file: Descriptor) -> None:
        self._file = file

    def fileno(self) -> int:
        return self._file.number

    def flush(self) -> None:
        """Nothing is buffered."""


def is_caught_in_c(number: int) -> bool:
    """The signal goes to C code that Python's signal module does not know of: faulthandler's, or a library's."""
    return number in set(_caught_in_c())


def _caught_in_c() -> Iterator[signal.Signals]:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return
    mask = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    for number in signal.Signals:
        if mask >> (number - 1) & 1 and signal.getsignal(number) in (signal.SIG_DFL, signal.SIG_IGN, None):
            yield number


def _holds(target: _Target) -> bool:
    return any(held is target for held in gc.get_referents(faulthandler))


def _others_use_timer(ours: _Target) -> bool:
    """More files are held than signals explain. Their order: the timer, the signals by number, crashes."""
    files = [held for held in gc.get_referents(faulthandler) if not isinstance(held, dict)]
    on_signals = set(_caught_in_c()) - _FATAL_SIGNALS
    if ours in files:
        return files.index(ours) > sum(number < signal.SIGUSR2 for number in on_signals)
    return len(files) > len(on_signals) + faulthandler.is_enabled()


def _before_fork() -> None:
    _timer_lock.acquire()
    if _printer is not None:
        _printer.pause()


def _in_child() -> None:
    global _printer
    _timer_lock.release()
    if _printer is not None:
        _printer.leave_crashes()  # they would be taken for the rank's own
    _printer = None


os.register_at_fork(before=_before_fork, after_in_parent=_timer_lock.release, after_in_child=_in_child)
