"""Groups of ranks as simulators see them: from the METADATA nodes of the same file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from rankscope.analyze.chakra.columns import RankGraph
from rankscope.model.chakra import METADATA
from rankscope.model.numbers import integer

WORLD = ""
_WORLD_NAMES = ("", "0")
_LARGEST_NAME = 2**31 - 1  # the simulator reads names into 32 bits
# The list is written as Python prints it, so that a bracket and a quote stand at both ends; the feeder cuts them off.
_CUT = 2


class Misdescription(NamedTuple):
    row: int
    reason: str


@dataclass(frozen=True)
class Groups:
    """The groups that one file speaks of."""

    described: dict[str, tuple[int, ...]]  # ranks by name
    mistakes: list[Misdescription]
    names: list[str]  # of the group of each comm node, in the order of RankGraph.comm_rows


class _Described(msgspec.Struct):
    pg_name: str
    ranks: list[int]


def groups_of(graph: RankGraph, world: Sequence[int]) -> Groups:
    described: dict[str, tuple[int, ...]] = {WORLD: tuple(world)}
    mistakes: list[Misdescription] = []
    for row in np.flatnonzero(graph.type == METADATA).tolist():
        try:
            groups = _read_groups(graph.nodes[row].inputs.values)
        except msgspec.MsgspecError as error:
            mistakes.append(Misdescription(row, f"its input is not a list of groups: {error}."))
            continue
        for group in groups:
            if not is_group_number(group.pg_name):
                mistakes.append(Misdescription(row, f"the group name {group.pg_name!r} is not a decimal number."))
            elif group.pg_name not in _WORLD_NAMES:
                described[str(int(group.pg_name))] = tuple(sorted(group.ranks)) or tuple(world)
    attributes = (graph.attribute(row, "pg_name") for row in graph.comm_rows.tolist())
    written = [str(a.value) if a is not None and a.kind == "string" else WORLD for a in attributes]
    return Groups(described, mistakes, [_canonical(name) for name in written])


def world_of(graphs: Sequence[RankGraph]) -> tuple[int, ...]:
    """The ranks whose files are there."""
    return tuple(sorted({graph.rank for graph in graphs if graph.rank is not None}))


def is_group_number(name: str) -> bool:
    return integer(name, _LARGEST_NAME) >= 0


def _read_groups(text: str) -> list[_Described]:
    if text in ("", "[]"):
        return []
    return msgspec.json.decode(text[_CUT:-_CUT].encode(), type=list[_Described])


def _canonical(name: str) -> str:
    if name in _WORLD_NAMES:
        return WORLD
    return str(int(name)) if is_group_number(name) else name
