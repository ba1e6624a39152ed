"""Who waits for whom, small enough to draw: ranks that behave alike become one node.

Two ranks are alike when they wait in calls of the same kind that are held up by ranks that are alike. The kinds are
made coarser until the picture is small: first each call is its own kind, then calls of the same sort of group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from rankscope.model.tables import MISSING, Array, Table, Trace

MAX_EXACT = 6  # nodes that are taken in at a glance: up to so many no two calls are taken together
HANDFUL = 12
MAX_LAYERS = 6
MAX_NODES = 40
MAX_ROUNDS = 5  # how far from the cause ranks are still told apart by their distance to it
# What holds a call up where no rank does; they stand in for ranks, which are never negative.
NOBODY = {"stalled": -2, "mismatch": -3, "unpaired": -4}
WHYS = ("absent", "mismatch", "unknown", "behind", *NOBODY)


class Call(NamedTuple):
    """A call that ranks wait in, as the table `waits` has it."""

    match: int
    group: int
    seq: int
    op: str
    is_p2p: bool
    site: int
    since_ns: int
    waited_ns: int


@dataclass(frozen=True)
class Node:
    ranks: tuple[int, ...]  # one number of NOBODY where no rank is to blame
    calls: tuple[Call, ...]  # that they wait in; none when they wait for nobody
    is_cause: bool
    has_no_dump: bool

    @property
    def is_nobody(self) -> bool:
        return self.ranks[0] < 0


class Edge(NamedTuple):
    waiting: int  # positions in the list of nodes
    holding: int
    whys: tuple[str, ...]
    calls: tuple[Call, ...]
    in_cycle: bool

    @property
    def ends(self) -> tuple[int, int]:
        return self.waiting, self.holding


class Graph(NamedTuple):
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]  # between nodes
    inner: tuple[Edge, ...]  # within one: some of its ranks wait for others of it
    layers: tuple[int, ...]  # of each node, 0 is the cause's
    is_coarse: bool = False  # calls that look alike were taken together


class _Waits:
    """The table as arrays: which ranks wait in which calls (joined), and which ranks hold which calls up (held)."""

    def __init__(self, table: Table) -> None:
        waiting = table.text("waiting")
        # A transfer without another side has no match; the ranks that wait in it tell it from others.
        keys = np.stack([table.array("match_id").astype(np.int64), waiting.codes.astype(np.int64)])
        _, first, self.held_call = np.unique(keys, axis=1, return_index=True, return_inverse=True)
        self.held_call = self.held_call.reshape(-1)
        self.calls = [_call(table, row) for row in first.tolist()]
        lists = [np.array(msgspec.json.decode(waiting[row]), np.int64) for row in first.tolist()]
        self.joined_call = np.repeat(np.arange(len(lists)), [len(ranks) for ranks in lists])
        why = table.text("why")
        self.why = np.array([WHYS.index(value) for value in why.values], np.int64)[why.codes]
        nobody = np.array([NOBODY.get(value, MISSING) for value in why.values], np.int64)[why.codes]
        holders = np.where(table.array("holder") == MISSING, nobody, table.array("holder"))
        joined = np.concatenate(lists)
        self.ranks, positions = np.unique(np.concatenate([joined, holders]), return_inverse=True)
        self.joined, self.held = np.split(positions.reshape(-1), [len(joined)])
        self.is_cause = np.zeros(len(self.ranks), bool)
        self.is_cause[self.held[table.array("is_cause")]] = True
        self.has_no_dump = np.zeros(len(self.ranks), bool)
        self.has_no_dump[self.held[why.equals("unknown")]] = True
        self.has_no_dump[self.joined] = False
        self.in_cycle = table.array("in_cycle")


def _call(table: Table, row: int) -> Call:
    return Call(
        match=int(table.array("match_id")[row]),
        group=int(table.array("group_id")[row]),
        seq=int(table.array("seq")[row]),
        op=table.text("op")[row],
        is_p2p=bool(table.array("is_p2p")[row]),
        site=int(table.array("site_id")[row]),
        since_ns=int(table.array("since_ns")[row]),
        waited_ns=int(table.array("waited_ns")[row]),
    )


def wait_graph(trace: Trace) -> Graph | None:
    table = trace.table("waits")
    if not len(table):
        return None
    waits = _Waits(table)
    descriptions = trace.table("groups").text("description")
    kinds: tuple[list[Hashable], ...] = (
        [(call.match, position if call.match == MISSING else 0) for position, call in enumerate(waits.calls)],
        [(call.is_p2p, call.op, descriptions[call.group], call.seq) for call in waits.calls],
        [(call.is_p2p, call.op, descriptions[call.group]) for call in waits.calls],
        [call.is_p2p for call in waits.calls],
    )
    exact, *coarser = [_drawn(waits, _classes(waits, _numbered(kind), HANDFUL)) for kind in kinds[:-1]]
    if exact is not None and len(exact.nodes) <= MAX_EXACT:
        return exact
    for graph in coarser:
        if graph is not None and max(graph.layers) < MAX_LAYERS:
            # Ranks that wait for others of their node may be a cycle, which is better seen where it is small.
            return exact if graph.inner and exact is not None else graph._replace(is_coarse=True)
    for n_rounds in range(MAX_ROUNDS, 0, -1):
        for kind in kinds[-2:]:
            graph = _drawn(waits, _classes(waits, _numbered(kind), MAX_NODES, n_rounds))
            if graph is not None and max(graph.layers) < 2 * MAX_LAYERS:
                return graph._replace(is_coarse=True)
    graph = _drawn(waits, _alike_by_part(waits))
    assert graph is not None  # there are fewer parts than nodes that may be drawn
    return graph._replace(is_coarse=True)


def _numbered(keys: Iterable[Hashable]) -> Array:
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.uint64)


def _alike_by_part(waits: _Waits) -> Array:
    """The coarsest kinds: the cause, ranks without a dump, waiting ranks, and the placeholders for no rank."""
    is_waiting = np.zeros(len(waits.ranks), bool)
    is_waiting[waits.joined] = True
    part = waits.is_cause * 1 + waits.has_no_dump * 2 + is_waiting * 4
    return np.where(waits.ranks < 0, -waits.ranks * 8, part)


def _classes(waits: _Waits, kind: Array, limit: int, n_rounds: int = 1 << 30) -> Array | None:
    """A class per rank: refined until stable, or for `n_rounds` rounds. None if there are more than the limit."""
    start = _mixed(_alike_by_part(waits).astype(np.uint64))
    ranks, n_before = start, len(np.unique(start))
    for _ in range(n_rounds):
        held = _mixed(ranks[waits.held] * np.uint64(len(WHYS)) + waits.why.astype(np.uint64))
        calls = _mixed(_mixed(kind) + _sums_of_sets(waits.held_call, held, len(waits.calls)))
        ranks = _mixed(start + _sums_of_sets(waits.joined, calls[waits.joined_call], len(waits.ranks)))
        n_now = len(np.unique(ranks))
        if n_now > limit:
            return None
        if n_now == n_before:
            break
        n_before = n_now
    return ranks


def _sums_of_sets(owners: Array, hashes: Array, n_owners: int) -> Array:
    """One hash per owner for the set of hashes that it owns, whatever their order and how often each occurs."""
    pairs = np.unique(np.stack([owners.astype(np.uint64), hashes]), axis=1)
    sums = np.zeros(n_owners, np.uint64)
    np.add.at(sums, pairs[0].astype(np.int64), _mixed(pairs[1]))
    return sums


def _mixed(values: Array) -> Array:
    """Spreads the bits of 64-bit numbers (the finalizer of splitmix64), so that different sets have different sums."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _drawn(waits: _Waits, classes: Array | None) -> Graph | None:
    """The nodes in the order of their first ranks."""
    if classes is None:
        return None
    _, first, node_of = np.unique(classes, return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))  # first positions follow the ranks, which are sorted
    node_of = order[node_of.reshape(-1)]
    joined = np.unique(np.stack([waits.joined_call, node_of[waits.joined]]), axis=1)
    calls_of: dict[int, list[int]] = defaultdict(list)
    for call, node in joined.T.tolist():
        calls_of[node].append(call)
    edges = tuple(_edges(waits, node_of, joined))
    nodes = []
    for number in range(len(first)):
        members = np.flatnonzero(node_of == number)
        calls = tuple(waits.calls[call] for call in calls_of[number])
        flags = bool(waits.is_cause[members].any()), bool(waits.has_no_dump[members].all())
        nodes.append(Node(tuple(waits.ranks[members].tolist()), calls, *flags))
    between = tuple(edge for edge in edges if edge.waiting != edge.holding)
    inner = tuple(edge for edge in edges if edge.waiting == edge.holding)
    return Graph(tuple(nodes), between, inner, _layers(nodes, between))


