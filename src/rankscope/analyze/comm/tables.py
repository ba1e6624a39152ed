"""The matched calls as tables: groups, logical calls, and the part each rank's call had in them."""

from __future__ import annotations

import json

import numpy as np

from rankscope.analyze.comm.matching import METHODS
from rankscope.analyze.comm.measures import Measures, measures_of
from rankscope.analyze.metric import Selection, metric
from rankscope.model.tables import MISSING, Array, Table, Text, Trace

_TRANSFER = "transfer"
# What a ring has to move per byte of the message, in the convention of nccl-tests; n is the number of members.
_TWICE = ("all_reduce", "all_reduce_coalesced")
_ONCE = ("all_gather", "reduce_scatter", "all_to_all")


@metric("comm_groups", "comm_groups", needs=("comms",), of_all_profiles=True)
def comm_groups(trace: Trace, selection: Selection) -> Table:
    """One row per group of ranks that communicate with each other.

    A group is identified by its name and its members: names are just numbers within a job, and local groups may share
    one. If a trace does not list the members, it refers to the group of that name that its rank belongs to. Calls
    without a name belong to the only group of the job, or to the group of their stream; if neither is known, ranks
    whose calls repeatedly end together are treated as a group (is_inferred).
    """
    matching = measures_of(trace).matching
    hosts = _hosts_of_ranks(trace)
    n_calls = np.bincount(matching.group[matching.group != MISSING], minlength=len(matching.groups))
    rows = [
        {
            "group_key": number,
            "name": group.name,
            "desc": group.desc,
            "ranks": json.dumps(group.ranks),
            "size": group.size,
            "is_inferred": group.is_inferred,
            "n_hosts": len({hosts[rank] for rank in group.ranks if rank in hosts}) or MISSING,
            "n_calls": int(n_calls[number]),
        }
        for number, group in enumerate(matching.groups)
        if selection.ranks is None or not set(selection.ranks).isdisjoint(group.ranks)
    ]
    return Table.from_rows("comm_groups", rows)


def _hosts_of_ranks(trace: Trace) -> dict[int, str]:
    profiles = trace.table("profiles")
    named = zip(profiles.array("rank").tolist(), profiles.text("host").tolist(), strict=True)
    return {rank: host for rank, host in named if host}


@metric("comm_matches", "comm_matches", needs=("comms",), of_all_profiles=True)
def comm_matches(trace: Trace, selection: Selection) -> Table:
    """One row per collective or transfer for which the calls of at least two ranks were found.

    Calls are matched by comms-id (the number that newer versions of torch give to the logical call), else by seq (group
    and sequence number), else by order (the calls of a group in sequence, shifted by where each trace begins;
    operation, type and size must agree throughout, and the calls must run at the same time), else by time (the same
    kind of call, with ends on the common clock no farther apart than ten times what is usual in this job). Transfers
    are always matched by order or time, because each process numbers them by itself; seq then says that both ends have
    the same number.

    confidence is 1 for comms-id, 0.98 for seq, 0.9 for order and 0.7 for time, times the share of the members whose
    ends are within 5 ms of the median. transfer_ns is the shortest duration of any member if all end together, else the
    time from the last arrival to the median end. algorithm_gbps = n_bytes / transfer_ns; bus_gbps is that times
    2 (n - 1) / n for all_reduce, (n - 1) / n for all_gather, reduce_scatter and all_to_all, and 1 for all others.
    """
    measures = measures_of(trace)
    rows, matches = measures.matching.rows, measures.matches
    last = matches.last_row
    chosen = np.flatnonzero(_is_selected(selection, matches.first_arrival_ns, rows.step[last]))
    last = last[chosen]
    op = [*rows.op_names, _TRANSFER]
    op_code = np.where(rows.is_p2p[last], len(rows.op_names), rows.op[last])
    n_bytes = _largest_size(measures)[chosen]
    bandwidth = np.where((n_bytes > 0) & (matches.transfer_ns[chosen] > 0), n_bytes, np.nan)
    bandwidth = bandwidth / np.maximum(matches.transfer_ns[chosen], 1)  # bytes per nanosecond are GB/s
    n_members = matches.n_members[chosen]
    factor = _bus_factor(op, n_members)
    columns: dict[str, Array | Text] = {
        "match_id": chosen,
        "group_key": measures.matching.group[last].astype(np.int32),
        "op": Text(op_code.astype(np.int32), op),
        "is_p2p": rows.is_p2p[last].astype(bool),
        "seq": rows.seq[last],
        "step": rows.step[last],
        "dtype": Text(rows.dtype[last].astype(np.int32), rows.dtype_names),
        "n_bytes": n_bytes,
        "n_members": n_members.astype(np.int32),
        "n_seen": matches.n_seen[chosen].astype(np.int32),
        "is_complete": matches.is_complete[chosen],
        "method": Text(matches.method[chosen].astype(np.int32), METHODS),
        "confidence": matches.confidence[chosen],
        "start_ns": matches.first_arrival_ns[chosen],
        "last_arrival_ns": matches.last_arrival_ns[chosen],
        "end_ns": matches.end_ns[chosen],
        "last_rank": rows.rank[last].astype(np.int32),
        "last_file_id": rows.file_id[last].astype(np.int32),
        "wait_ns": (matches.last_arrival_ns - matches.first_arrival_ns)[chosen],
        "transfer_ns": matches.transfer_ns[chosen],
        "end_spread_ns": matches.end_spread_ns[chosen],
        "algorithm_gbps": bandwidth,
        "bus_gbps": bandwidth * factor[op_code, np.arange(len(chosen))],
    }
    return Table("comm_matches", columns)


