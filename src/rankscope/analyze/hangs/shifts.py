"""How one sequence of calls fits another again after their first difference, however long the run in between is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from rankscope.model.tables import Array

_SMALL = 4  # calls left out or added that a single call after them may show
_LONGEST = {"skipped": 64, "repeated": 8}  # calls left out or added that fewer calls after them may show
ALL = 1 << 30


@dataclass(frozen=True)
class Shift:
    """How a rank's calls fit the reference again: it left out n calls, made n more, swapped two, or made one other."""

    kind: Literal["skipped", "repeated", "swapped", "replaced"]
    n_calls: int
    n_agreeing: int  # calls after it that match the reference when shifted
    n_again: int = field(default=0, compare=False)  # calls made once more that are those right before

    @property
    def n_explained(self) -> int:
        """How many of the rank's calls it explains: a call right after itself needs no other reason."""
        return self.n_agreeing + self.n_again

    @property
    def cost(self) -> int:
        """How much has to be assumed: calls are left out more often than made once more."""
        return 2 * self.n_calls if self.kind == "repeated" else self.n_calls


def explain_shift(
    actual: Sequence[int], expected: Sequence[int], previous: int | None, n_enough: int = ALL
) -> Shift | None:
    """How `actual` (from the first difference on) fits `expected`: calls left out, made once more, or swapped.

    All calls that both have must agree then, or the first `n_enough` of them.
    """
    n_both = min(len(actual), len(expected))
    is_swapped = len(actual) > 1 and tuple(actual[:2]) == tuple(expected[1::-1])
    n_after = _agreement(actual[2:], expected[2:], n_enough) if is_swapped else 0
    if is_swapped and (n_after or n_both == 2):
        return Shift("swapped", 1, n_after + 2)
    n_after = _agreement(actual[1:], expected[1:], n_enough)
    if n_after:
        return Shift("replaced", 1, n_after)
    shifts = [*_shifts("skipped", actual, expected, n_enough), *_shifts("repeated", expected, actual, n_enough)]
    is_again = previous is not None and bool(actual) and actual[0] == previous
    shifts = [
        replace(shift, n_again=int(is_again and (shift.kind, shift.n_calls) == ("repeated", 1))) for shift in shifts
    ]
    best = max(shifts, key=lambda shift: (shift.n_explained, -shift.cost, shift.kind == "skipped"), default=None)
    # One call, found again only far away, is more likely the one before it once more.
    if is_again and (best is None or (best.n_agreeing == 1 and best.n_calls > _SMALL)):
        return Shift("repeated", 1, 0, n_again=1)
    return best


def _shifts(
    kind: Literal["skipped", "repeated"], shorter: Sequence[int], longer: Sequence[int], n_enough: int
) -> Iterator[Shift]:
    """All numbers of calls that can be taken from the start of `longer` so that the rest fits `shorter`."""
    for n_calls, n_equal in enumerate(_common_prefixes(shorter, longer)):
        n_both = min(len(shorter), len(longer) - n_calls)
        if not n_calls or not n_equal or n_equal < min(n_both, n_enough):
            continue
        # Far away a single call is found by chance, unless it is all that the rank has made since.
        is_all = kind == "skipped" and n_equal == len(shorter)
        is_credible = n_calls <= max(n_equal, _LONGEST[kind])
        if n_calls <= _SMALL or (is_credible and (n_equal > 1 or is_all)):
            yield Shift(kind, n_calls, n_equal)


def _agreement(first: Sequence[int], second: Sequence[int], n_enough: int) -> int:
    n_both = min(len(first), len(second))
    n_equal = next((n for n in range(n_both) if first[n] != second[n]), n_both)
    return n_equal if n_equal >= min(n_both, n_enough) else 0


def _common_prefixes(short: Sequence[int], long: Sequence[int]) -> list[int]:
    """For each place of `long` how many calls from there on are those that `short` begins with (Z algorithm)."""
    whole = [*short, None, *long]
    lengths = [0] * len(whole)
    left = right = 0  # the part found furthest to the right that equals the beginning
    for position in range(1, len(whole)):
        length = min(right - position, lengths[position - left]) if position < right else 0
        while (
            position + length < len(whole) and whole[length] == whole[position + length] and whole[length] is not None
        ):
            length += 1
        lengths[position] = length
        if position + length > right:
            left, right = position, position + length
    return lengths[len(short) + 1 :]


def since_mark(tokens: Array, places: Array | int) -> Array:
    """How many calls before each place the rarest call was made that was made more than once: the mark of a step."""
    values, counts = np.unique(tokens, return_counts=True)
    repeated = counts > 1
    if not repeated.any():
        return np.zeros_like(places)
    marks = np.flatnonzero(tokens == values[repeated][np.argmin(counts[repeated])])
    last = np.searchsorted(marks, places) - 1
    return np.where(last >= 0, places - marks[last], places)
