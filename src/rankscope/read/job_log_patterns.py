"""How a message of a job's output is described: a word that must be in the line, an expression, names of its fields."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

Fields = dict[str, Any]

MAX_TEXT = 400
INT = r"(-?\d{1,18})"


class Pattern(NamedTuple):
    kind: str
    mark: str  # must be in the line: searched for before the expression is tried
    expression: re.Pattern[str]
    fields: Callable[[re.Match[str]], Fields]


def named(*names: str) -> Callable[[re.Match[str]], Fields]:
    """Groups of the match by name; numbers as numbers."""

    def fields(match: re.Match[str]) -> Fields:
        values = {name: match.group(number) for number, name in enumerate(names, 1)}
        return {name: value_of(value) for name, value in values.items() if value is not None}

    return fields


def value_of(text: str) -> int | str:
    digits = text.removeprefix("-")
    return int(text) if digits.isdecimal() and len(digits) <= 18 else text[:MAX_TEXT].strip()


def says(kind: str, mark: str, expression: str = "", *names: str) -> Pattern:
    """Without an expression, the mark itself is the message."""
    return Pattern(kind, mark, re.compile(expression or re.escape(mark)), named(*names))
