"""Numbers from files. They are ids, never sizes: each is bounded, and nothing is ever as long as a number says.

The only place that turns text into integers: `isdigit` takes "²", `int` takes "٣" and "1_0", and hangs on 5,000 digits.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, SupportsInt

if TYPE_CHECKING:
    import numpy as np

UNKNOWN = -1  # as everywhere in the tables
MAX_ID = (1 << 31) - 1  # what columns of ids hold
MAX_LONG = 1 << 62  # nanoseconds, bytes, sequence numbers: sums of two still fit in 64 bits
MAX_RANKS = 1 << 18  # several times the largest cluster: a higher rank is a time stamp, damage or an attack
_MAX_DIGITS = 19
_INTEGER = re.compile(rb"[+-]?[0-9]{1,19}")


def integer(text: str | bytes | None, most: int = MAX_ID, *, default: int = UNKNOWN) -> int:
    """The number that the text is, in plain digits; the default when it is none, or is absurd."""
    if text is None or len(text) > _MAX_DIGITS + 1:
        return default
    plain = text.encode("utf-8", "replace") if isinstance(text, str) else text
    if _INTEGER.fullmatch(plain) is None:
        return default
    number = int(plain)
    return number if -most <= number <= most else default


def rank_number(text: str | bytes | None) -> int:
    """A rank; unknown when no job has so many."""
    return integer(text, MAX_RANKS - 1)


def is_number(text: str | bytes) -> bool:
    """Plain digits, as many as an id may have."""
    return text.isascii() and text.isdigit() and integer(text) != UNKNOWN


def whole(number: float | np.number | SupportsInt) -> int:
    """What is already a number, as a plain integer."""
    if isinstance(number, (str, bytes)):
        raise TypeError("text is not a number: integer() reads it")
    return int(number)
