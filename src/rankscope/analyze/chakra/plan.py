"""The graphs of all ranks as one: nodes numbered through, the place that each takes, and who has to meet whom."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rankscope.analyze.chakra.columns import RankGraph
from rankscope.analyze.chakra.cycles import children_of
from rankscope.analyze.chakra.groups import Groups
from rankscope.analyze.chakra.measured import are_comparable, begins_of, window_of
from rankscope.analyze.chakra.partners import Transfer, collective_name, collectives_by_group, transfers
from rankscope.model.chakra import COMM_RECV, COMM_SEND, COMM_TYPES, COMP, INVALID, MEM_LOAD, MEM_STORE, METADATA
from rankscope.model.tables import Array

NOBODY = -1
_TAKES_NO_PLACE = (INVALID, METADATA, *COMM_TYPES)
_ONE_SIDED = ("broadcast", "scatter", "reduce", "gather")
_MEMORY_LANE = -2  # loads and stores that name no stream do not stand in the way of kernels


class Meeting(NamedTuple):
    """Communication that ends for all of its nodes at once."""

    what: str
    nodes: tuple[int, ...]
    absent_ranks: tuple[int | None, ...]  # who is needed but has no such node
    is_one_sided: bool = False  # who has something to give need not wait for those who take it


@dataclass(frozen=True)
class Plan:
    """Lists by node, as the simulation goes through them one by one."""

    offsets: list[int]  # node number of the first row of each graph, and the end of the last
    begins: list[int]  # when each rank begins
    child_starts: list[int]
    children: list[int]
    n_waits: list[int]
    duration: list[int]
    order: list[int]  # who takes a free place first
    queue: list[int]  # the thread or stream, NOBODY for none
    n_queues: int
    meeting: list[int]  # NOBODY for a node that ends by itself
    meetings: list[Meeting]
    after_join: list[int]  # how long a node takes from when the last one has joined, NOBODY for one that never waits
    is_send: list[bool]

    def locate(self, node: int) -> tuple[int, int]:
        """(which graph, row)"""
        number = bisect_right(self.offsets, node) - 1
        return number, node - self.offsets[number]


def plan_of(graphs: Sequence[RankGraph], books: Sequence[Groups]) -> Plan:
    offsets = np.concatenate(([0], np.cumsum([len(graph) for graph in graphs]))).astype(np.int64)
    n_nodes = int(offsets[-1])
    edges = [graph.edges for graph in graphs]
    shifts = offsets[:-1].tolist()
    before = _joined([nodes + shift for (nodes, _), shift in zip(edges, shifts, strict=True)])
    after = _joined([nodes + shift for (_, nodes), shift in zip(edges, shifts, strict=True)])
    child_starts, children = children_of(n_nodes, before, after)
    queue, n_queues = _queues(graphs)
    start, duration = (_joined([getattr(graph, name) for graph in graphs]) for name in ("start_ns", "duration_ns"))
    windows = [window_of(graph) for graph in graphs]
    meetings = [*_collectives(graphs, books, shifts), *_transfers(graphs, shifts)]
    meeting = [NOBODY] * n_nodes
    for number, met in enumerate(meetings):
        for node in met.nodes:
            meeting[node] = number
    return Plan(
        offsets=offsets.tolist(),
        begins=begins_of(windows),
        child_starts=child_starts,
        children=children,
        n_waits=np.bincount(after, minlength=n_nodes).tolist(),
        duration=duration.tolist(),
        order=_joined([graph.by_time for graph in graphs]).tolist(),
        queue=queue.tolist(),
        n_queues=n_queues,
        meeting=meeting,
        meetings=meetings,
        after_join=_after_join(meetings, start, duration, are_comparable(windows)),
        is_send=_joined([graph.type == COMM_SEND for graph in graphs]).astype(bool).tolist(),
    )


def _after_join(meetings: Sequence[Meeting], start: Array, duration: Array, is_comparable: bool) -> list[int]:
    """As measured: from when the last one joined to when each was done.

    Where the clocks cannot be compared, the shortest duration is that of a rank that did not wait for another.
    """
    took = np.full(len(start), NOBODY)
    for meeting in meetings:
        nodes = np.array(meeting.nodes)
        rest = start[nodes] + duration[nodes] - start[nodes].max()
        is_early = (rest < 0) | (not is_comparable)
        took[nodes] = np.where(is_early, duration[nodes].min(), rest)
        if is_comparable and meeting.is_one_sided:
            took[nodes[is_early]] = NOBODY
    return took.tolist()


def one_lane_each(plan: Plan, graphs: Sequence[RankGraph]) -> Plan:
    """The same with the few places that astra-sim has: per rank one CPU node, one kernel and one communication at a
    time, the lowest id first, and all ranks at once. Receives take none."""
    lanes, order = [], []
    for index, graph in enumerate(graphs):
        lane = 3 * index + np.where(graph.on_cpu, 0, np.where(graph.type == COMP, 1, 2))
        lanes.append(np.where(np.isin(graph.type, (INVALID, METADATA, COMM_RECV)), NOBODY, lane))
        order.append(np.argsort(np.argsort(graph.id)))
    queue, n_queues = _joined(lanes).tolist(), 3 * len(graphs)
    return replace(plan, begins=[0] * len(graphs), queue=queue, n_queues=n_queues, order=_joined(order).tolist())


def _joined(columns: list[Array]) -> Array:
    return np.concatenate(columns) if columns else np.empty(0, np.int64)


def _queues(graphs: Sequence[RankGraph]) -> tuple[Array, int]:
    keys = []
    for index, graph in enumerate(graphs):
        lane = np.where(graph.on_cpu, graph.integers("tid"), graph.integers("stream"))
        is_memory = np.isin(graph.type, (MEM_LOAD, MEM_STORE)) & ~graph.on_cpu & ~graph.has("stream")
        lane = np.where(is_memory, _MEMORY_LANE, lane)
        keys.append(np.stack((np.full(len(graph), index), graph.on_cpu, lane), axis=1))
    if not keys:
        return np.empty(0, np.int64), 0
    distinct, queue = np.unique(np.concatenate(keys), axis=0, return_inverse=True)
    types = _joined([graph.type for graph in graphs])
    return np.where(np.isin(types, _TAKES_NO_PLACE), NOBODY, queue.reshape(-1)), len(distinct)


def _collectives(graphs: Sequence[RankGraph], books: Sequence[Groups], shifts: Sequence[int]) -> Iterator[Meeting]:
    shift_of = {id(graph): shift for graph, shift in zip(graphs, shifts, strict=True)}
    for key, calls in collectives_by_group(graphs, books).items():
        sequences = [(call.graph, (call.rows + shift_of[id(call.graph)]).tolist()) for call in calls]
        longest = max(calls, key=lambda call: len(call.rows))
        for number, row in enumerate(longest.rows.tolist()):
            nodes = tuple(nodes[number] for _, nodes in sequences if number < len(nodes))
            absent = tuple(graph.rank for graph, nodes in sequences if number >= len(nodes))
            op = collective_name(longest.graph, row)
            yield Meeting(f"{op} {number + 1} of {key}", nodes, absent, op in _ONE_SIDED)


def _transfers(graphs: Sequence[RankGraph], shifts: Sequence[int]) -> Iterator[Meeting]:
    """The first send meets the first receive of the same ends and tag, and so on; the size is a matter of the rules."""
    present = {graph.rank for graph in graphs}
    ends: dict[Transfer, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for graph, shift in zip(graphs, shifts, strict=True):
        for side, kind in enumerate((COMM_SEND, COMM_RECV)):
            for row, transfer in transfers(graph, kind):
                if {transfer.source, transfer.target} <= present:
                    ends[transfer][side].append(row + shift)
    for (source, target, tag), (sends, receives) in ends.items():
        for number, receive in enumerate(receives):
            sent = tuple(sends[number : number + 1])
            what = f"transfer from rank {source} to rank {target} (tag {tag})"
            yield Meeting(what, (*sent, receive), () if sent else (source,), is_one_sided=True)
