"""Notices that the job is stuck, from its first moment to its last. Then everything is dumped, once per phase.

A rank that waits and one that never came both see nothing move: whichever is to blame is dumped too.
"""

from __future__ import annotations

import threading
import time
from typing import Literal

from rankscope.collect.dumps.recorder import STALLED, count_calls, is_initialized
from rankscope.collect.part import Part
from rankscope.collect.run import Run
from rankscope.collect.telling import tell_line

Phase = Literal["starting", "joining", "running", "left", "exiting"]
# What has not happened for the set time. How a reader of the stacks recognizes a stall: see analyze/ending/looks.py.
_REASONS: dict[Phase, str] = {
    "starting": "torch.distributed has not been initialized for {} s",
    "joining": "init_process_group has not returned for {} s",
    "running": STALLED + "{} s",
    "left": "the process has not ended for {} s since destroy_process_group",
    "exiting": "the interpreter has not ended for {} s: a non-daemon thread is still running",
}
# A job may well prepare its data for an hour, or evaluate one after its last collective: nothing is printed then.
_TOLD: tuple[Phase, ...] = ("joining", "running", "exiting")


class Watchdog(Part):
    NAME = "watchdog"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._patience = run.settings.stall_seconds
        self._interval = max(1.0, self._patience / 10)
        self._next_look = 0.0
        self._phase: Phase = "starting"
        self._seen: tuple[int, ...] = ()
        self._progress_at = time.monotonic()
        self._has_joined = self._is_told = False

    def joined(self) -> None:
        self._has_joined = True

    def tick(self) -> None:
        now = time.monotonic()
        if self._patience <= 0 or now < self._next_look or (self.run.world_size < 2 and not is_initialized()):
            return
        self._next_look = now + self._interval
        if self._has_moved():
            self._progress_at, self._is_told = now, False
        elif now - self._progress_at >= self._patience and not self._is_told:
            self._is_told = True
            self._tell(_REASONS[self._phase].format(f"{self._patience:g}"))

    def _has_moved(self) -> bool:
        phase = self._find_phase()
        counts = count_calls()
        # Calls that a job enqueues without waiting for them are no progress.
        seen = (self.run.n_steps, counts.completed if counts else 0)
        moved = (phase, seen) != (self._phase, self._seen)
        self._phase, self._seen = phase, seen
        tracked = getattr(self.run.part("desync"), "last_progress", lambda: None)()
        if tracked is not None and tracked > self._progress_at:
            self._progress_at = tracked
        return moved

    def _find_phase(self) -> Phase:
        if not threading.main_thread().is_alive():  # the interpreter waits for threads, before what atexit was given
            return "exiting"
        if is_initialized():
            self._has_joined = True
            return "running"
        if self.run.is_joining:
            return "joining"
        return "left" if self._has_joined else "starting"

    def _tell(self, reason: str) -> None:
        before = self._files()
        self.run.dump(reason)
        if self._phase not in _TOLD:
            return
        written = [name for name, look in self._files().items() if look != before.get(name)]
        outcome = f"wrote {', '.join(written)} to {self.run.folder}" if written else "nothing could be written"
        tell_line(f"rank {self.run.rank}: {reason}: {outcome}")

    def _files(self) -> dict[str, tuple[int, int]]:
        looks = {}
        for got in self.run.describe()["got"]:
            try:
                status = (self.run.folder / got["file"]).stat()
            except OSError:
                continue
            looks[got["file"]] = (status.st_ino, status.st_mtime_ns)
        return looks
