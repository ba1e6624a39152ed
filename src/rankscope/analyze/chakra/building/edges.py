"""What waits for what in the graph of one rank, first between items, then between rows of the file."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.chakra.building.items import Items
from rankscope.model.chakra import Ragged
from rankscope.model.tables import MISSING, Array, Table

# The call tree is written as control dependencies, which are taken from the nodes themselves; what happens between
# ranks is told by the communication nodes.
_NOT_DATA = ("call", "collective")


class ItemEdges(NamedTuple):
    before: Array
    after: Array
    is_other_thread: Array  # False for the order of a thread or stream

    def __len__(self) -> int:
        return len(self.before)


def item_edges(edges: Table, items: Items) -> tuple[ItemEdges, int]:
    """The edges between items of the rank, and how many lead to what was left out."""
    rank = items.source.rank
    rows = np.flatnonzero((edges.array("rank") == rank) & (edges.array("from_rank") == rank))
    kind = edges.text("kind").take(rows)
    rows = rows[~np.logical_or.reduce([kind.equals(other) for other in _NOT_DATA])]
    after = _places(items, edges, rows, ("target", "file_id", "target_id"))
    before = _places(items, edges, rows, ("source", "from_file_id", "source_id"))
    is_found = (before != MISSING) & (after != MISSING) & (before != after)
    kind = edges.text("kind").take(rows[is_found])
    in_order = kind.equals("thread") | kind.equals("stream")
    return ItemEdges(before[is_found], after[is_found], ~in_order), int(np.count_nonzero(~is_found))


def _places(items: Items, edges: Table, rows: Array, columns: tuple[str, str, str]) -> Array:
    """The items at one end of the edges."""
    what, file_column, id_column = columns
    is_node = edges.text(what).take(rows).equals("node")
    file_ids, ids = edges.array(file_column)[rows], edges.array(id_column)[rows]
    nodes = np.where(file_ids == items.source.file_id, items.node_places(ids), MISSING)
    return np.where(is_node, nodes, items.kernel_places(file_ids, ids))


def dependencies(before: Array, after: Array, n_rows: int) -> tuple[Ragged, int]:
    """Per row those to wait for, each once. What would go back in the order of rows is left out and counted."""
    is_forward = before < after
    pairs = np.sort(after[is_forward] * n_rows + before[is_forward])
    pairs = pairs[np.diff(pairs, prepend=-1) != 0]
    starts = np.searchsorted(pairs, np.arange(n_rows + 1) * n_rows)
    return Ragged(starts, pairs % max(n_rows, 1)), int(np.count_nonzero(~is_forward))
