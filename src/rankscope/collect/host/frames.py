"""Where a thread's Python code is: its frames without those of the collector, and the numbers under which they go."""

from __future__ import annotations

import os
from types import CodeType, FrameType
from typing import Generic, TypeVar

_MAX_DEPTH = 40  # frames
_MAX_STACKS = 20_000
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

Place = tuple[CodeType, int]
Item = TypeVar("Item")


def places(frame: FrameType | None) -> tuple[Place, ...]:
    """From the innermost frame on."""
    stack: list[Place] = []
    while frame is not None and len(stack) < _MAX_DEPTH:
        if not frame.f_code.co_filename.startswith(_OURS):
            stack.append((frame.f_code, frame.f_lineno or 0))  # None between two lines
        frame = frame.f_back
    return tuple(stack)


def texts(stack: tuple[Place, ...]) -> list[list[object]]:
    return [[code.co_filename[-400:], line, code.co_name[:200]] for code, line in stack]


class Numbers(Generic[Item]):
    """One number per different stack or text. What is new since it was last written is kept aside."""

    def __init__(self) -> None:
        self.known: dict[Item, int] = {}
        self.new: list[tuple[int, Item]] = []

    def of(self, item: Item) -> int:
        """-1 when there are too many to remember."""
        number = self.known.get(item)
        if number is None:
            if len(self.known) >= _MAX_STACKS:
                return -1
            number = self.known[item] = len(self.known)
            self.new.append((number, item))
        return number
