"""Who waits for whom: a graph of ranks and the calls they wait in, and where its chains end.

An edge leads from a call to every rank that holds it up: one that has not joined it, one that waits in an earlier
call, one that left no dump. Chains end in ranks that wait for nobody, in calls that nobody holds up, or in cycles.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from typing import Literal

from rankscope.analyze.derived import derived
from rankscope.analyze.hangs.view import JobView
from rankscope.model.tables import MISSING, Trace

HoldUp = Literal["absent", "behind", "unknown"]


@dataclass(frozen=True)
class WaitingCall:
    """A call that ranks wait in: a collective, or a transfer with src and dst."""

    match: int
    group: int
    seq: int
    is_p2p: bool
    waiting: tuple[int, ...]  # ranks for which it is the oldest unfinished call
    held_up_by: dict[int, HoldUp]

    def __hash__(self) -> int:
        return self.match


@dataclass(frozen=True)
class Cycle:
    ranks: tuple[int, ...]
    calls: tuple[WaitingCall, ...]


@dataclass
class WaitGraph:
    calls: dict[int, WaitingCall] = field(default_factory=dict)  # by match
    call_of_rank: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    view: JobView = field(init=False)

    @property
    def blocked(self) -> set[int]:
        return set(self.call_of_rank)

    def successors(self, node: int) -> Iterable[int]:
        """Ranks are their own nodes; a call is the node ~match, so that a thousand waiters share its edges.

        What is not known is no edge: a cycle is certain whatever a rank without a dump did.
        """
        if node < 0:
            return (rank for rank, reason in self.calls[~node].held_up_by.items() if reason != "unknown")
        return (~match for match in self.call_of_rank.get(node, ()))

    def blocked_by(self, culprits: set[int], matches: Set[int] = frozenset()) -> set[int]:
        """All ranks whose wait leads, over any number of others, to the culprits or to the given calls."""
        waiters: dict[int, set[int]] = defaultdict(set)
        for call in self.calls.values():
            for holder in call.held_up_by:
                waiters[holder].update(call.waiting)
        reached: set[int] = set()
        frontier = set(culprits)
        for match in matches & self.calls.keys():
            frontier.update(self.calls[match].waiting)
        while frontier:
            reached |= frontier
            frontier = set().union(*(waiters[rank] for rank in frontier)) - reached
        return reached - culprits

    def cycles(self) -> list[Cycle]:
        """Ranks that wait for each other, with no way out to anyone else."""
        cycles = []
        for part in _components(self):
            ranks = tuple(node for node in part if node >= 0)
            if len(ranks) > 1 and not self._leaves(set(part)):
                cycles.append(Cycle(ranks, tuple(self.calls[~node] for node in part if node < 0)))
        return cycles

    def _leaves(self, part: set[int]) -> bool:
        return any(successor not in part for node in part for successor in self.successors(node))

    def absent_ends(self) -> dict[int, list[WaitingCall]]:
        """Ranks that wait in nothing themselves, and the calls they hold up."""
        ends: dict[int, list[WaitingCall]] = defaultdict(list)
        for call in self.calls.values():
            for holder in call.held_up_by:
                if holder not in self.call_of_rank:
                    ends[holder].append(call)
        return ends

    def complete_calls(self) -> list[WaitingCall]:
        """Calls that nobody holds up and that still do not end."""
        return [call for call in self.calls.values() if not call.held_up_by]


def build_wait_graph(trace: Trace) -> WaitGraph:
    view = derived(trace, JobView)
    graph = WaitGraph()
    graph.view = view
    waiting: dict[int, list[int]] = defaultdict(list)
    for rank, row in view.first_waiting.items():
        for match in _matches_of(view, row):
            waiting[match].append(rank)
            graph.call_of_rank[rank].append(match)
    for match, ranks in waiting.items():
        graph.calls[match] = _waiting_call(view, match, sorted(ranks))
    return graph


def _matches_of(view: JobView, row: int) -> list[int]:
    """The call itself, or those transfers of a batch that can be what it waits for."""
    matches = [int(view.match[part]) for part in view.parts_of(row) if view.match[part] != MISSING]
    # Where the other side is there and nothing is before it, a transfer runs: it is not what the batch waits for.
    open_ones = [match for match in matches if len(matches) == 1 or not _is_met(view, match, int(view.rank[row]))]
    return sorted(open_ones or matches)


def _is_met(view: JobView, match: int, rank: int) -> bool:
    others = [row for row in view.rows_of_match(match).tolist() if int(view.rank[row]) != rank]
    return any(view.is_done[row] or not _is_behind(view, row) for row in others)


def _is_behind(view: JobView, row: int) -> bool:
    """True when the rank of the call waits in an earlier one; the transfers of a batch begin together."""
    first = view.first_waiting.get(int(view.rank[row]))
    return first is not None and min(view.parts_of(first)) < row and row not in view.parts_of(first)


def _waiting_call(view: JobView, match: int, waiting: list[int]) -> WaitingCall:
    table = view.trace.table("matches")
    group, seq = int(table.array("group_id")[match]), int(table.array("seq")[match])
    is_p2p = bool(table.array("is_p2p")[match])
    rows = {int(view.rank[row]): row for row in view.rows_of_match(match).tolist()}
    if is_p2p:
        members: tuple[int, ...] = (int(table.array("src")[match]), int(table.array("dst")[match]))
    else:
        members = view.members[group]
    held_up_by: dict[int, HoldUp] = {}
    for rank in members:
        if rank in waiting:
            continue
        reason = _hold_up(view, group, seq, rank, rows.get(rank), is_p2p)
        if reason is not None:
            held_up_by[rank] = reason
    return WaitingCall(match, group, seq, is_p2p, tuple(waiting), held_up_by)


def _hold_up(view: JobView, group: int, seq: int, rank: int, row: int | None, is_p2p: bool) -> HoldUp | None:
    if rank not in view.dumped:
        return "unknown"
    if row is not None:
        first = view.first_waiting.get(rank)
        is_behind = first is not None and first < row and not view.is_done[row]
        return "behind" if is_behind else None
    if is_p2p:
        if rank in view.cut:  # its newest calls are lost; its counters still tell whether it waits in one of them
            return None if view.is_idle(rank) else "unknown"
        return "absent"
    window = view.window(group, rank)
    if window.has_not_joined(seq):
        return "absent" if rank in view.first_waiting or view.is_idle(rank) else "unknown"
    return None if window.known else "unknown"


def _components(graph: WaitGraph) -> list[tuple[int, ...]]:
    """Strongly connected components (Tarjan, without recursion: chains may be thousands long)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    components: list[tuple[int, ...]] = []

    def enter(node: int) -> tuple[int, Iterator[int]]:
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        return node, iter(graph.successors(node))

    for root in sorted(graph.blocked):
        work = [enter(root)] if root not in index else []
        while work:
            node, successors = work[-1]
            step = next((other for other in successors if other not in index or other in on_stack), None)
            if step is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    cut = stack.index(node)
                    components.append(tuple(sorted(stack[cut:])))
                    on_stack.difference_update(stack[cut:])
                    del stack[cut:]
            elif step in index:
                low[node] = min(low[node], index[step])
            else:
                work.append(enter(step))
    return components


def wait_graph(trace: Trace) -> WaitGraph:
    return derived(trace, build_wait_graph)
