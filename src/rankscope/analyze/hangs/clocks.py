"""Estimates each host's clock offset from collectives that several ranks saw complete; fills ranks.clock_offset_ns."""

from __future__ import annotations

import numpy as np

from rankscope.analyze.hangs.signatures import SYNCHRONISING
from rankscope.model.clock import estimate_offsets
from rankscope.model.tables import Table, Trace

_MAX_EVENTS = 400  # shared moments used: more do not sharpen a median, and the matrix stays small


def align_clocks(trace: Trace) -> dict[str, Table]:
    """The completion of a synchronising collective is one moment for all its ranks; its start is not."""
    calls, ranks = trace.table("collectives"), trace.table("ranks")
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
        return {}
    keys = calls.array("group_id")[usable].astype(np.int64) << 40 | calls.array("seq")[usable]
    distinct, event, counts = np.unique(keys, return_inverse=True, return_counts=True)
    # The collectives of the most ranks tie the most hosts together.
    chosen = np.sort(np.argsort(-counts, kind="stable")[:_MAX_EVENTS])
    column = np.full(len(distinct), -1, np.int64)
    column[chosen] = np.arange(len(chosen))
    place = np.full(int(ranks.array("rank").max(initial=0)) + 1, -1, np.int64)
    place[ranks.array("rank")] = np.arange(len(ranks))
    keep = column[event] >= 0
    moments = np.zeros((len(ranks), len(chosen)), np.int64)
    moments[place[calls.array("rank")[usable[keep]]], column[event[keep]]] = completed[usable[keep]]
    offsets = estimate_offsets(ranks.text("host").tolist(), moments)
    return {"ranks": ranks.replaced({"clock_offset_ns": offsets.offset_ns, "clock_error_ns": offsets.error_ns})}
