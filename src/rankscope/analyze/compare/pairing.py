"""What is the same thing in two captures: code moves, files move, generated names are renumbered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple, TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")


class Spot(NamedTuple):
    """A line of code; `detail` is what must be the same for two of them to be one."""

    file: str
    line: int
    function: str
    detail: Hashable = ()


_SAME_SPOT: Sequence[Callable[[Spot], Hashable]] = (
    lambda spot: spot,
    lambda spot: (spot.file, spot.function, spot.detail),
    lambda spot: (PurePath(spot.file).name, spot.function, spot.detail),
)


def paired_spots(old: Mapping[Spot, Value], new: Mapping[Spot, Value]) -> Iterator[tuple[Spot | None, Spot | None]]:
    """Each spot once, with its counterpart where there is one: the surest likeness first, then the nearest line."""
    yield from pair_up(list(old), list(new), _SAME_SPOT, _line_drift)


def _line_drift(ours: Spot, theirs: Spot) -> tuple[Any, ...]:
    return abs(ours.line - theirs.line), ours[:3], theirs[:3]


def pair_up(
    old: Sequence[Item],
    new: Sequence[Item],
    likenesses: Sequence[Callable[[Item], Hashable]],
    distance: Callable[[Item, Item], Any],
) -> Iterator[tuple[Item | None, Item | None]]:
    """Each item once, with its counterpart where there is one: by the first likeness that holds, then the nearest."""
    left, right = dict.fromkeys(range(len(old))), dict.fromkeys(range(len(new)))
    for same in likenesses:
        by_key: dict[Hashable, list[int]] = defaultdict(list)
        for position in right:
            by_key[same(new[position])].append(position)
        pairs = [(ours, theirs) for ours in left for theirs in by_key.get(same(old[ours]), ())]
        for ours, theirs in sorted(pairs, key=lambda pair: distance(old[pair[0]], new[pair[1]])):
            if ours in left and theirs in right:
                del left[ours], right[theirs]
                yield old[ours], new[theirs]
    yield from ((old[position], None) for position in left)
    yield from ((None, new[position]) for position in right)
