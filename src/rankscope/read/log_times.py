"""Times of torch's log lines: month, day and local time. Year and zone are learned from records with absolute times."""

from __future__ import annotations

import datetime
import functools

_QUARTER_NS = 15 * 60 * 10**9  # zones differ from UTC by multiples of this
_UTC = datetime.timezone.utc


class LineClock:
    """Turns `1116 06:18:20.896000` into nanoseconds since the epoch."""

    def __init__(self, near_ns: int) -> None:
        """`near_ns`: when the file was written, for as long as no record tells better."""
        self.year = datetime.datetime.fromtimestamp(near_ns / 1e9, _UTC).year
        self.zone_ns = 0
        self.is_absolute = False

    def local_ns(self, stamp: bytes) -> int:
        """As if the zone were UTC. ValueError when there is no such date."""
        minute = _minute_ns(self.year, stamp[:10])
        return minute + int(stamp[11:13]) * 10**9 + int(stamp[14:20].ljust(6, b"0")) * 1000

    def anchor(self, stamp: bytes, absolute_ns: int) -> None:
        """Learns year and zone from a record that was written at a known time."""
        self.year = datetime.datetime.fromtimestamp(absolute_ns / 1e9, _UTC).year
        # At the turn of the year the local year may be another one: the one that is closest is right.
        best = min(self._offset(stamp, year, absolute_ns) for year in (self.year - 1, self.year, self.year + 1))
        _, self.year, offset = best
        self.zone_ns = round(offset / _QUARTER_NS) * _QUARTER_NS
        self.is_absolute = True

    def _offset(self, stamp: bytes, year: int, absolute_ns: int) -> tuple[int, int, int]:
        try:
            minute = _minute_ns(year, stamp[:10])
        except ValueError:  # the 29th of February exists only in some years
            return 1 << 62, year, 0
        offset = minute + int(stamp[11:13]) * 10**9 - absolute_ns
        return abs(offset), year, offset


@functools.lru_cache(maxsize=4096)
def _minute_ns(year: int, stamp: bytes) -> int:
    """`1116 06:18` of the year."""
    month, day, hour, minute = int(stamp[:2]), int(stamp[2:4]), int(stamp[5:7]), int(stamp[8:10])
    return int(datetime.datetime(year, month, day, hour, minute, tzinfo=_UTC).timestamp()) * 10**9
