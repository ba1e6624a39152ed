"""The bar on stderr while something takes long: what is being done, how much of it is done, how long the rest takes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from rankscope.commands.interrupts import note

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import Progress as Bar
    from rich.progress import TaskID

DELAY_S = 0.7
INTERVAL_S = 0.1
_TICK_S = 1.0


class Progress:
    """Drawn only on a terminal, and only once the wait is long enough to make one wonder.

    It repaints from within the calls, and once per second from a timer's signal while no call comes: a thread would not
    go with readers that fork, and database and file operations let signals through.
    """

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._next_paint = time.monotonic() + DELAY_S
        self._state = (0, 0, "")
        self._is_painting = False
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._previous: Any = None

    def __enter__(self) -> Progress:
        if self._is_shown and hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGALRM, self._tick)
            signal.siginterrupt(signal.SIGALRM, False)
            signal.setitimer(signal.ITIMER_REAL, DELAY_S, _TICK_S)
        return self

    def __call__(self, done: int, total: int, what: str) -> None:
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
        if self._bar is not None:
            self._bar.stop()
        done, total, what = self._state
        if isinstance(error, KeyboardInterrupt) and what:
            note(error, doing=f"{what} ({done:,} of {total:,} done)" if total else what)

    def _tick(self, *_: object) -> None:
        if self._state[2] and not self._is_painting:
            self._paint()

    def _paint(self) -> None:
        self._is_painting = True
        try:
            self._next_paint = time.monotonic() + INTERVAL_S
            done, total, what = self._state
            if self._bar is None or self._task is None:
                self._bar, self._task = _start_bar(what)
            self._bar.update(self._task, completed=done, total=total or None, description=what, refresh=True)
        finally:
            self._is_painting = False


def _start_bar(what: str) -> tuple[Bar, TaskID]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    # No markup: the description may be a file's name.
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
    task = bar.add_task(what, total=None)
    bar.start()
    return bar, task
