"""What the collector reports about the job: what it was asked for, and whether the job ended well.

A job that ended on its own was not hanging, whatever a counter says that was read a moment too early.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from rankscope.analyze.derived import derived
from rankscope.model.numbers import integer, is_number
from rankscope.model.tables import MISSING, Trace

_BY_ITSELF = "exit"
_MAX_RANKS = 1 << 20
_LEFT = "left"  # ended without notice, after its last process group was destroyed
_RANK = "rank"  # the name of the problem of a process that was killed or crashed


def asked_for(row: dict[str, Any]) -> dict[str, Any]:
    """The collector's settings, from a row of manifests."""
    asked = msgspec.json.decode(row["asked"]) if row["asked"] else {}
    return asked if isinstance(asked, dict) else {}


def ended_well(trace: Trace) -> bool:
    """True when it is known: no process failed, and every rank in the capture ended on its own."""
    return derived(trace, _ended_well)


def came_to_an_end(trace: Trace) -> bool:
    """True when all ranks of the job left by themselves, well or not: none of them waits in a call forever."""
    return derived(trace, _came_to_an_end)


class Node(NamedTuple):
    number: int
    host: str
    ranks: tuple[int, ...]
    is_here: bool


def nodes_of(trace: Trace) -> list[Node]:
    """The nodes of the job, as torchrun told the ranks of them; empty where it did not."""
    return derived(trace, _find_nodes)


def ranks_elsewhere(trace: Trace) -> set[int]:
    """Ranks of nodes that did not write into this capture: that they are missing says nothing about them."""
    return {rank for node in nodes_of(trace) if not node.is_here for rank in node.ranks}


def _find_nodes(trace: Trace) -> list[Node]:
    here: dict[int, Node] = {}
    n_nodes = size = 0
    for row in trace.table("manifests").rows():
        variables = msgspec.json.decode(row["environment"]) if row["environment"] else {}
        numbers = [variables.get(name, "") for name in ("GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE")]
        if not all(is_number(str(number)) for number in numbers) or row["local_rank"] == MISSING:
            return []
        number, n_nodes, size = (integer(str(number)) for number in numbers)
        first = row["rank"] - row["local_rank"]
        here[number] = Node(number, row["host"], tuple(range(first, first + size)), True)
    if not here or n_nodes * size > _MAX_RANKS:
        return []
    world = max(trace.table("manifests").array("world_size").tolist())
    others = sorted(set(range(world)) - {rank for node in here.values() for rank in node.ranks})
    absent = [number for number in range(n_nodes) if number not in here]
    if absent and len(others) == len(absent) * size:  # torchrun numbers ranks node by node
        for position, number in enumerate(absent):
            here[number] = Node(number, "", tuple(others[position * size : (position + 1) * size]), False)
    elif absent:
        here[absent[0]] = Node(absent[0], "", tuple(others), False)
    return [here[number] for number in sorted(here)]


def _ended_well(trace: Trace) -> bool:
    manifests = trace.table("manifests")
    if set(manifests.array("exit_code").tolist()) != {0} or not _covers_all_ranks(trace):
        return False
    # A shell can hide that its job failed (`job || true`), so the ranks must say so too. Those recorded by an older
    # collector at least report when they were killed.
    endings = set(manifests.text("ending").tolist())
    return endings <= {_BY_ITSELF, _LEFT} or (endings == {""} and not _were_killed(trace))


def _came_to_an_end(trace: Trace) -> bool:
    manifests = trace.table("manifests")
    n_ranks = int(manifests.array("world_size").max(initial=0))
    has_failed = bool(set(manifests.array("exit_code").tolist()) - {0, MISSING})
    is_whole = _covers_all_ranks(trace) and len(manifests) >= n_ranks
    return is_whole and not has_failed and set(manifests.text("ending").tolist()) == {_BY_ITSELF}


def _covers_all_ranks(trace: Trace) -> bool:
    known = set(trace.table("manifests").array("rank").tolist())
    return bool(known) and set(trace.table("ranks").array("rank").tolist()) <= known


def _were_killed(trace: Trace) -> bool:
    return bool(trace.table("collection_problems").text("what").equals(_RANK).any())
