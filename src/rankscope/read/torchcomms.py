"""Dumps of torchcomms: the layout of torch's recorder, with other meanings of its numbers and states.

- A call's number counts the calls of all communicators of the process, transfers included, and begins at 0.
- Only `retired` says whether a call has ended: a call in flight reads `completed`, as the event that is asked about
  its end has not been recorded yet, and on the CPU no call ever leaves `scheduled`.
- A transfer does not say that it is one, nor who the other side is. There are no counters.
"""

from __future__ import annotations

import numpy as np

from rankscope.model.tables import MISSING, Array, Table, Text

RECORDER = "torchcomms"
_STATES = ("scheduled", "started", "completed")


def is_torchcomms(calls: Table) -> bool:
    """It describes each communicator by its backend, and numbers calls as it numbers records."""
    if not len(calls) or calls.array("p2p_seq").any():
        return False
    descriptions, backends = calls.text("group_desc"), calls.text("backend")
    pairs = set(zip(descriptions.codes.tolist(), backends.codes.tolist(), strict=True))
    if not all(descriptions.values[left] == backends.values[right] != "" for left, right in pairs):
        return False
    return bool(np.ptp(calls.array("seq") - calls.array("record_id")) == 0)


def with_real_states(calls: Table) -> Table:
    retired, started = calls.array("retired"), calls.array("started_ns") > 0
    codes = np.where(retired, 2, np.where(started, 1, 0)).astype(np.int8)
    ended = np.where(retired, calls.array("completed_ns"), MISSING)
    return calls.replaced({"state": Text(codes, _STATES), "completed_ns": ended})


def number_calls(tables: dict[str, Table]) -> None:
    """Numbers the calls of each communicator, as torch does.

    Once a ring has wrapped it is unknown how many calls of each communicator are gone: the recorded numbers stay,
    which are the same on all ranks as long as these make the same calls.
    """
    calls, ranks = tables.get("collectives"), tables["ranks"]
    is_own = ranks.text("recorder").equals(RECORDER)
    if calls is None or not is_own.any():
        return
    rows = np.flatnonzero(np.isin(calls.array("file_id"), ranks.array("file_id")[is_own]))
    seq, p2p_seq = calls.array("seq").copy(), calls.array("p2p_seq").copy()
    is_p2p = calls.array("is_p2p")[rows]
    names = calls.text("group_name")
    owner = calls.array("file_id")[rows].astype(np.int64) * len(names.values) + names.codes[rows]
    p2p_seq[rows] = np.where(is_p2p, _running_count(owner, is_p2p), 0)
    is_whole = not ranks.array("n_dropped")[is_own].any()
    seq[rows] = _running_count(owner, ~is_p2p) if is_whole else seq[rows] + 1
    tables["collectives"] = calls.replaced({"seq": seq, "p2p_seq": p2p_seq})


def _running_count(owner: Array, is_counted: Array) -> Array:
    """How many of the owner's rows were counted up to each row."""
    order = np.argsort(owner, kind="stable")
    counts = np.cumsum(is_counted[order])
    starts = np.flatnonzero(np.append(True, owner[order][1:] != owner[order][:-1]))
    before = counts[starts] - is_counted[order][starts]
    result = np.empty(len(owner), np.int64)
    result[order] = counts - np.repeat(before, np.diff(np.append(starts, len(owner))))
    return result
