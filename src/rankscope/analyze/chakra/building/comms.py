"""Which items communicate, and what a simulator has to know of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rankscope.analyze.chakra.building.items import Items
from rankscope.analyze.chakra.building.texts import GroupNames
from rankscope.analyze.derived import derived
from rankscope.model.chakra import COLLECTIVE_TYPES, COMM_COLL, COMM_RECV, COMM_SEND
from rankscope.model.tables import MISSING, Array, Table, Text, Trace

_TRANSFERS = {"send": COMM_SEND, "recv": COMM_RECV}
_LARGEST_INT32 = 2**31 - 1


class Comms(NamedTuple):
    """One row per item that communicates."""

    item: Array
    type: Array
    comm_type: Array  # number of the collective; MISSING for transfers
    n_bytes: Array
    group: Text
    root: Array
    src: Array
    dst: Array
    tag: Array
    n_left_out: tuple[int, int, int, int]  # not among the items, of unknown kind, of unknown members, without bytes


def comms_of(trace: Trace, items: Items) -> Comms:
    table = trace.table("et_collectives")
    rows = np.flatnonzero(table.array("file_id") == items.source.file_id)
    item = _runners(table, rows, items)
    type_, comm_type = _types(table.text("op").take(rows))
    is_known = _are_members_known(table, rows)
    is_written = (item != MISSING) & (type_ != MISSING) & is_known
    n_unplaced, n_unknown = np.count_nonzero(item == MISSING), np.count_nonzero(type_ == MISSING)
    # Calls that one kernel runs together are one node: the first says what it is, the sizes add up.
    item, first, position = np.unique(item[is_written], return_index=True, return_inverse=True)
    chosen = np.flatnonzero(is_written)[first]
    given = np.maximum(table.array("n_bytes")[rows[is_written]], 0)
    n_bytes = np.bincount(position.ravel(), given, len(item)).astype(np.int64)
    is_barrier = comm_type[chosen] == COLLECTIVE_TYPES.index("barrier")
    is_sizeless = (n_bytes == 0) & ~is_barrier
    names = derived(trace, group_names)
    groups = table.text("group_name")
    root, src, dst, tag = (
        np.minimum(table.array(name)[rows[chosen]], _LARGEST_INT32) for name in ("root", "src", "dst", "tag")
    )
    return Comms(
        item,
        type_[chosen],
        comm_type[chosen],
        np.where(is_sizeless, 1, n_bytes),
        Text(groups.codes[rows[chosen]], [names.written(name) for name in groups.values]),
        root,
        src,
        dst,
        tag,
        (int(n_unplaced), int(n_unknown), int(np.count_nonzero(~is_known)), int(np.count_nonzero(is_sizeless))),
    )


def _are_members_known(table: Table, rows: Array) -> Array:
    """A simulator takes a collective whose group has no name for one of all ranks, and waits for them forever."""
    is_p2p = table.array("is_p2p")[rows]
    peer = np.where(table.text("op").take(rows).equals("recv"), table.array("src")[rows], table.array("dst")[rows])
    n_ranks = len(np.unique(table.array("rank")))
    is_nameless = table.text("group_name").take(rows).equals("")
    is_unknown = table.text("group_ranks").take(rows).equals("[]")
    is_partial = is_nameless & (table.array("group_size")[rows] < n_ranks) & (table.array("group_size")[rows] > 0)
    return np.where(is_p2p, peer != MISSING, ~(is_unknown | is_partial))


def _runners(table: Table, rows: Array, items: Items) -> Array:
    """What ran the call: the kernel or node that is named, else the node that called it."""
    is_node = table.text("runner").take(rows).equals("node")
    runner, file_id = table.array("runner_id")[rows], table.array("runner_file_id")[rows]
    places = np.where(is_node, items.node_places(runner), items.kernel_places(file_id, runner))
    return np.where(places == MISSING, items.node_places(table.array("node_id")[rows]), places)


def _types(ops: Text) -> tuple[Array, Array]:
    """Type of the node and number of the collective, each MISSING where there is none."""
    numbers = {name: number for number, name in enumerate(COLLECTIVE_TYPES)}
    comm_types = np.array([numbers.get(name, MISSING) for name in ops.values], np.int64)
    types = np.array([COMM_COLL if name in numbers else _TRANSFERS.get(name, MISSING) for name in ops.values], np.int64)
    return types[ops.codes], comm_types[ops.codes]


def group_names(trace: Trace) -> GroupNames:
    """One numbering for all ranks, so that they mean the same group by the same name."""
    described, called = trace.table("et_groups").text("name"), trace.table("et_collectives").text("group_name")
    return GroupNames((*described.values, *called.values))


def groups_of(trace: Trace, file_id: int) -> list[dict[str, Any]]:
    """The groups that a rank belongs to, as its execution trace or its calls describe them."""
    names = derived(trace, group_names)
    described, called = trace.table("et_groups"), trace.table("et_collectives")
    groups = {}
    for row in _rows_of(described, file_id):
        ranks = msgspec.json.decode(row["ranks"], type=list[int]) or list(range(max(row["size"], 0)))
        groups[row["name"]] = {
            "pg_name": names.written(row["name"]),
            "pg_desc": row["desc"],
            "backend_config": row["backend"],
            "ranks": ranks,
            "group_size": len(ranks),
        }
    rows = np.flatnonzero(called.array("file_id") == file_id)
    _, firsts = np.unique(called.text("group_name").codes[rows], return_index=True)
    for row in called.take(rows[firsts]).rows():
        ranks = msgspec.json.decode(row["group_ranks"] or "[]", type=list[int])
        if ranks and row["group_name"] and row["group_name"] not in groups:
            written = names.written(row["group_name"])
            groups[row["group_name"]] = {"pg_name": written, "ranks": ranks, "group_size": len(ranks)}
    return list(groups.values())


def _rows_of(table: Table, file_id: int) -> Iterable[dict[str, Any]]:
    return table.take(np.flatnonzero(table.array("file_id") == file_id)).rows()
