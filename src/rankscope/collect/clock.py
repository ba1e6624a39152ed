"""How far this host's clock is from that of rank 0: a few questions and answers through the job's store.

Ranks on one machine have one clock, whatever container they are in. The others ask rank 0 for the time; half of the
way there and back is what the answer may be wrong by.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from rankscope.collect.part import Part
from rankscope.collect.stores import own_connection

if TYPE_CHECKING:
    from rankscope.collect.run import Run

_PREFIX = "rankscope_clock"
_ROUNDS = 8
_ANSWERING_SECONDS = 120.0  # ranks that come later than this go without
_IDLE_SECONDS, _EAGER_SECONDS = 0.05, 0.0002
_EAGER_FOR_SECONDS = 0.1


class Clock(Part):
    NAME: ClassVar[str] = "clock"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self.run.world_size == 1:
            self._found(0, 0)

    def joined(self) -> None:
        from torch.distributed.distributed_c10d import _get_default_store

        if self.run.world_size > 1 and self._thread is None:
            store = own_connection(_get_default_store())
            self._thread = threading.Thread(target=self._talk, args=(store,), name="rankscope-clock", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._ended.set()
        if self._thread:
            self._thread.join(2.0)

    def _talk(self, store: Any) -> None:
        try:
            if self.run.rank == 0:
                self._found(0, 0)
                answer(store, machine(), self.run.world_size - 1, self._ended)
            elif offset := ask(store, machine(), self._ended):
                self._found(*offset)
        except Exception as error:
            if self.run.clock_offset_ns is None and not self._ended.is_set():
                self.run.problem(self.NAME, f"could not read rank 0's clock through the store: {error}")

    def _found(self, offset_ns: int, error_ns: int) -> None:
        self.run.clock_offset_ns, self.run.clock_error_ns = offset_ns, error_ns


def machine() -> str:
    """The same for all processes that share a clock."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return stream.read().strip()
    except OSError:
        return socket.gethostname()


def answer(
    store: Any, name: str, n_others: int, ended: threading.Event, now_ns: Callable[[], int] = time.time_ns
) -> None:
    """Answers requests for the time, one after the other, until no process is left that may ask."""
    store.set(f"{_PREFIX}/machine", name)
    number, eager_until = 1, 0.0
    last = time.monotonic() + _ANSWERING_SECONDS
    while not ended.is_set() and time.monotonic() < last and store.add(f"{_PREFIX}/content", 0) < n_others:
        if store.check([f"{_PREFIX}/ask/{number}"]):
            store.set(f"{_PREFIX}/told/{number}", str(now_ns()))
            number += 1
            eager_until = time.monotonic() + _EAGER_FOR_SECONDS
        else:
            ended.wait(_EAGER_SECONDS if time.monotonic() < eager_until else _IDLE_SECONDS)


def ask(
    store: Any, name: str, ended: threading.Event, now_ns: Callable[[], int] = time.time_ns
) -> tuple[int, int] | None:
    """(offset of this clock against rank 0's, what it may be wrong by); None when rank 0 does not answer in time."""
    last = time.monotonic() + _ANSWERING_SECONDS
    if not _wait(store, f"{_PREFIX}/machine", ended, last):
        return None
    if store.get(f"{_PREFIX}/machine").decode() == name:
        store.add(f"{_PREFIX}/content", 1)
        return 0, 0
    best: tuple[int, int] | None = None
    for _ in range(_ROUNDS):
        number = store.add(f"{_PREFIX}/asked", 1)
        before = now_ns()
        store.set(f"{_PREFIX}/ask/{number}", "")
        if not _wait(store, f"{_PREFIX}/told/{number}", ended, last):
            break
        after = now_ns()
        offset = (before + after) // 2 - int(store.get(f"{_PREFIX}/told/{number}"))
        error = (after - before) // 2
        best = min(best, (offset, error), key=lambda pair: pair[1]) if best else (offset, error)
    store.add(f"{_PREFIX}/content", 1)
    return best


def _wait(store: Any, key: str, ended: threading.Event, last: float) -> bool:
    """Polls rather than blocks: a thread that waits in C++ while the interpreter ends can take the process with it."""
    while not store.check([key]):
        if time.monotonic() > last or ended.wait(_EAGER_SECONDS if "/told/" in key else _IDLE_SECONDS):
            return False
    return True
