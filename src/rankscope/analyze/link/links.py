"""What a profiler recorded of each node, and how long the node took with and without its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rankscope.analyze.host.call_tree import nest
from rankscope.analyze.link.nodes import nodes_of
from rankscope.analyze.link.partners import HOW, partners_of
from rankscope.model.tables import MISSING, Array, Table, Text, Trace


def recorded_links(trace: Trace) -> Table:
    """The table et_links with all durations as they were recorded, be it while the observer ran."""
    nodes, partners = nodes_of(trace), partners_of(trace)
    columns = {"file_id": nodes.file_id.astype(np.int32), "rank": nodes.rank.astype(np.int32), "node_id": nodes.node_id}
    for name, values in partners.events._asdict().items():
        columns[name] = np.full(len(nodes), MISSING, values.dtype)
        columns[name][partners.node] = values
    how = np.zeros(len(nodes), np.int8)
    how[partners.node] = partners.how
    columns["profile_id"] = columns["profile_id"].astype(np.int32)
    return Table(
        "et_links",
        {
            **columns,
            "how": Text(how, HOW),
            "own_ns": own_time(columns).own_ns,
            # A node exists because the observer saw it: whatever recorded it besides was slowed down by that.
            "is_inflated": how > 0,
            "duration_from": columns["profile_id"],
        },
    )


class OwnTime(NamedTuple):
    """Of every node; both MISSING where it is not linked."""

    own_ns: Array
    caller: Array  # place of the node in whose time it lies on its thread; MISSING at the top as well


def own_time(links: Mapping[str, Array]) -> OwnTime:
    """By time, as a thread's time can be spent only once.

    Parents in the execution trace would not do: gloo runs a call on a thread of its own, at times after the operator
    that asked for it is over.
    """
    rows = np.flatnonzero(links["profile_id"] >= 0)
    threads = [links[name][rows] for name in ("profile_id", "rank", "tid")]
    nesting = nest(_numbered(threads), links["start_ns"][rows], links["duration_ns"][rows])
    ordered = rows[nesting.order]
    own_ns, caller = np.full((2, len(links["profile_id"])), MISSING)
    own_ns[ordered] = nesting.self_ns()
    caller[ordered] = np.where(nesting.parent >= 0, ordered[nesting.parent], MISSING)
    return OwnTime(own_ns, caller)


def _numbered(columns: Sequence[Array]) -> Array:
    """Numbers from 0 for equal rows."""
    number = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, code = np.unique(column, return_inverse=True)
        number = number * len(values) + code
    numbers: Array = np.unique(number, return_inverse=True)[1]
    return numbers
