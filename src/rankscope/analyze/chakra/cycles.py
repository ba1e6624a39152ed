"""Cycles of dependencies."""

from __future__ import annotations

import numpy as np

from rankscope.model.tables import Array


def find_cycle(n_nodes: int, before: Array, after: Array) -> Array:
    """The rows of one cycle, each waiting for the next; empty when there is none. Edges: `after` waits for `before`."""
    if bool(np.all(before < after)):  # files are mostly written in an order that dependencies follow
        return np.empty(0, np.int64)
    held = _never_free(n_nodes, before, after)
    if not held.any():
        return np.empty(0, np.int64)
    # Every node that is never free waits for another such node: following these leads into a cycle.
    inside = held[before] & held[after]
    waits_for = dict(zip(after[inside].tolist(), before[inside].tolist(), strict=True))
    node = int(np.argmax(held))
    seen: dict[int, int] = {}
    while node not in seen:
        seen[node] = len(seen)
        node = waits_for[node]
    return np.array(list(seen)[seen[node] :], np.int64)


def children_of(n_nodes: int, before: Array, after: Array) -> tuple[list[int], list[int]]:
    """Who waits for row r: children[starts[r]:starts[r + 1]]."""
    order = np.argsort(before, kind="stable")
    starts = np.zeros(n_nodes + 1, np.int64)
    np.cumsum(np.bincount(before, minlength=n_nodes), out=starts[1:])
    return starts.tolist(), after[order].tolist()


def _never_free(n_nodes: int, before: Array, after: Array) -> Array:
    starts, children = children_of(n_nodes, before, after)
    n_waits = np.bincount(after, minlength=n_nodes).tolist()
    free = [node for node, n in enumerate(n_waits) if not n]
    for node in free:  # grows while it is walked
        for child in children[starts[node] : starts[node + 1]]:
            n_waits[child] -= 1
            if not n_waits[child]:
                free.append(child)
    return np.array(n_waits, np.int64) > 0
