"""Groups that were destroyed and recreated in the same process: the same name, but sequence numbers from 1 again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rankscope.model.tables import Array, Table, distinct


class Life(NamedTuple):
    """One generation of a group in one process, as far as the recorder kept it."""

    first_ns: int
    last_ns: int


def own_generations(calls: Table, process: Array) -> Array:
    """For each call, which of its process's groups of that name it belongs to: 0 for the oldest kept.

    A new one begins with another pg_id, or where the numbers fall back to the beginning.
    """
    names, pg_id = calls.text("group_name").codes.astype(np.int64), calls.array("pg_id").astype(np.int64) + 1
    owner = process.astype(np.int64) * (int(names.max(initial=0)) + 1) + names
    pg_id = _settled_ids(calls, owner, pg_id)
    _, first, group = np.unique(owner * (int(pg_id.max(initial=0)) + 1) + pg_id, return_index=True, return_inverse=True)
    restarts = _restarts(calls, group)
    if restarts.any():
        lives = group * (int(restarts.max()) + 1) + restarts
        _, first, group = np.unique(lives, return_index=True, return_inverse=True)
    # Lives are numbered by their first call.
    owner_of_life = owner[first]
    order = np.lexsort((first, owner_of_life))
    is_new = np.append(True, np.diff(owner_of_life[order]) != 0)[: len(order)]
    index = np.arange(len(order))
    number = np.empty(len(order), np.int64)
    number[order] = index - np.maximum.accumulate(np.where(is_new, index, 0))
    result: Array = number[group]
    return result


def _settled_ids(calls: Table, owner: Array, pg_id: Array) -> Array:
    """One number per group if two recorders gave it two: the calls then continue counting from one to the other."""
    n_ids = int(pg_id.max(initial=0)) + 1
    groups = distinct(owner * n_ids + pg_id)
    owners, counts = np.unique(groups // n_ids, return_counts=True)
    is_counted = ~calls.array("is_p2p") & ~calls.text("role").equals("member")
    settled = pg_id
    for suspect in owners[counts > 1].tolist():
        rows = np.flatnonzero((owner == suspect) & is_counted)
        changes = np.diff(pg_id[rows]) != 0
        if not (changes & (np.diff(calls.array("seq")[rows]) <= 0)).any():
            settled = settled.copy() if settled is pg_id else settled
            settled[owner == suspect] = pg_id[owner == suspect].max()
    return settled


def _restarts(calls: Table, group: Array) -> Array:
    """How often the numbers of the call's group had begun again before it."""
    seq = calls.array("seq")
    is_counted = ~calls.array("is_p2p") & ~calls.text("role").equals("member")
    restarts = np.zeros(len(calls), np.int64)
    numbered = np.flatnonzero(is_counted)
    is_oldest = np.zeros(len(calls), np.bool_)
    is_oldest[numbered[np.unique(group[numbered], return_index=True)[1]]] = True
    # The first numbers after others, of which the ring may have kept only the later ones; hardly ever there.
    for suspect in distinct(group[is_counted & (seq <= 1) & ~is_oldest]).tolist():
        rows = np.flatnonzero(group == suspect)
        counted = rows[is_counted[rows]]
        falls = np.append(False, (seq[counted][1:] <= 1) & (seq[counted][:-1] > 1))
        # Transfers and members of coalesced calls are of the group as it was when they were made.
        before = np.searchsorted(counted, rows, side="right") - 1
        restarts[rows] = np.where(before >= 0, np.cumsum(falls)[np.maximum(before, 0)], 0)
    return restarts


def aligned(lives: Mapping[int, Sequence[Life]]) -> dict[int, list[int]]:
    """By process, which generation of the group each of its lives is: the same number in all processes.

    Rings reach back differently far, so lives are matched by their time with those of the process that kept the most.
    """
    reference = max(lives.values(), key=lambda those: (len(those), -those[0].first_ns))
    return {process: _placed(history, reference) for process, history in lives.items()}


def _placed(history: Sequence[Life], reference: Sequence[Life]) -> list[int]:
    """The newest first, each at the nearest life of the reference that leaves room for the older ones."""
    places: list[int] = []
    highest = len(reference) - 1
    for n_older, life in zip(range(len(history) - 1, -1, -1), reversed(history), strict=True):
        possible = range(n_older, highest + 1)
        places.append(min(possible, key=lambda index: (_distance(life, reference[index]), -index)))
        highest = places[-1] - 1
    return places[::-1]


def _distance(one: Life, other: Life) -> int:
    return abs(one.first_ns - other.first_ns) + abs(one.last_ns - other.last_ns)
