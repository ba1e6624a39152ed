"""When a line was written: stamps without a year or a zone, put beside those of the same text that have them."""

from __future__ import annotations

import calendar
import time
from collections import Counter

from rankscope.model.tables import MISSING
from rankscope.read.job_log_lines import Line

_QUARTER_NS = 15 * 60 * 10**9  # zones differ by quarters of an hour
_SURE_NS = 2 * 60 * 10**9  # how late a collector may be
_MAX_ZONE_NS = 14 * 3600 * 10**9


class LogClock:
    """Lines with two stamps show how far a host's own zone is from UTC; dated ones show the year."""

    def __init__(self) -> None:
        self._dated_ns = MISSING
        self._pairs: list[tuple[int, int]] = []

    def note(self, line: Line) -> None:
        if line.is_dated:
            self._dated_ns = line.time_ns
        if line.is_zoned and line.inner_ns != MISSING and len(self._pairs) < 1000:
            self._pairs.append((line.time_ns, line.inner_ns))

    def note_date(self, moment_ns: int) -> None:
        """A date that is not at the beginning of a line."""
        if moment_ns != MISSING:
            self._dated_ns = moment_ns

    def settled_ns(self, line: Line) -> int:
        if line.time_ns == MISSING:
            return MISSING
        moment = line.time_ns
        if not line.is_dated and self._dated_ns != MISSING:
            moment = near_year_ns(moment, self._dated_ns)
        return moment if line.is_zoned else moment + self.shift_ns()

    def shift_ns(self) -> int:
        """What makes UTC of a stamp without a zone: 0 where no line has two stamps."""
        shifts: Counter[int] = Counter()
        for collected, printed in self._pairs:
            shift = collected - near_year_ns(printed, collected)
            whole = round(shift / _QUARTER_NS) * _QUARTER_NS
            if abs(shift - whole) <= _SURE_NS and abs(whole) <= _MAX_ZONE_NS:
                shifts[whole] += 1
        return shifts.most_common(1)[0][0] if len(shifts) == 1 else 0


def near_year_ns(moment_ns: int, other_ns: int) -> int:
    """The same day and time in the year that brings it closest to the other moment."""
    parts = time.gmtime(moment_ns // 10**9)
    year = time.gmtime(other_ns // 10**9).tm_year
    candidates = [
        calendar.timegm((candidate, *parts[1:6])) * 10**9 + moment_ns % 10**9
        for candidate in (year - 1, year, year + 1)
        if parts.tm_mday <= calendar.monthrange(candidate, parts.tm_mon)[1]
    ]
    return min(candidates, key=lambda candidate: abs(candidate - other_ns))
