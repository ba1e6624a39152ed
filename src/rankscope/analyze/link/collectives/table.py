"""The table et_collectives: which collective each call of an execution trace is, what did it, and for whom."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.collectives.names import P2P, SIZED_BY_OUTPUT
from rankscope.analyze.derived import table
from rankscope.analyze.link.collectives.calls import Calls, called
from rankscope.analyze.link.collectives.groups import Memberships, memberships
from rankscope.analyze.link.collectives.runs import Runners, runners
from rankscope.analyze.link.nodes import nodes_of
from rankscope.analyze.path.work import numbered
from rankscope.model.tables import MISSING, Array, Table, Text, Trace


@table("et_collectives", needs=("et_nodes",))
def et_collectives(trace: Trace) -> Table:
    all_calls = called(trace)
    calls, run = all_calls.calls, runners(trace, all_calls)
    groups = memberships(trace, calls, run)
    is_p2p = np.isin(calls.op, P2P)
    ends = _ends(calls, run, groups)
    seq = _told(calls.seq, run.seen.seq)
    columns: dict[str, Array | Text] = {
        **_runner_columns(trace, calls, run),
        **_size_columns(calls, run),
        "file_id": calls.file_id.astype(np.int32),
        "rank": calls.rank.astype(np.int32),
        "node_id": calls.node_id,
        "comm_id": run.seen.comm_id,
        "match_id": run.seen.match_id,
        "op": Text.encode(calls.op.tolist()),
        "is_p2p": is_p2p,
        "group_name": groups.name,
        "group_ranks": groups.ranks,
        "group_size": groups.size,
        "is_inferred": groups.is_inferred,
        "root": np.where(is_p2p, MISSING, groups.partner).astype(np.int32),
        "src": ends.src.astype(np.int32),
        "dst": ends.dst.astype(np.int32),
        "tag": calls.tag,
        "seq": seq,
        "place": _places(calls, groups, ends, seq),
        "group_id": np.array([twin.group_id for twin in groups.twins], np.int32),
        "recorder_file_id": np.array([twin.file_id for twin in groups.twins], np.int32),
        "record_id": np.array([twin.record_id for twin in groups.twins], np.int64),
    }
    return Table("et_collectives", columns)


def _told(first: Array, second: Array) -> Array:
    return np.where(first == MISSING, second, first)


def _runner_columns(trace: Trace, calls: Calls, run: Runners) -> dict[str, Array | Text]:
    has_kernel = run.seen.kernel_id != MISSING
    node = np.where(run.run == MISSING, calls.place, run.run)
    return {
        "runner": Text(has_kernel.astype(np.int32), ["node", "kernel"]),
        "runner_id": np.where(has_kernel, run.seen.kernel_id, nodes_of(trace).node_id[node]),
        "runner_file_id": np.where(has_kernel, run.seen.profile_id, calls.file_id).astype(np.int32),
    }


def _size_columns(calls: Calls, run: Runners) -> dict[str, Array | Text]:
    """What the node does not say, the profiler may have recorded."""
    seen = run.seen
    n_in, n_out = _told(calls.n_in, seen.n_in), _told(calls.n_out, seen.n_out)
    largest = np.maximum(seen.n_in, seen.n_out)
    item_bytes = np.where((seen.n_bytes > 0) & (largest > 0), seen.n_bytes // np.maximum(largest, 1), 0)
    n_counted = np.where(np.isin(calls.op, SIZED_BY_OUTPUT), n_out, n_in)
    by_profile = np.where((item_bytes > 0) & (n_counted != MISSING), n_counted * item_bytes, MISSING)
    return {
        "dtype": Text.encode(np.where(calls.dtype == "", seen.dtype, calls.dtype).tolist()),
        "n_in": n_in,
        "n_out": n_out,
        "n_bytes": _told(calls.n_bytes, by_profile),
    }


class _Ends(NamedTuple):
    src: Array
    dst: Array


def _ends(calls: Calls, run: Runners, groups: Memberships) -> _Ends:
    """Who sends and who receives. What was received from anyone came from the rank whose send was matched with it."""
    is_send, is_recv = calls.op == "send", calls.op == "recv"
    src = np.where(is_send, calls.rank, np.where(is_recv, groups.partner, MISSING))
    dst = np.where(is_recv, calls.rank, np.where(is_send, groups.partner, MISSING))
    src = np.where(is_send | is_recv, _told(src, run.seen.src), MISSING)
    dst = np.where(is_send | is_recv, _told(dst, run.seen.dst), MISSING)
    match_id = run.seen.match_id
    sender = np.full(int(match_id.max(initial=MISSING)) + 2, MISSING, np.int64)
    is_known = is_send & (match_id != MISSING)
    sender[match_id[is_known]] = calls.rank[is_known]
    return _Ends(np.where(is_recv & (src == MISSING), sender[match_id], src), dst)


def _places(calls: Calls, groups: Memberships, ends: _Ends, seq: Array) -> Array:
    """The same on all ranks for one logical call, where all of them were recorded from the same one on.

    Transfers are counted by each rank alone, so their numbers say nothing.
    """
    is_p2p = np.isin(calls.op, P2P)
    group = numbered(groups.name.codes, groups.ranks.codes, is_p2p, ends.src, ends.dst, calls.tag)
    is_numbered = np.bincount(group, is_p2p | (seq == MISSING)) == 0
    # A rank may have several traces, one per window, which follow each other.
    series = numbered(np.where(calls.rank == MISSING, calls.file_id, MISSING), calls.rank, group)
    order = np.argsort(series, kind="stable")
    first = np.searchsorted(series[order], series)
    counted = np.empty(len(calls), np.int64)
    counted[order] = np.arange(len(calls))
    return np.where(is_numbered[group], seq, counted - first)
