"""Which process group calls belong to if their nodes do not say: those of gloo.

Each group has two threads of its own that run its calls. They are made right after each other when the group is, so
threads in the order of their numbers are groups in the order of their making. Sends and receives run on the caller's
thread; which group they belong to cannot be seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rankscope.analyze.link.collectives.calls import Calls
from rankscope.analyze.link.collectives.runs import Runners
from rankscope.model.tables import MISSING, Array, Trace

DEFAULT_GROUP = "0"


class Group(NamedTuple):
    """As an execution trace lists it."""

    name: str
    backend: str
    ranks: tuple[int, ...]


class _Pair(NamedTuple):
    """Threads of one group, and what their calls show of it."""

    threads: tuple[int, ...]
    names: frozenset[str]
    sizes: frozenset[int]
    largest_partner: int

    def can_be(self, group: Group) -> bool:
        size = len(group.ranks)
        return self.names <= {group.name} and self.sizes <= {size} and self.largest_partner < size


def groups_of_threads(
    trace: Trace, calls: Calls, runners: Runners, name: Array, listed: dict[int, list[Group]]
) -> tuple[Array, Array]:
    """The names with those added that were missing, and for which calls they are conclusions."""
    name = name.astype(object)
    is_concluded = np.zeros(len(calls), bool)
    missing = np.flatnonzero(name == "")
    tid = trace.table("et_links").array("tid") if len(missing) else np.empty(0, np.int64)
    for file_id in np.unique(calls.file_id[missing]).tolist():
        groups = _candidates(listed.get(file_id, []))
        own = missing[calls.file_id[missing] == file_id]
        if len(groups) == 1:
            name[own] = groups[0].name
            continue
        is_concluded[own] = True
        name[own] = groups[0].name if groups else DEFAULT_GROUP
        rows = np.flatnonzero((calls.file_id == file_id) & (runners.run != MISSING))
        thread = tid[runners.run[rows]]
        is_elsewhere = (thread != MISSING) & (thread != tid[calls.place[rows]])
        rows, thread = rows[is_elsewhere], thread[is_elsewhere]
        recorded = np.where(calls.group_name[rows] == "", "", name[rows])
        for known, pair in _assigned(_pairs(calls.take(rows), thread, recorded, len(groups)), groups):
            chosen = rows[np.isin(thread, pair.threads)]
            name[np.intersect1d(chosen, own)] = known
    return name, is_concluded


def _candidates(groups: Sequence[Group]) -> list[Group]:
    return [group for group in groups if "gloo" in group.backend or not group.backend] or list(groups)


def _pairs(calls: Calls, thread: Array, recorded: Array, n_groups: int) -> list[_Pair]:
    """The threads that ran calls, two and two as they were made, in the order of their numbers."""
    threads, n_calls = np.unique(thread, return_counts=True)
    pairs = []
    for members in _neighbours(threads, n_calls, n_groups):
        own = np.flatnonzero(np.isin(thread, members))
        pairs.append(
            _Pair(
                members,
                frozenset(recorded[own].tolist()) - {""},
                frozenset(_sizes(calls, own).tolist()) - {MISSING},
                int(calls.partner[own].max(initial=MISSING)),
            )
        )
    return pairs


def _neighbours(threads: Array, n_calls: Array, n_groups: int) -> list[tuple[int, ...]]:
    """Nearest ones first. Work goes to both in turn: one that had several calls has a partner, one with one may not.

    But there are no more pairs than groups: on a busy machine others get the numbers between those of two partners.
    """
    partner: dict[int, int] = {}
    gaps = np.diff(threads)
    nearest = np.argsort(gaps, kind="stable").tolist()
    for is_sure in (True, False):
        for left in nearest:
            right = left + 1
            if is_sure:
                belong_together = gaps[left] == 1 or min(n_calls[left], n_calls[right]) > 1
            else:
                belong_together = len(threads) - len(partner) // 2 > n_groups
            if belong_together and left not in partner and right not in partner:
                partner[left], partner[right] = right, left
    numbers = threads.tolist()
    return [
        (numbers[index], numbers[partner[index]]) if index in partner else (numbers[index],)
        for index in range(len(numbers))
        if partner.get(index, index) >= index
    ]


def _sizes(calls: Calls, rows: Array) -> Array:
    """Members of the group as the tensors show it, MISSING where they do not."""
    op, given, taken = calls.op[rows], calls.n_in[rows], calls.n_out[rows]
    part = np.where(op == "all_gather", given, np.where(op == "reduce_scatter", taken, 0))
    whole = np.where(op == "all_gather", taken, given)
    is_even = (part > 0) & (whole % np.maximum(part, 1) == 0)
    return np.where(is_even, whole // np.maximum(part, 1), MISSING)


def _assigned(pairs: Sequence[_Pair], groups: Sequence[Group]) -> list[tuple[str, _Pair]]:
    """Both in order. Where more groups than pairs fit, the later ones: a group is made to be used, but for the default.

    Empty when they do not fit, as when a group was made after the trace began.
    """
    assigned = []
    left = list(groups)
    for pair in reversed(pairs):
        while left and not pair.can_be(left[-1]):
            left.pop()
        if not left:
            return []
        assigned.append((left.pop().name, pair))
    return assigned
