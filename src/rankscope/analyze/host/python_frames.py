"""Which of the Python functions in a profiler trace are the user's own code, and where they are."""

from __future__ import annotations

import re

from rankscope.model.finding import Location
from rankscope.model.numbers import integer
from rankscope.model.sql import quote_text

_FRAME = r"^(.*)\((\d+)\): (.*)$"
# Frames of torch, of our collector, of Python itself and of C functions; what is left is the user's own code.
_FOREIGN = r"^<|^nn\.Module: |(^|/)torch/|(^|/)rankscope/collect/|/lib/python\d|^(runpy|threading|contextlib)\.py\("


def is_own(column: str) -> str:
    """The SQL condition that a function in `python_calls` belongs to the user's code."""
    users, foreign = (f"regexp_matches({column}, {quote_text(pattern)})" for pattern in (_FRAME, _FOREIGN))
    return f"({users} AND NOT {foreign})"


def location_of(name: str) -> Location | None:
    """`train.py(12): step` as a place in the code."""
    frame = re.match(_FRAME, name)
    return Location(frame.group(1), integer(frame.group(2)), frame.group(3)) if frame else None
