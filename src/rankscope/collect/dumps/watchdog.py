"""Notices that the job is stuck: no collective has finished for a set time. Then everything is dumped, once."""

from __future__ import annotations

import time

from rankscope.collect.dumps.recorder import count_calls, is_initialized
from rankscope.collect.part import Part
from rankscope.collect.run import Run
from rankscope.collect.telling import tell_line


class Watchdog(Part):
    """A rank that waits and one that never came both see no collective finish: whichever is to blame is dumped too."""

    NAME = "watchdog"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._patience = run.settings.stall_seconds
        self._interval = max(1.0, self._patience / 10)
        self._next_look = 0.0
        self._n_completed = 0
        self._progress_at: float | None = None  # None until a collective has finished: starting up may take long
        self._is_told = False

    def tick(self) -> None:
        now = time.monotonic()
        if self._patience <= 0 or now < self._next_look:
            return
        self._next_look = now + self._interval
        if not is_initialized():
            self._progress_at = None
            return
        self._look(now)
        if self._progress_at is None or now - self._progress_at < self._patience:
            self._is_told = False
        elif not self._is_told:
            self._is_told = True
            self._tell(f"no collective has finished for {self._patience:g} s")

    def _look(self, now: float) -> None:
        counts = count_calls()
        if counts and counts.completed and counts.completed != self._n_completed:
            self._n_completed = counts.completed
            self._progress_at = now
        tracked = getattr(self.run.part("desync"), "last_progress", lambda: None)()
        if tracked is not None:
            self._progress_at = max(tracked, self._progress_at or tracked)

    def _tell(self, reason: str) -> None:
        before = self._files()
        self.run.dump(reason)
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
