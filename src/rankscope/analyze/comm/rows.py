"""The calls of all ranks as columns: what matching looks at. Texts are codes, so that only numbers are compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.analyze.collectives.groups import UNKNOWN_GROUP, CommGroup, Mention, resolve_mentions
from rankscope.analyze.collectives.resolved import RESOLVED_COMMS
from rankscope.analyze.device.events import with_process
from rankscope.analyze.hangs.signatures import SYNCHRONISING
from rankscope.model.tables import MISSING, Array, Trace

# The words of a group; calls without any are told apart by their stream, as a process gives each group one of its own.
_COMMS = f"""(
    SELECT * REPLACE (
               coalesce(file_id, -1) AS file_id, coalesce(rank, -1) AS rank, coalesce(group_name, '') AS group_name,
               coalesce(group_desc, '') AS group_desc, coalesce(group_ranks, '') AS group_ranks,
               coalesce(group_size, -1) AS group_size, coalesce(dtype, '') AS dtype, coalesce(n_bytes, -1) AS n_bytes,
               coalesce(generation, -1) AS generation),
           kernel_id IS NULL AS is_on_host,
           CASE WHEN coalesce(group_name, '') = '' THEN coalesce(stream, tid, -1) ELSE -1 END AS lane
    FROM {RESOLVED_COMMS})"""
_MENTION = "file_id, rank, group_name, group_desc, group_ranks, group_size, is_on_host, lane, generation"
# What all members of a collective have in common. The sizes of all_to_all are each member's own; send and recv are two
# ends of one thing.
_SIGNATURE = """
    CASE WHEN is_p2p THEN 'transfer' ELSE op END, CASE WHEN op IS DISTINCT FROM 'all_to_all' THEN dtype END,
    CASE WHEN op IS DISTINCT FROM 'all_to_all' THEN n_bytes END
"""
_ROWS = f"""
    SELECT file_id, rank, comm_id, dense_rank() OVER (ORDER BY {_MENTION}) - 1 AS mention,
           dense_rank() OVER (ORDER BY op) - 1 AS op, dense_rank() OVER (ORDER BY {_SIGNATURE}) - 1 AS signature,
           CASE WHEN comms_id IS NULL THEN -1 ELSE dense_rank() OVER (ORDER BY comms_id) END AS comms_key,
           dense_rank() OVER (ORDER BY dtype) - 1 AS dtype,
           seq, is_p2p, is_on_host, lane,
           CASE op WHEN 'send' THEN dst WHEN 'recv' THEN src END AS peer, partner, op = 'send' AS is_send,
           start_ns, start_ns + duration_ns AS end_ns, step, n_bytes
    FROM {_COMMS} ORDER BY file_id, rank, start_ns, comm_id
