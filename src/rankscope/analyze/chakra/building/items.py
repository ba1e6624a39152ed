"""What the graph of one rank is made of: the nodes of its execution trace, and the work of its devices.

Both are items: nodes first, by number, then kernels, copies and fills. Everything else speaks of items by their place.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rankscope.analyze.link.nodes import nearest_above
from rankscope.model.tables import MISSING, Array, Table, Text, Trace

_NODE_NUMBERS = ("node_id", "parent_id", "fw_parent_id", "record_id", "seq_id", "scope", "thread", "fw_thread")
_NODE_TEXTS = ("name", "op_schema")
_NODE_LISTS = ("inputs", "input_shapes", "input_types", "outputs", "output_shapes", "output_types")
_KERNEL_NUMBERS = ("file_id", "kernel_id", "stream", "start_ns", "duration_ns", "launch_start_ns")
_LINKED = (
    "profile_id",
    "op_id",
    "annotation_id",
    "tid",
    "start_ns",
    "duration_ns",
    "own_ns",
    "is_inflated",
    "duration_from",
)


class Source(NamedTuple):
    """The execution trace of a rank, and the profiler traces of the same steps."""

    rank: int
    file_id: int
    profile_ids: tuple[int, ...]


@dataclass(frozen=True)
class Items:
    source: Source
    nodes: dict[str, Array]  # columns of et_nodes, and those of et_links beside them
    texts: dict[str, Text]  # columns of et_nodes
    kernels: dict[str, Array]
    kernel_names: Text
    n_outside: int  # nodes that no profiler saw
    n_kernels_outside: int  # launched before or after what the observer saw
    caller: Array  # per item: the nearest one that called it; MISSING at the top and for kernels

    @cached_property
    def n_nodes(self) -> int:
        return len(self.nodes["node_id"])

    def __len__(self) -> int:
        return self.n_nodes + len(self.kernels["kernel_id"])

    @cached_property
    def is_timed(self) -> bool:
        return bool(self.source.profile_ids)

    @cached_property
    def start(self) -> Array:
        return np.concatenate((self.nodes["start_ns"], self.kernels["start_ns"]))

    @cached_property
    def end(self) -> Array:
        """As recorded, even where durations are from elsewhere."""
        end: Array = self.start + np.concatenate((self.nodes["recorded_ns"], self.kernels["duration_ns"]))
        return end

    def node_places(self, node_ids: Array) -> Array:
        return places_of(self.nodes["node_id"], node_ids)

    def kernel_places(self, file_ids: Array, kernel_ids: Array) -> Array:
        places = places_of(self._kernel_keys, self._packed(file_ids, kernel_ids))
        return np.where(places == MISSING, MISSING, places + self.n_nodes)

    @cached_property
    def _kernel_keys(self) -> Array:
        return self._packed(self.kernels["file_id"], self.kernels["kernel_id"])

    def _packed(self, file_ids: Array, kernel_ids: Array) -> Array:
        n_ids = int(self.kernels["kernel_id"].max(initial=0)) + 1
        is_known = (kernel_ids >= 0) & (kernel_ids < n_ids)
        return np.where(is_known, file_ids.astype(np.int64) * n_ids + kernel_ids, MISSING)


def places_of(known: Array, wanted: Array) -> Array:
    """Where each number is in a sorted column; MISSING where it is not."""
    if not len(known):
        return np.full(len(wanted), MISSING)
    position = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[position] == wanted, position, MISSING)


def sources_of(trace: Trace) -> list[Source]:
    """One execution trace per rank: if there are several, the one that a profiler covers most."""
    links = trace.table("et_links")
    seen = np.flatnonzero(links.array("profile_id") != MISSING)
    pairs = np.stack((links.array("file_id")[seen], links.array("profile_id")[seen]), axis=1).astype(np.int64)
    distinct, counts = np.unique(pairs @ np.array([1 << 32, 1]), return_counts=True)
    n_seen: dict[int, int] = {}
    profiles: dict[int, list[int]] = {}
    for pair, count in zip(distinct.tolist(), counts.tolist(), strict=True):
        file_id, profile_id = divmod(pair, 1 << 32)
        n_seen[file_id] = n_seen.get(file_id, 0) + count
        profiles.setdefault(file_id, []).append(profile_id)
    chosen: dict[int, tuple[int, int, int]] = {}
    for row in trace.table("et_traces").rows():
        candidate = (n_seen.get(row["file_id"], 0), row["n_nodes"], -row["file_id"])
        chosen[row["rank"]] = max(candidate, chosen.get(row["rank"], candidate))
    return [Source(rank, -last, tuple(profiles.get(-last, ()))) for rank, (_, _, last) in sorted(chosen.items())]


def load_items(trace: Trace, source: Source) -> Items:
    names = (*_NODE_NUMBERS, "kind", *_NODE_TEXTS, *_NODE_LISTS)
    columns = _columns(trace, "et_nodes", names, source.file_id, source.rank)
    node_ids, rows = np.unique(columns["node_id"], return_index=True)
    links = _links_of(trace.table("et_links"), source.file_id, node_ids)
    is_kept = is_op = columns["kind"][rows] == "op"
    if source.profile_ids:
        is_kept = is_op & (links["profile_id"] != MISSING)
    parent = _nearest_kept(node_ids, columns["parent_id"][rows], is_kept)
    rows = rows[is_kept]
    nodes = {name: columns[name][rows] for name in _NODE_NUMBERS} | {name: links[name][is_kept] for name in _LINKED}
    nodes["recorded_ns"] = _recorded_durations(trace, source, nodes)
    nodes["main_tid"] = _main_tids(nodes["thread"], nodes["tid"])
    caller = _callers(nodes, parent) if source.profile_ids else parent
    texts = {name: Text.encode(columns[name][rows].tolist()) for name in (*_NODE_TEXTS, *_NODE_LISTS)}
    kernels, kernel_names, n_kernels_outside = _load_kernels(trace, source, nodes)
    return Items(
        source,
        nodes,
        texts,
        kernels,
        kernel_names,
        int(np.count_nonzero(is_op & ~is_kept)),
        n_kernels_outside,
        np.concatenate((caller, np.full(len(kernel_names), MISSING))),
    )


def _columns(trace: Trace, table: str, columns: tuple[str, ...], file_id: int, rank: int) -> dict[str, Array]:
    """A profiler file may hold several ranks."""
    sql = f"SELECT {', '.join(columns)} FROM {table} WHERE file_id = $file AND coalesce(rank, {MISSING}) = $rank"
    return trace.sql(sql, file=file_id, rank=rank).columns()


def _links_of(links: Table, file_id: int, node_ids: Array) -> dict[str, Array]:
    rows = np.flatnonzero(links.array("file_id") == file_id)
    rows = rows[np.argsort(links.array("node_id")[rows], kind="stable")]
    position = places_of(links.array("node_id")[rows], node_ids)
    is_known = position != MISSING
    columns = {}
    for name in _LINKED:
        values = np.full(len(node_ids), MISSING, np.int64)
        values[is_known] = links.array(name)[rows[position[is_known]]]
        columns[name] = values
    return columns


def _recorded_durations(trace: Trace, source: Source, nodes: dict[str, Array]) -> Array:
    """How long nodes took in the same recording that their beginnings are from."""
    recorded = nodes["duration_ns"].copy()
    is_elsewhere = nodes["duration_from"] != nodes["profile_id"]
    for file_id in np.unique(nodes["profile_id"][is_elsewhere]).tolist():
        for table, key in (("ops", "op_id"), ("annotations", "annotation_id")):
            rows = np.flatnonzero(is_elsewhere & (nodes["profile_id"] == file_id) & (nodes[key] != MISSING))
            columns = _columns(trace, table, (key, "duration_ns"), file_id, source.rank)
            order = np.argsort(columns[key])
            position = places_of(columns[key][order], nodes[key][rows])
            is_found = position != MISSING
            recorded[rows[is_found]] = columns["duration_ns"][order[position[is_found]]]
    return recorded


def _nearest_kept(node_ids: Array, parent_ids: Array, is_kept: Array) -> Array:
    """Per kept node: the place among them of the nearest one that called it."""
    around = nearest_above(places_of(node_ids, parent_ids), is_kept)[is_kept]
    places = np.cumsum(is_kept) - 1
    return np.where(around == MISSING, MISSING, places[around])


def _main_tids(thread: Array, tid: Array) -> Array:
    """Per node: what the profiler calls its thread. Of what the observer saw on one thread most ran there; the rest was
    handed over to others, as gloo does."""
    order = np.lexsort((tid, thread))
    is_new = np.diff(thread[order], prepend=MISSING - 1) != 0
    is_new |= np.diff(tid[order], prepend=MISSING - 1) != 0
    firsts = np.flatnonzero(is_new)
    counts = np.diff(firsts, append=len(order))
    pairs = order[firsts]
    by_count = np.lexsort((-pairs, counts, thread[pairs]))  # of two with as many, the one that came first
    is_most = np.diff(thread[pairs[by_count]], append=MISSING - 1) != 0
    chosen = pairs[by_count[is_most]]
    main: Array = tid[chosen[np.searchsorted(thread[chosen], thread)]]
    return main


def _callers(nodes: dict[str, Array], parent: Array) -> Array:
    """The observer takes what was handed over to another thread for a caller until that is done, and so may name
    parents that were over, or that never called anything."""
    start, tid = nodes["start_ns"], nodes["tid"]
    end = start + nodes["recorded_ns"]
    is_elsewhere = tid != nodes["main_tid"]
    caller = parent.copy()
    pending = np.flatnonzero(caller != MISSING)
    for _ in range(len(parent)):
        above = caller[pending]
        is_same = tid[above] == tid[pending]
        pending = pending[np.where(is_same, start[pending] > end[above], is_elsewhere[above])]
        if not len(pending):
            break
        caller[pending] = parent[caller[pending]]
        pending = pending[caller[pending] != MISSING]
    caller[pending] = MISSING
    return caller


def _load_kernels(trace: Trace, source: Source, nodes: dict[str, Array]) -> tuple[dict[str, Array], Text, int]:
    """What the nodes launched, and how much was launched before or after them."""
    names = (*_KERNEL_NUMBERS, "name")
    parts = [_columns(trace, "kernels", names, file_id, source.rank) for file_id in source.profile_ids]
    columns = {name: np.concatenate([part[name] for part in parts] or [np.empty(0, np.int64)]) for name in names}
    launched = np.where(columns["launch_start_ns"] == MISSING, columns["start_ns"], columns["launch_start_ns"])
    first = nodes["start_ns"].min(initial=np.iinfo(np.int64).max)
    last = (nodes["start_ns"] + nodes["recorded_ns"]).max(initial=MISSING)
    rows = np.flatnonzero((launched >= first) & (launched <= last))
    rows = rows[np.lexsort((columns["kernel_id"][rows], columns["file_id"][rows]))]
    kept = {name: columns[name][rows] for name in _KERNEL_NUMBERS}
    return kept, Text.encode(columns["name"][rows].tolist()), len(launched) - len(rows)
