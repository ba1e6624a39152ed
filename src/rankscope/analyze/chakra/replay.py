"""Runs the graphs of all ranks in a small discrete-event simulation and compares the time with the measured one.

A node begins when all that it depends on has ended and its place is free: CPU nodes take their thread, device nodes
their stream, the earliest start time first. Communication takes no place: each member of a collective or transfer ends
so long after the last one has joined as it did when it was measured (see plan). A rank begins as much later than the
first one as it did then.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from rankscope.analyze.chakra.columns import RankGraph, graph_of
from rankscope.analyze.chakra.cycles import find_cycle
from rankscope.analyze.chakra.engine import Outcome, run
from rankscope.analyze.chakra.groups import groups_of, world_of
from rankscope.analyze.chakra.measured import Window, span_of, window_of
from rankscope.analyze.chakra.plan import NOBODY, Plan, one_lane_each, plan_of
from rankscope.analyze.chakra.verdict import Deadlock, RankReplay, Replay, StuckNode
from rankscope.model.chakra import ChakraFile
from rankscope.model.tables import Array

_STUCK_SHOWN = 8


def replay(files: Sequence[ChakraFile]) -> Replay:
    """One file per rank. Ids must be unique in each; dependencies on nodes that are not there are passed over."""
    graphs = [graph_of(file) for file in files]
    return replay_plan(graphs, plan_of(graphs, [groups_of(graph, world_of(graphs)) for graph in graphs]))


def deadlock_of_simulator(graphs: Sequence[RankGraph], plan: Plan) -> Deadlock | None:
    """Where it gets stuck when only so much runs at a time as astra-sim allows."""
    narrow = one_lane_each(plan, graphs)
    outcome = run(narrow)
    return _deadlock(graphs, narrow, outcome) if NOBODY in outcome.ends else None


def replay_plan(graphs: Sequence[RankGraph], plan: Plan) -> Replay:
    windows = [window_of(graph) for graph in graphs]
    outcome = run(plan)
    ends = np.array(outcome.ends, np.int64)
    ranks = tuple(
        _rank_replay(graph, ends[plan.offsets[index] : plan.offsets[index + 1]], plan.begins[index], windows[index])
        for index, graph in enumerate(graphs)
    )
    simulated = int(ends.max(initial=0))
    measured = span_of(windows)
    n_executed = sum(rank.n_executed for rank in ranks)
    return Replay(
        ranks=ranks,
        n_nodes=len(ends),
        n_executed=n_executed,
        simulated_ns=simulated,
        measured_ns=measured,
        ratio=simulated / measured if measured else None,
        deadlock=_deadlock(graphs, plan, outcome) if n_executed < len(ends) else None,
    )


def _rank_replay(graph: RankGraph, ends: Array, begin: int, window: Window | None) -> RankReplay:
    simulated = max(int(ends.max(initial=0)) - begin, 0)
    measured = window[1] - window[0] if window is not None else 0
    return RankReplay(
        path=graph.path,
        rank=graph.rank,
        n_nodes=len(ends),
        n_executed=int(np.count_nonzero(ends >= 0)),
        simulated_ns=simulated,
        measured_ns=measured,
        ratio=simulated / measured if measured else None,
    )


def _deadlock(graphs: Sequence[RankGraph], plan: Plan, outcome: Outcome) -> Deadlock:
    """The ranks that wait for a partner, then those that wait for each other; those behind them are only counted."""
    stuck: list[StuckNode] = []
    for number, joined in islice(outcome.unmet.items(), _STUCK_SHOWN):
        meeting = plan.meetings[number]
        not_joined = [graphs[plan.locate(node)[0]].rank for node in meeting.nodes if node not in joined]
        awaited = ", ".join(str(rank) for rank in [*not_joined, *meeting.absent_ranks][:_STUCK_SHOWN])
        for rank_number, row in map(plan.locate, joined):
            stuck.append(_stuck_node(graphs[rank_number], row, f"rank {awaited} to join {meeting.what}"))
    for graph in graphs:
        cycle = find_cycle(len(graph), *graph.edges).tolist()
        for row, awaited_row in zip(cycle, [*cycle[1:], *cycle[:1]], strict=True):
            stuck.append(_stuck_node(graph, row, f"node {graph.label(awaited_row)}"))
    return Deadlock(outcome.ends.count(NOBODY), tuple(stuck[:_STUCK_SHOWN]))


def _stuck_node(graph: RankGraph, row: int, waits_for: str) -> StuckNode:
    return StuckNode(graph.path, graph.rank, graph.nodes[row].id, graph.nodes[row].name, waits_for)
