"""One line on stderr while something takes long: what is being done, how much is done, how long the rest takes."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from rankscope.commands.interrupts import note
from rankscope.render.escape import escape

if TYPE_CHECKING:
    from types import TracebackType

DELAY_S = 0.7
INTERVAL_S = 0.1
_TICK_S = 1.0
_BAR_WIDTH = 30
_TO_START, _CLEAR_LINE = "\r", "\x1b[K"


class Progress:
    """Drawn only on a terminal, and only once the wait is long enough to make one wonder.

    It repaints from within the calls, and once per second from a timer's signal while no call comes: a thread would not
    go with readers that fork, and database and file operations let signals through.
    """

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._next_paint = time.monotonic() + DELAY_S
        self._started = time.monotonic()  # what is being done now
        self._state = (0, 0, "")
        self._is_painting = self._is_painted = False
        self._previous: Any = None

    def __enter__(self) -> Progress:
        if self._is_shown and hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGALRM, self._tick)
            signal.siginterrupt(signal.SIGALRM, False)
            signal.setitimer(signal.ITIMER_REAL, DELAY_S, _TICK_S)
        return self

    def __call__(self, done: int, total: int, what: str) -> None:
        if what != self._state[2]:
            self._started = time.monotonic()
        self._state = (done, total, what)
        if self._is_shown and time.monotonic() >= self._next_paint:
            self._paint()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._previous)
            self._previous = None
        if self._is_painted:
            _write(_TO_START + _CLEAR_LINE)
        done, total, what = self._state
        if isinstance(error, KeyboardInterrupt) and what:
            note(error, doing=f"{what} ({done:,} of {total:,} done)" if total else what)

    def _tick(self, *_: object) -> None:
        if self._state[2] and not self._is_painting:
            self._paint()

    def _paint(self) -> None:
        self._is_painting = self._is_painted = True
        try:
            now = time.monotonic()
            self._next_paint = now + INTERVAL_S
            line = progress_line(*self._state, now - self._started)
            _write(_TO_START + line[: shutil.get_terminal_size().columns - 1] + _CLEAR_LINE)
        finally:
            self._is_painting = False


def progress_line(done: int, total: int, what: str, elapsed_s: float) -> str:
    """`reading files [###...] 3/8 0:12, 0:20 left`; without a total, how far it is cannot be said."""
    line = escape(what)
    if total:
        n_filled = _BAR_WIDTH * min(done, total) // total
        line += f" [{'#' * n_filled}{'.' * (_BAR_WIDTH - n_filled)}] {done:,}/{total:,}"
    line += f" {_clock(elapsed_s)}"
    return f"{line}, {_clock(elapsed_s * (total - done) / done)} left" if 0 < done < total else line


def _clock(seconds: float) -> str:
    minutes, left = divmod(int(seconds), 60)
    return f"{minutes}:{left:02}"


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
