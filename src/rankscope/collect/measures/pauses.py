"""How long Python's garbage collector held the job up."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator


class Pauses:
    """Collections run in the thread that triggers them, and all others wait: their time is the step's time."""

    def __init__(self) -> None:
        self._began_ns = self._total_ns = 0

    def install(self) -> None:
        gc.callbacks.append(self._on_collection)

    def remove(self) -> None:
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)

    def take(self) -> Iterator[tuple[str, float]]:
        total, self._total_ns = self._total_ns, 0
        if total:
            yield "gc_time_s", total / 1e9

    def _on_collection(self, phase: str, _about: dict[str, int]) -> None:
        if phase == "start":
            self._began_ns = time.monotonic_ns()
        elif self._began_ns:
            self._total_ns += time.monotonic_ns() - self._began_ns
            self._began_ns = 0