def _largest_size(measures: Measures) -> Array:
    matching = measures.matching
    sizes = np.full(len(measures.matches.n_seen), MISSING, np.int64)
    matched = np.flatnonzero(matching.match != MISSING)
    np.maximum.at(sizes, matching.match[matched], matching.rows.n_bytes[matched])
    return sizes


def _bus_factor(op_names: list[str], n_members: Array) -> Array:
    """[operation, match]"""
    share = (n_members - 1) / np.maximum(n_members, 1)
    return np.stack([2 * share if op in _TWICE else share if op in _ONCE else np.ones_like(share) for op in op_names])


def _is_selected(selection: Selection, start_ns: Array, step: Array) -> Array:
    chosen = np.ones(len(start_ns), bool)
    if selection.steps is not None:
        chosen &= np.isin(step, list(selection.steps))
    if selection.since_ns is not None:
        chosen &= start_ns >= selection.since_ns
    if selection.until_ns is not None:
        chosen &= start_ns < selection.until_ns
    return chosen


@metric("comm_calls", "comm_calls", needs=("comms",), of_all_profiles=True)
def comm_calls(trace: Trace, selection: Selection) -> Table:
    """One row per call of a rank: the logical call it was part of, and where its time went.

    A rank joins a collective when its kernel starts (on the host: when the backend starts to run it). Until the last
    member has joined, the call waits; after that it moves data. If the calls of some members were not found, the last
    one may be among them, and the real wait is at least as long as shown. exposed_ns is the part of the call when the
    rank runs no kernel except communication (on the host: no operator) and is not already in an earlier call: summed
    over the calls of a step, it is the time that communication cost the rank.
    """
    measures = measures_of(trace)
    matching, rows = measures.matching, measures.matching.rows
    is_chosen = _is_selected(selection, measures.start_ns, rows.step)
    if selection.ranks is not None:
        is_chosen &= np.isin(rows.rank, list(selection.ranks))
    chosen = np.flatnonzero(is_chosen)
    is_matched = matching.match != MISSING
    is_last = np.zeros(len(rows), bool)
    is_last[measures.matches.last_row] = True
    transfer = np.full(len(rows), MISSING, np.int64)
    judged = measures.wait_ns != MISSING
    arrived = measures.matches.last_arrival_ns[matching.match[judged]] if is_matched.any() else np.empty(0, np.int64)
    transfer[judged] = np.maximum(measures.end_ns[judged] - arrived, 0)
    columns: dict[str, Array] = {
        "file_id": rows.file_id.astype(np.int32),
        "rank": rows.rank.astype(np.int32),
        "comm_id": rows.comm_id,
        "match_id": matching.match,
        "group_key": matching.group.astype(np.int32),
        "step": rows.step,
        "start_ns": measures.start_ns,
        "end_ns": measures.end_ns,
        "wait_ns": measures.wait_ns,
        "transfer_ns": transfer,
        "lateness_ns": measures.lateness_ns,
        "exposed_ns": measures.exposed_ns,
        "is_last": is_last,
    }
    return Table("comm_calls", {name: values[chosen] for name, values in columns.items()})
