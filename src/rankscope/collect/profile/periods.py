"""The period of a sequence: how many calls there are until it repeats."""

from __future__ import annotations

from collections import deque

_N_REPEATS = 3
_N_FIRST = 48  # calls before the first search: a few equal calls in a row are no period yet
_N_KEPT = 6000
_N_SEARCHES = 20  # each takes some milliseconds: a job that never repeats itself is left in peace


class Periods:
    """Takes one call after another, and says where the sequence repeats."""

    def __init__(self) -> None:
        self._calls: deque[int] = deque(maxlen=_N_KEPT)
        self._n_until_search = self._n_evidence = _N_FIRST
        self._n_searches_left = _N_SEARCHES
        self._period: list[int] = []
        self._position = 0

    def begins(self, call: int) -> bool:
        """Whether `call` is the first one of a period; always False as long as none is known."""
        if self._period:
            if call == self._period[self._position]:
                self._position = (self._position + 1) % len(self._period)
                return self._position == 1 % len(self._period)
            # What looked like a period was part of a longer one.
            self._calls.extend(self._period[: self._position])
            self._period = []
            self._n_evidence = min(2 * self._n_evidence, _N_KEPT)
            self._n_until_search = self._n_evidence
        self._calls.append(call)
        self._n_until_search -= 1
        if self._n_until_search <= 0 and self._n_searches_left:
            self._n_searches_left -= 1
            self._search()
        return False

    def _search(self) -> None:
        calls = list(self._calls)
        n_period = _period(calls, self._n_evidence)
        if n_period:
            self._period, self._position = calls[-n_period:], 0
            self._calls.clear()
        else:
            self._n_until_search = max(len(calls) // 2, _N_FIRST)


def _period(calls: list[int], n_evidence: int) -> int:
    """The shortest one that the last calls have repeated often enough; 0: none."""
    for n_period in range(1, len(calls) // _N_REPEATS + 1):
        if calls[-1] != calls[-1 - n_period] or calls[-2] != calls[-2 - n_period]:
            continue  # most of them, without a copy
        n_looked_at = max(_N_REPEATS * n_period, min(n_evidence, len(calls)))
        recent = calls[-n_looked_at:]
        if recent[n_period:] == recent[:-n_period]:
            return n_period
    return 0
