"""The nodes of execution traces, and the operators and annotations of profiler traces that they may be, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rankscope.analyze.derived import derived
from rankscope.model.tables import MISSING, Array, Trace

# In this order nodes have their places. Numbers are given when a node begins, so it is the order of time as well.
NODE_ORDER = "file_id, rank, node_id, position"
_USER_SCOPE = 7  # of annotations
_NODES = f"""
    SELECT file_id, rank, node_id, parent_id,
           record_id, kind = 'op' AS is_linkable,
           kind = 'op' AND coalesce(scope, 0) <> {_USER_SCOPE} AS is_operator
    FROM et_nodes ORDER BY {NODE_ORDER}
"""
# Everything of a profiler's trace that an execution trace may have as well.
EVENTS = """(
    SELECT file_id, rank, op_id, NULL::BIGINT AS annotation_id, name, pid, tid, start_ns, duration_ns,
           nullif(record_id, 0) AS record_id, record_id IS NOT NULL AS has_id_field, step, sequence_number AS seq_id,
           input_dims
    FROM ops
    UNION ALL BY NAME
    SELECT file_id, rank, annotation_id, name, pid, tid, start_ns, duration_ns, nullif(record_id, 0) AS record_id,
           record_id IS NOT NULL AS has_id_field, step
    FROM annotations WHERE kind = 'host'
)"""
# As Events has them.
EVENT_COLUMNS = "e.op_id, e.annotation_id, e.tid, e.start_ns, e.duration_ns, e.step"


@dataclass(frozen=True)
class Nodes:
    """All nodes of all execution traces, by file and number."""

    file_id: Array
    rank: Array
    node_id: Array
    parent: Array  # place of the node that called it; MISSING at the top
    record_id: Array
    is_linkable: Array  # a profiler can see it
    is_operator: Array  # not an annotation

    def __len__(self) -> int:
        return len(self.node_id)


class Events(NamedTuple):
    """What a profiler recorded of some nodes, in any order; times in nanoseconds."""

    profile_id: Array
    op_id: Array
    annotation_id: Array
    tid: Array
    start_ns: Array
    duration_ns: Array
    step: Array

    def take(self, rows: Array) -> Events:
        return Events(*(column[rows] for column in self))


def nodes_of(trace: Trace) -> Nodes:
    return derived(trace, _load_nodes)


def _load_nodes(trace: Trace) -> Nodes:
    columns = trace.sql(_NODES).columns()
    file_id, node_id, wanted = columns["file_id"], columns["node_id"], columns["parent_id"]
    parent = np.full(len(node_id), MISSING)
    for of_file in file_slices(file_id):
        position = (
            np.minimum(np.searchsorted(node_id[of_file], wanted[of_file]), of_file.stop - of_file.start - 1)
            + of_file.start
        )
        parent[of_file] = np.where((wanted[of_file] >= 0) & (node_id[position] == wanted[of_file]), position, MISSING)
    flags = columns["is_linkable"], columns["is_operator"]
    return Nodes(file_id, columns["rank"], node_id, parent, columns["record_id"], *flags)


def file_slices(file_id: Array) -> list[slice]:
    """Where the nodes of each execution trace are; a file holds the nodes of one process."""
    borders = (np.flatnonzero(np.diff(file_id)) + 1).tolist()
    if not len(file_id):
        return []
    return [slice(*ends) for ends in zip([0, *borders], [*borders, len(file_id)], strict=True)]


def nearest_above(parent: Array, is_wanted: Array) -> Array:
    """Per row: the first of its parent, the parent's parent and so on that is wanted; MISSING where none is."""
    is_end = np.append(is_wanted, True)  # the last entry, which MISSING points at, ends every way up
    up = np.append(parent, MISSING)
    # Each round doubles the distance, so a damaged file whose nodes are each other's parents ends this, too.
    for _ in range(len(parent).bit_length()):
        on_the_way = np.flatnonzero(~is_end[up])
        if not len(on_the_way):
            break
        up[on_the_way] = up[up[on_the_way]]
    return np.where(is_end[up], up, MISSING)[:-1]


def marked(n_rows: int, rows: Array) -> Array:
    """Which of so many rows are among those given."""
    is_marked = np.zeros(n_rows, bool)
    is_marked[rows] = True
    return is_marked