def _edges(waits: _Waits, node_of: Array, joined: Array) -> Iterator[Edge]:
    waiting_nodes: dict[int, list[int]] = defaultdict(list)
    for call, node in joined.T.tolist():
        waiting_nodes[call].append(node)
    columns = (waits.held_call, node_of[waits.held], waits.why, waits.in_cycle)
    held = np.unique(np.stack([column.astype(np.int64) for column in columns]), axis=1)
    whys: dict[tuple[int, int], set[int]] = defaultdict(set)
    calls: dict[tuple[int, int], set[int]] = defaultdict(set)
    cycles = set()
    for call, holding, why, in_cycle in held.T.tolist():
        for waiting in waiting_nodes[call]:
            if waiting == holding and WHYS[why] == "mismatch":
                continue  # whose call does not fit waits in it too, but not for itself
            whys[waiting, holding].add(why)
            calls[waiting, holding].add(call)
            if in_cycle:
                cycles.add((waiting, holding))
    for ends in sorted(whys):
        edge_calls = tuple(waits.calls[call] for call in sorted(calls[ends]))
        yield Edge(*ends, tuple(WHYS[why] for why in sorted(whys[ends])), edge_calls, ends in cycles)


def _layers(nodes: list[Node], edges: tuple[Edge, ...]) -> tuple[int, ...]:
    """The longest way to the cause, or to another end; what leads back, and the cause's own waits, do not count."""
    following: dict[int, list[int]] = defaultdict(list)
    for edge in edges:
        if not nodes[edge.waiting].is_cause:
            following[edge.waiting].append(edge.holding)
    layers: dict[int, int] = {}
    under_way: set[int] = set()

    def layer_of(node: int) -> int:
        if node not in layers:
            under_way.add(node)
            ahead = [layer_of(other) + 1 for other in following[node] if other not in under_way]
            under_way.discard(node)
            layers[node] = max(ahead, default=0)
        return layers[node]

    return tuple(layer_of(node) for node in range(len(nodes)))
