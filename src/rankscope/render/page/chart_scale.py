"""Numbers for charts: units, and ticks at round numbers."""

from __future__ import annotations

import math
from typing import NamedTuple


class Unit(NamedTuple):
    """What the numbers of one chart or column are shown in, so that they can be compared at a glance."""

    size: float
    name: str

    def text(self, value: float) -> str:
        """With the unit: 89.1 ms."""
        return f"{self.number(value)} {self.name}".rstrip()

    def number(self, value: float) -> str:
        """No finer than a thousandth: anything smaller is invisible in its chart."""
        return number_text(round(value / self.size, 3) if self.name else value / self.size)


PERCENT = Unit(1, "%")
PLAIN = Unit(1, "")
_TIME_UNITS = (Unit(1e9, "s"), Unit(1e6, "ms"), Unit(1e3, "us"), Unit(1, "ns"))
_SIZE_UNITS = (Unit(1e9, "GB"), Unit(1e6, "MB"), Unit(1e3, "kB"), Unit(1, "B"))


def time_unit(largest_ns: float) -> Unit:
    """The largest unit that the value fills at least once."""
    return next((unit for unit in _TIME_UNITS if largest_ns >= unit.size), _TIME_UNITS[-1])


def size_unit(largest_bytes: float) -> Unit:
    return next((unit for unit in _SIZE_UNITS if largest_bytes >= unit.size), _SIZE_UNITS[-1])


def number_text(value: float) -> str:
    """Three digits that count; large ones whole, with commas."""
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "infinite" if value > 0 else "-infinite"
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e15:
        rounded = float(f"{value:.3g}") if abs(value) < 1000 else round(value)
        digits = max(0, 2 - math.floor(math.log10(abs(rounded))))
        shown = f"{rounded:,.{digits}f}"
        return shown.rstrip("0").rstrip(".") if "." in shown else shown
    return f"{value:.2e}"


def ticks(low: float, high: float, n_wanted: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) from `low` to `high`."""
    span = high - low
    if not (math.isfinite(span) and span > 0):
        return [low] if math.isfinite(low) else []
    rough = span / n_wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * min((1, 2, 5, 10), key=lambda factor: abs(math.log(factor * power / rough)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def tick_texts(at: list[float], unit: Unit) -> list[str]:
    """With as many digits as the distance of the ticks needs. The ticks are in the unit already."""
    step = at[1] - at[0] if len(at) > 1 else 0.0
    digits = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else None
    is_plain = digits is not None and digits <= 6 and max(map(abs, at)) < 1e15
    return [
        f"{tick:,.{digits}f} {unit.name}".rstrip() if is_plain else f"{number_text(tick)} {unit.name}".rstrip()
        for tick in at
    ]


def whole_ticks(low: int, high: int, n_wanted: int = 8) -> list[int]:
    """The same for what is counted."""
    return [int(tick) for tick in ticks(low, high, n_wanted) if tick == int(tick)] or [low]