"""

_LARGEST_KEY = 2**62


@dataclass(frozen=True)
class CommRows:
    """One entry per call, by process and time. `domain` numbers what can match: a group, or one direction of a pair."""

    process: Array
    file_id: Array
    rank: Array
    comm_id: Array
    group: Array
    domain: Array  # MISSING where nothing tells who takes part
    op: Array
    signature: Array
    dtype: Array
    comms_key: Array
    seq: Array
    is_p2p: Array
    is_on_host: Array
    lane: Array
    start_ns: Array
    end_ns: Array
    step: Array
    n_bytes: Array
    synchronises: Array  # its end is one moment for all members
    op_names: list[str]
    dtype_names: list[str]
    groups: list[CommGroup]

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def ends_together(self) -> Array:
        """Where the ends of all members are close: not on the host, and not where a root may leave early."""
        close: Array = (self.synchronises | self.is_p2p) & ~self.is_on_host
        return close


def load_rows(trace: Trace) -> CommRows:
    rows = with_process(trace, trace.sql(_ROWS).columns())
    groups, group_of = resolve_mentions(trace, _mentions(trace))
    group = np.asarray(group_of, np.int64)[rows["mention"]] if group_of else np.empty(0, np.int64)
    op_names = [op for (op,) in trace.sql(f"SELECT DISTINCT op FROM {_COMMS} ORDER BY op").rows()]
    dtypes = trace.sql(f"SELECT DISTINCT dtype FROM {_COMMS} ORDER BY dtype").rows()
    synchronises = np.fromiter((op in SYNCHRONISING for op in op_names), bool, len(op_names))
    columns = {name: rows[name] for name in CommRows.__dataclass_fields__ if name in rows}
    return CommRows(
        **columns,
        group=group,
        domain=_domains(rows, group, groups),
        synchronises=synchronises[rows["op"]] if len(op_names) else np.zeros(0, bool),
        op_names=op_names,
        dtype_names=[dtype for (dtype,) in dtypes],
        groups=groups,
    )


def _mentions(trace: Trace) -> list[Mention]:
    """Numbered as the rows number them: the same columns in the same order."""
    sql = f"SELECT DISTINCT {_MENTION} FROM {_COMMS} ORDER BY {_MENTION}"
    return [Mention(*row) for row in trace.sql(sql).rows()]


def _domains(rows: dict[str, Array], group: Array, groups: list[CommGroup]) -> Array:
    """Collectives match within their group, transfers within their group, source and destination."""
    domain = np.where(rows["is_p2p"], MISSING, group)
    stated = np.where(rows["peer"] == MISSING, rows["partner"], rows["peer"]).astype(np.int64)
    transfers = np.flatnonzero(rows["is_p2p"] & (group != UNKNOWN_GROUP) & (stated != MISSING))
    if len(transfers):
        rank = rows["rank"][transfers].astype(np.int64)
        is_place = rows["peer"][transfers] == MISSING
        peer = _global_peers(group[transfers], rank, stated[transfers], is_place, groups)
        is_send = rows["is_send"][transfers]
        _, number = numbered(group[transfers], np.where(is_send, rank, peer), np.where(is_send, peer, rank))
        domain[transfers] = len(groups) + number
    is_nameless = rows["is_p2p"] & (domain == MISSING)
    if len(np.unique(rows["rank"])) == 2:  # then there is no question who talks to whom
        domain[is_nameless] = max(int(domain.max(initial=-1)) + 1, len(groups))
    return domain


def _global_peers(group: Array, rank: Array, peer: Array, is_place: Array, groups: list[CommGroup]) -> Array:
    """The other end as a global rank: callers and some versions of torch have its place in the group instead."""
    resolved = peer.copy()
    for number in np.unique(group).tolist():
        members = np.asarray(groups[number].ranks, np.int64)
        stated = np.flatnonzero((group == number) & ~is_place)
        is_global = np.isin(peer[stated], members).all() and not np.any(peer[stated] == rank[stated])
        places = np.flatnonzero((group == number) & (is_place | (not is_global)))
        if len(members) and peer[places].max(initial=MISSING) < len(members):
            resolved[places] = members[peer[places]]
    return resolved


def numbered(*columns: Array) -> tuple[Array, Array]:
    """The first entry of each combination of values, in order of these, and the number of each entry's combination."""
    key = np.zeros(len(columns[0]), np.int64)
    span = 1
    for column in columns:
        lowest, highest = int(column.min(initial=0)), int(column.max(initial=0))
        if span * (highest - lowest + 1) >= _LARGEST_KEY:
            _, key = np.unique(key, return_inverse=True)
            key, span = key.reshape(-1), len(key)
        key = key * (highest - lowest + 1) + (column - lowest)
        span *= highest - lowest + 1
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    return first, number.reshape(-1)


def occurrence(*columns: Array) -> Array:
    """How many entries before have the same values."""
    _, number = numbered(*columns)
    order = np.argsort(number, kind="stable")
    counts = np.bincount(number)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    count = np.empty(len(order), np.int64)
    count[order] = np.arange(len(order)) - first
    return count


def extremes(index: Array, values: Array) -> tuple[Array, Array]:
    """The lowest and the highest value at each index; every index up to the last occurs."""
    n_places = int(index.max(initial=-1)) + 1
    lowest, highest = np.full(n_places, np.iinfo(np.int64).max), np.full(n_places, np.iinfo(np.int64).min)
    np.minimum.at(lowest, index, values)
    np.maximum.at(highest, index, values)
    return lowest, highest
