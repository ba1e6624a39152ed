"""Checks Chakra files the way a simulator would read them."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from rankscope.analyze.chakra.catalogue import ERROR, RULES, WARNING, Breach, Rule
from rankscope.analyze.chakra.columns import RankGraph, graph_of
from rankscope.analyze.chakra.graph_rules import check_graph, ids_are_unique
from rankscope.analyze.chakra.groups import Groups, groups_of, world_of
from rankscope.analyze.chakra.node_rules import check_nodes
from rankscope.analyze.chakra.plan import plan_of
from rankscope.analyze.chakra.rank_rules import check_collectives, check_files, check_transfers, known_world_size
from rankscope.analyze.chakra.replay import deadlock_of_simulator, replay_plan
from rankscope.analyze.chakra.verdict import Deadlock, Problem, Replay, RuleCheck, Verdict
from rankscope.model.chakra import COMP, ChakraFile
from rankscope.model.finding import count_noun

SHOWN = 5
_REPLAYS = ("replay-deadlock", "one-at-a-time")
_ACROSS_RANKS = ("collective-mismatch", "collective-size", "transfer-unmatched")
# What makes a replay get stuck by itself: then the deadlock is their effect, not one more thing to look for.
_STOP_A_REPLAY = ("duplicate-id", "cycle", "collective-mismatch", "transfer-unmatched")


def validate(files: Sequence[ChakraFile]) -> Verdict:
    """One file per rank, all of the same job."""
    graphs = [graph_of(file) for file in files]
    books = [groups_of(graph, world_of(graphs)) for graph in graphs]
    breaches = list(_check_all(graphs, books))
    counts = _counts(breaches)
    skipped = dict.fromkeys(_ACROSS_RANKS, why) if (why := _why_not_across(graphs)) else {}
    replayed = _replay(graphs, books, [rule for rule in _STOP_A_REPLAY if counts[rule]])
    skipped |= replayed.skipped
    stuck = [_deadlock_problem(rule, deadlocks) for rule, deadlocks in replayed.deadlocks.items()]
    counts.update((problem.rule, 1) for problem in stuck)
    problems = sorted([*_problems(breaches), *stuck], key=lambda problem: problem.severity != ERROR)
    n_errors, n_warnings = _total(counts, ERROR), _total(counts, WARNING)
    return Verdict(
        paths=tuple(graph.path for graph in graphs),
        n_nodes=sum(map(len, graphs)),
        problems=tuple(problems),
        rules=tuple(_rule_check(rule, counts[rule.name], skipped.get(rule.name, "")) for rule in RULES.values()),
        notes=tuple(_notes(graphs)),
        replay=replayed.replay,
        valid=not n_errors,
        n_errors=n_errors,
        n_warnings=n_warnings,
    )


class _Replayed(NamedTuple):
    replay: Replay | None
    deadlocks: dict[str, Deadlock]  # by rule
    skipped: dict[str, str]


def _replay(graphs: Sequence[RankGraph], books: Sequence[Groups], stopped_by: Sequence[str]) -> _Replayed:
    explained = dict.fromkeys(_REPLAYS, f"broken rules already stop a replay: {', '.join(stopped_by)}")
    if not all(map(ids_are_unique, graphs)):  # dependencies have no meaning then
        return _Replayed(None, {}, explained)
    plan = plan_of(graphs, books)
    replay = replay_plan(graphs, plan)
    if replay.deadlock is None:
        narrow = deadlock_of_simulator(graphs, plan)
        return _Replayed(replay, {"one-at-a-time": narrow} if narrow else {}, {})
    if stopped_by:
        return _Replayed(replay, {}, explained)
    return _Replayed(
        replay, {"replay-deadlock": replay.deadlock}, {"one-at-a-time": "it gets stuck even without this limit"}
    )


def _rule_check(rule: Rule, n_broken: int, why_skipped: str) -> RuleCheck:
    status = "skipped" if why_skipped else "ran"
    return RuleCheck(rule.name, rule.severity, rule.about, status, why_skipped, n_broken)


def _check_all(graphs: Sequence[RankGraph], books: Sequence[Groups]) -> Iterable[Breach]:
    world_size = known_world_size(graphs, books)
    yield from check_files(graphs, world_size)
    if len(graphs) == 1:  # then nobody knows how many ranks there are
        world_size = sys.maxsize
    for graph, groups in zip(graphs, books, strict=True):
        yield from check_graph(graph)
        yield from check_nodes(graph, groups, world_size)
    if not _why_not_across(graphs):
        yield from check_collectives(graphs, books)
        yield from check_transfers(graphs)


def _why_not_across(graphs: Sequence[RankGraph]) -> str:
    ranks = [graph.rank for graph in graphs]
    if len(graphs) < 2:
        return "only one file is given"
    if None in ranks:
        return f"a file name does not contain its rank: {graphs[ranks.index(None)].path}"
    return "a rank has two files" if len(set(ranks)) < len(ranks) else ""


def _counts(breaches: Iterable[Breach]) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for breach in breaches:
        counts[breach.rule] += len(breach.rows)
    return counts


def _total(counts: dict[str, int], severity: str) -> int:
    return sum(counts[rule.name] for rule in RULES.values() if rule.severity == severity)


def _problems(breaches: Iterable[Breach]) -> Iterable[Problem]:
    n_shown: dict[str, int] = defaultdict(int)
    for breach in breaches:
        rows = breach.rows[: SHOWN - n_shown[breach.rule]].tolist()
        n_shown[breach.rule] += len(rows)
        yield from (_problem(breach, row) for row in rows)


def _problem(breach: Breach, row: int) -> Problem:
    rule, graph = RULES[breach.rule], breach.graph
    node = graph.nodes[row] if row >= 0 else None
    return Problem(
        rule=rule.name,
        severity=rule.severity,
        path=graph.path,
        rank=graph.rank,
        node=node.id if node is not None else None,
        name=node.name if node is not None else "",
        message=f"{breach.sentence(row)} {rule.effect}",
        help=rule.help,
    )


def _deadlock_problem(rule_name: str, deadlock: Deadlock) -> Problem:
    rule, first = RULES[rule_name], deadlock.nodes[0]
    waits = "; ".join(f"rank {stuck.rank} node {stuck.node} waits for {stuck.waits_for}" for stuck in deadlock.nodes)
    return Problem(
        rule=rule.name,
        severity=rule.severity,
        path=first.path,
        rank=first.rank,
        node=first.node,
        name=first.name,
        message=f"The replay gets stuck with {deadlock.n_stuck} nodes left: {waits}. {rule.effect}",
        help=rule.help,
    )


def _notes(graphs: Sequence[RankGraph]) -> Iterable[str]:
    kernels = [graph for graph in graphs if ((graph.type == COMP) & ~graph.on_cpu).any()]
    if kernels and not any(graph.has(name).any() for graph in kernels for name in ("num_ops", "tensor_size")):
        yield "No node has num_ops or tensor_size: durations are replayed as measured; the roofline model needs both."
    n_instant = sum(int(np.count_nonzero(graph.duration_ns[graph.comm_rows] == 0)) for graph in graphs)
    if n_instant:
        have = count_noun(n_instant, "communication node has", "communication nodes have")
        yield f"{have} no duration: the replay treats {'it' if n_instant == 1 else 'them'} as instant."
    n_short = sum(int(np.count_nonzero((graph.duration_us == 0) & (graph.duration_ns > 0))) for graph in graphs)
    if n_short:
        are = count_noun(n_short, "node is", "nodes are")
        yield f"{are} shorter than half a microsecond and written as 0: astra-sim counts 1 ns for each."
