"""Reads the states of many ranks from a store in few round trips, for a report that asks for one key at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

_KEYS_PER_TRIP = 256


class Prefetched:
    """The keys given, as check() and get() show them. A store has no way to ask which of many keys it has, so a bundle
    of which some are missing is halved until all, or none, are there.
    """

    def __init__(self, store: Any, keys: Sequence[str], seconds: float) -> None:
        self._store = store
        self._deadline = time.monotonic() + seconds
        self._values: dict[str, bytes] = {}
        self.failure: Exception | None = None
        try:
            for first in range(0, len(keys), _KEYS_PER_TRIP):
                self._fetch(list(keys[first : first + _KEYS_PER_TRIP]))
        except Exception as error:  # told to whoever asks for what is not there
            self.failure = error

    def check(self, keys: list[str]) -> bool:
        missing = [key for key in keys if key not in self._values]
        if missing and self.failure is not None:
            raise self.failure
        return not missing

    def get(self, key: str) -> bytes:
        return self._values[key]

    def _fetch(self, keys: list[str]) -> None:
        if time.monotonic() > self._deadline:
            raise TimeoutError("reading the states of all ranks took too long")
        if self._store.check(keys):
            self._values.update(zip(keys, self._store.multi_get(keys), strict=True))
        elif len(keys) > 1:
            half = len(keys) // 2
            self._fetch(keys[:half])
            self._fetch(keys[half:])
