"""Clocks of hosts are compared through the store; here through one in memory, with a clock that is wrong on purpose."""

from __future__ import annotations

import threading
import time

import pytest

from rankscope.collect import clock


class MemoryStore:
    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self._lock = threading.Lock()

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def add(self, key: str, amount: int) -> int:
        with self._lock:
            self.values[key] = str(int(self.values.get(key, 0)) + amount)
            return int(self.values[key])


@pytest.mark.parametrize("skew_ns", [-7_200_000_000_000, 3_000_000_000])
def test_a_wrong_clock_is_found_within_the_error_that_is_told(skew_ns: int) -> None:
    store, ended = MemoryStore(), threading.Event()
    answering = threading.Thread(target=clock.answer, args=(store, "one", 2, ended))
    answering.start()
    try:
        assert clock.ask(store, "one", ended) == (0, 0)
        found = clock.ask(store, "other", ended, lambda: time.time_ns() + skew_ns)
        answering.join(60)  # nobody is left who may ask
        assert not answering.is_alive()
    finally:
        ended.set()
    assert found is not None
    offset, error = found
    assert abs(offset - skew_ns) <= error < 1_000_000_000


def test_processes_of_one_machine_have_one_clock() -> None:
    store, ended = MemoryStore(), threading.Event()
    store.set("rankscope_clock/machine", clock.machine())
    assert clock.ask(store, clock.machine(), ended) == (0, 0)
    assert "rankscope_clock/asked" not in store.values


def test_nobody_waits_for_an_answer_after_the_end() -> None:
    ended = threading.Event()
    ended.set()
    assert clock.ask(MemoryStore(), "other", ended) is None
