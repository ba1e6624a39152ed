"""Times of torch's log lines: month, day and local time. Year and zone are learned from records with absolute times."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Sequence

import numpy as np

from rankscope.model.numbers import whole
from rankscope.model.tables import MISSING, Array

_STAMP_BYTES = 20
_DIGITS = [0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 16, 17, 18, 19]  # of MMDD HH:MM:SS.ffffff
_WEIGHTS = np.array([1000, 100, 10, 1, *[10, 1] * 3, *(10**power for power in range(5, -1, -1))])
_QUARTER_NS = 15 * 60 * 10**9  # zones differ from UTC by multiples of this
_FURTHEST_ZONE_NS = 15 * 3600 * 10**9  # none is further from UTC than 14 hours
_DAY_NS = 24 * 3600 * 10**9
_MAX_NS = 1 << 62
_UTC = datetime.timezone.utc


class LineClock:
    """Turns `1116 06:18:20.896000` into nanoseconds since the epoch.

    Lines are not younger than their file: the year is the last one that fits, until a record has its absolute time.
    From then on it is the one closest to that.
    """

    def __init__(self, written_ns: int) -> None:
        """`written_ns`: when the file was last written to, or a moment after all of its lines."""
        self._near_ns = written_ns
        self._zone_ns = 0
        self.is_absolute = False

    def anchor(self, stamp: bytes, absolute_ns: float) -> None:
        """Learns year and zone from a record that was written at a known time, unless that makes no sense."""
        if not 0 < absolute_ns < _MAX_NS:
            return
        before = self._near_ns
        self._near_ns, self.is_absolute = whole(absolute_ns), True
        local_ns = whole(self._local_ns([stamp])[0])
        if local_ns == MISSING or abs(local_ns - absolute_ns) > _FURTHEST_ZONE_NS:
            self._near_ns, self.is_absolute = before, False
            return
        self._zone_ns = round((local_ns - absolute_ns) / _QUARTER_NS) * _QUARTER_NS

    def times_ns(self, stamps: Sequence[bytes]) -> Array:
        """All times of a file, MISSING for what is no time."""
        local_ns = self._local_ns(stamps)
        return np.where(local_ns == MISSING, MISSING, local_ns - self._zone_ns)

    def _local_ns(self, stamps: Sequence[bytes]) -> Array:
        """As if the zone were UTC."""
        padded = b"".join(stamp if len(stamp) == _STAMP_BYTES else bytes(_STAMP_BYTES) for stamp in stamps)
        digits = np.frombuffer(padded, np.uint8).reshape(-1, _STAMP_BYTES)[:, _DIGITS].astype(np.int64) - ord("0")
        is_time = ((digits >= 0) & (digits <= 9)).all(axis=1)
        parts = digits * _WEIGHTS
        dates = np.where(is_time, parts[:, :4].sum(axis=1), 0)
        midnights = np.full(10_000, MISSING, np.int64)
        for date in np.bincount(dates).nonzero()[0].tolist():
            days = _midnights_ns(date, self._near_ns)
            if not self.is_absolute:
                days = [day for day in days if day <= self._near_ns + _DAY_NS] or days  # their zone may be ahead of UTC
            midnights[date] = min(days, key=lambda day: abs(day - self._near_ns), default=MISSING)
        hours, minutes, seconds = (parts[:, at : at + 2].sum(axis=1) for at in (4, 6, 8))
        times = midnights[dates] + (hours * 3600 + minutes * 60 + seconds) * 10**9 + parts[:, 10:].sum(axis=1) * 1000
        return np.where(midnights[dates] == MISSING, MISSING, times)


@functools.lru_cache(maxsize=1024)
def _midnights_ns(date: int, near_ns: int) -> list[int]:
    """The beginnings of the day `MMDD` in the years around the given time; none when there is no such day."""
    year = datetime.datetime.fromtimestamp(near_ns / 1e9, _UTC).year
    midnights = []
    for candidate in range(year - 4, year + 2):
        try:
            day = datetime.datetime(candidate, date // 100, date % 100, tzinfo=_UTC)
        except ValueError:  # the 29th of February exists only in some years
            continue
        midnights.append(whole(day.timestamp()) * 10**9)
    return midnights
