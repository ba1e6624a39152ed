"""What connects ranks: no member finishes a collective before the last one has joined."""

from __future__ import annotations

import numpy as np

from rankscope.analyze.link.edges.graph import Edges, Graph
from rankscope.analyze.path.work import numbered
from rankscope.model.tables import MISSING, Array, Trace

# Calls that the profiler's traces could not tie together are tied by their place in the group. That holds where members
# made the same calls at all places and no call that was tied otherwise contradicts it; where calls are not numbered but
# counted from the first recorded one, all have to have made as many. Which member came last is then told by the clock.
_CALLS = f"""
WITH called AS (
    SELECT *, coalesce(rank, {MISSING}) AS own_rank, CASE WHEN is_p2p THEN 'transfer' ELSE coalesce(op, '') END AS what,
           concat_ws(' ', is_p2p, coalesce(group_name, ''), coalesce(group_ranks, ''),
                     CASE WHEN is_p2p THEN src END, CASE WHEN is_p2p THEN dst END,
                     CASE WHEN is_p2p THEN tag END) AS party
    FROM et_collectives
), same_place AS (
    SELECT party, place, count(*) AS n_calls, count(DISTINCT own_rank) AS n_ranks, any_value(match_id) AS match_id,
           count(DISTINCT what) = 1 AND count(DISTINCT match_id) <= 1 AS fits,
           bool_and(seq IS NOT NULL AND NOT is_p2p) AS is_numbered
    FROM called GROUP BY ALL
), parties AS (
    SELECT party, bool_and(fits) AND bool_and(n_calls = n_ranks) AND count(match_id) = count(DISTINCT match_id)
           AND (bool_and(is_numbered) OR min(n_ranks) = max(n_ranks)) AS fits
    FROM same_place GROUP BY ALL
)
SELECT c.runner = 'node' AS is_node, c.runner_file_id, c.own_rank, c.runner_id,
       m.last_rank, c.match_id,
       CASE WHEN c.match_id IS NULL AND p.fits THEN c.place END AS place,
       dense_rank() OVER (ORDER BY c.party) AS party
FROM called AS c JOIN parties AS p ON p.party = c.party LEFT JOIN comm_matches AS m USING (match_id)
"""


def collective_edges(trace: Trace, graph: Graph) -> Edges:
    """From the member that joined last to all others."""
    calls = trace.sql(_CALLS).columns()
    runner = _vertices(graph, *(calls[name] for name in ("is_node", "runner_file_id", "own_rank", "runner_id")))
    rank, match, place = calls["own_rank"], calls["match_id"], calls["place"]
    is_matched = (runner >= 0) & (match >= 0)
    is_placed = (runner >= 0) & (place >= 0) & _is_timed(graph)[runner]
    matched = _from_last(runner, rank, match, rank == calls["last_rank"], is_matched)
    logical = numbered(calls["party"], place)
    joined = graph.time[runner]
    latest = np.full(int(logical.max(initial=0)) + 1, np.iinfo(np.int64).min)
    np.maximum.at(latest, logical[is_placed], joined[is_placed])
    placed = _from_last(runner, rank, logical, joined == latest[logical], is_placed)
    return Edges(*(np.concatenate(pair) for pair in zip(matched, placed, strict=True)))


def _is_timed(graph: Graph) -> Array:
    return np.concatenate((graph.nodes.is_seen, np.ones(len(graph.kernels.work), bool)))


def _from_last(runner: Array, rank: Array, logical: Array, is_last: Array, is_tied: Array) -> Edges:
    """Per logical call: from the runner that came last, or the first of those that did, to the ones of other ranks."""
    targets, lasts = np.flatnonzero(is_tied), np.flatnonzero(is_tied & is_last)
    if not len(lasts):
        return Edges(lasts, lasts)
    numbers, firsts = np.unique(logical[lasts], return_index=True)
    at = np.minimum(np.searchsorted(numbers, logical[targets]), len(numbers) - 1)
    source = lasts[firsts[at]]
    is_other = (numbers[at] == logical[targets]) & (rank[source] != rank[targets])
    return Edges(runner[source], runner[targets]).chosen(is_other)


def _vertices(graph: Graph, is_node: Array, file_id: Array, rank: Array, number: Array) -> Array:
    """MISSING for what is no vertex."""
    known = np.flatnonzero(graph.is_vertex)
    own = (known < graph.n_nodes, graph.file_id[known], graph.rank[known], graph.number[known])
    combined = numbered(*(np.concatenate(pair) for pair in zip(own, (is_node, file_id, rank, number), strict=True)))
    vertex = np.full(int(combined.max(initial=0)) + 1, MISSING)
    vertex[combined[: len(known)]] = known
    return vertex[combined[len(known) :]]
