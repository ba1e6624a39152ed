"""What ran each collective that an execution trace has a call of: a kernel, or gloo on a separate thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rankscope.analyze.collectives.resolved import RESOLVED_COMMS
from rankscope.analyze.link.collectives.calls import Called
from rankscope.analyze.path.work import same_process
from rankscope.model.tables import MISSING, Array, Trace

_SEEN = f"""
WITH seen AS (
    SELECT c.*, l.place
    FROM {RESOLVED_COMMS} AS c JOIN kernels AS k ON {same_process("c", "k")} AND c.kernel_id = k.kernel_id
                    JOIN linked_nodes AS l ON {same_process("k", "l")} AND k.op_id = l.op_id
    UNION ALL
    SELECT c.*, l.place
    FROM {RESOLVED_COMMS} AS c JOIN annotations AS a
                        ON {same_process("c", "a")} AND c.tid = a.tid AND c.start_ns = a.start_ns AND c.name = a.name
                           AND a.kind = 'host'
                    JOIN linked_nodes AS l ON {same_process("a", "l")} AND a.annotation_id = l.annotation_id
    WHERE c.kernel_id IS NULL
)
SELECT place, s.file_id AS profile_id,
       comm_id, kernel_id, match_id, seq, src, dst, group_size, n_in, n_out, n_bytes, duration_ns, group_name,
       group_ranks, dtype
FROM seen AS s LEFT JOIN (SELECT file_id, rank, comm_id AS matched_id, match_id FROM comm_calls) AS m
    ON {same_process("s", "m")} AND s.comm_id = m.matched_id
ORDER BY place, s.start_ns
"""


class Seen(NamedTuple):
    """What a profiler noted of each call; MISSING and empty where it did not see it."""

    profile_id: Array
    comm_id: Array
    kernel_id: Array
    match_id: Array
    seq: Array
    src: Array
    dst: Array
    group_size: Array
    n_in: Array
    n_out: Array
    n_bytes: Array
    group_name: Array
    group_ranks: Array
    dtype: Array


@dataclass(frozen=True)
class Runners:
    """One entry per call."""

    run: Array  # what gloo did for it, as a place among all nodes; MISSING when there is none
    seen: Seen


def runners(trace: Trace, called: Called) -> Runners:
    columns = _comms_of_nodes(trace)
    n_calls = len(called.calls)
    run = np.full(n_calls, MISSING, np.int64)
    # Some calls run in several parts. The first begins when the call does.
    known = np.flatnonzero(called.call_of_run != MISSING)
    by_turn = known[np.argsort(called.runs.turn[known], kind="stable")][::-1]
    run[called.call_of_run[by_turn]] = called.runs.place[by_turn]
    return Runners(run, _chosen(columns, called, run))


def _comms_of_nodes(trace: Trace) -> dict[str, Array]:
    """What the profiler noted of collectives, and the place of the node that each belongs to."""
    links = trace.table("et_links")
    node = np.flatnonzero(links.array("profile_id") != MISSING)
    linked = {name: links.array(name)[node] for name in ("rank", "op_id", "annotation_id")}
    linked |= {"file_id": links.array("profile_id")[node], "place": node}
    return trace.sql(_SEEN, linked_nodes=linked).columns()


def _chosen(columns: dict[str, Array], called: Called, run: Array) -> Seen:
    node, n_calls = columns["place"], len(called.calls)
    call = called.call_of_node[node]
    call_of_run = np.full(len(called.call_of_node), MISSING, np.int64)
    has_run = np.flatnonzero(run != MISSING)
    call_of_run[run[has_run]] = has_run
    call = np.where(columns["kernel_id"] == MISSING, call_of_run[node], call)
    # Of several kernels the longest is the one that moves the data.
    rows = np.flatnonzero(call != MISSING)
    rows = rows[np.argsort(columns["duration_ns"][rows], kind="stable")]
    row_of_call = np.full(n_calls, MISSING, np.int64)
    row_of_call[call[rows]] = rows
    return Seen(*(_taken(columns[name], row_of_call) for name in Seen._fields))


def _taken(values: Array, row_of_call: Array) -> Array:
    absent = "" if values.dtype == object else MISSING
    return np.append(values, np.array([absent], values.dtype))[row_of_call]
