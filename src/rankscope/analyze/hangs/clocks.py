"""Each host's clock offset, from collectives that several ranks saw complete or as the collector measured it.

Fills ranks.clock_offset_ns, and ranks.host where only the manifest tells it.
"""

from __future__ import annotations

import numpy as np

from rankscope.analyze.hangs.signatures import SYNCHRONISING
from rankscope.model.clock import Offsets, estimate_offsets
from rankscope.model.tables import MISSING, Table, Text, Trace

_MAX_EVENTS = 400  # shared moments used: more do not sharpen a median, and the matrix stays small


def align_clocks(trace: Trace) -> dict[str, Table]:
    """What the dumps show comes first: it holds for the time of the calls, a measurement for the job's start."""
    ranks = _with_hosts(trace.table("ranks"), trace.table("manifests"))
    if not len(ranks):
        return {}
    offsets = _estimated(ranks, trace.table("collectives"))
    if offsets is None or (offsets.error_ns == MISSING).all():
        offsets = _measured(ranks, trace.table("manifests")) or offsets
    if offsets is not None:
        ranks = ranks.replaced({"clock_offset_ns": offsets.offset_ns, "clock_error_ns": offsets.error_ns})
    return {"ranks": ranks}


def _with_hosts(ranks: Table, manifests: Table) -> Table:
    known = dict(zip(manifests.array("rank").tolist(), manifests.text("host").tolist(), strict=True))
    hosts = ranks.text("host").tolist()
    if not known or all(hosts):
        return ranks
    named = [host or known.get(rank, "") for rank, host in zip(ranks.array("rank").tolist(), hosts, strict=True)]
    return ranks.replaced({"host": Text.encode(named)})


def _measured(ranks: Table, manifests: Table) -> Offsets | None:
    """Against the clock of rank 0, as the manifests tell it; None where they tell of fewer than two ranks."""
    n_ranks = int(max(ranks.array("rank").max(), manifests.array("rank").max(initial=0))) + 1
    offset, error = np.zeros(n_ranks, np.int64), np.full(n_ranks, MISSING, np.int64)
    is_told = manifests.array("clock_error_ns") != MISSING
    if is_told.sum() < 2:
        return None
    measured = manifests.array("rank")[is_told]
    error[measured] = manifests.array("clock_error_ns")[is_told]
    offset[measured] = manifests.array("clock_offset_ns")[is_told]
    offset[np.abs(offset) <= error] = 0  # within what the measurement may be wrong by
    return Offsets(offset[ranks.array("rank")], error[ranks.array("rank")])


def _estimated(ranks: Table, calls: Table) -> Offsets | None:
    """The completion of a synchronising collective is one moment for all its ranks; its start is not."""
    op = calls.text("op")
    synchronises = np.fromiter((name in SYNCHRONISING for name in op.values), bool, len(op.values))
    completed, created = calls.array("completed_ns"), calls.array("created_ns")
    timeout = calls.array("timeout_ns")
    usable = np.flatnonzero(
        (completed > 0)
        & ~calls.array("is_p2p")
        & (synchronises[op.codes] if len(synchronises) else np.zeros(len(calls), bool))
        & ((timeout <= 0) | (completed - created <= timeout))
    )
    if not len(usable):
        return None
    keys = calls.array("group_id")[usable].astype(np.int64) << 40 | calls.array("seq")[usable]
    distinct, event, counts = np.unique(keys, return_inverse=True, return_counts=True)
    # The collectives of the most ranks tie the most hosts together.
    chosen = np.sort(np.argsort(-counts, kind="stable")[:_MAX_EVENTS])
    column = np.full(len(distinct), -1, np.int64)
    column[chosen] = np.arange(len(chosen))
    row_of_rank = np.full(int(ranks.array("rank").max(initial=0)) + 1, -1, np.int64)
    row_of_rank[ranks.array("rank")] = np.arange(len(ranks))
    keep = column[event] >= 0
    moments = np.zeros((len(ranks), len(chosen)), np.int64)
    moments[row_of_rank[calls.array("rank")[usable[keep]]], column[event[keep]]] = completed[usable[keep]]
    return estimate_offsets(ranks.text("host").tolist(), moments)
