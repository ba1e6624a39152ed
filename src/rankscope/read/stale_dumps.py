"""Which dumps of one capture are from another time or attempt, and so do not show where their ranks are now.

A dump does not say when it was written. But the same call was made by all its ranks at about the same time, and a
device completes a collective only when every member has made it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from rankscope.model.finding import format_duration
from rankscope.model.generations import own_generations
from rankscope.model.numbers import whole
from rankscope.model.replicas import with_global_members
from rankscope.model.schema_recorder import EARLIER_MOMENT
from rankscope.model.tables import MISSING, Array, Table, distinct

STALE = "stale"
# Hosts' clocks agree within seconds where anybody looks after them. What is further apart is of another time.
MAX_APART_NS = 600 * 10**9
_MIN_SHARED = 16  # calls in common that tell a clock that is off from another attempt
_LOCKSTEP = 0.5  # von Neumann's ratio: about 2 for ranks that wait for each other, near 0 for runs that drift apart
_ENOUGH_ROWS = 400_000
_MOST_FAILED = 2  # calls of gloo that may fail together when a peer leaves: the one that waits and one behind it
_DEVICE_BACKENDS = frozenset(("nccl", "rccl", "xccl", "hccl"))
_NEED_ALL = frozenset(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", "all_reduce_coalesced"))


@dataclass(frozen=True)
class LeftOut:
    """Why a dump is not judged."""

    status: str
    problem: str
    hint: str


@dataclass(frozen=True)
class Dump:
    file_id: int
    rank: int
    recorder: str
    folders: tuple[str, ...]
    stem: str  # the name without the rank
    first_ns: int
    last_ns: int
    world: frozenset[int] | None  # members of the default group, where it tells
    is_cut: bool  # its newest calls are lost

    @property
    def who(self) -> tuple[int, str]:
        return self.rank, self.recorder


def stale_dumps(tables: Mapping[str, Table], dumps: Sequence[Dump]) -> dict[int, LeftOut]:
    dumps = [dump for dump in dumps if dump.recorder]  # a desync report shows a rank's latest call only
    if "collectives" not in tables or len(dumps) < 2:
        return {}
    stale = _of_another_time(_SharedCalls(tables, dumps))
    n_failed = _MOST_FAILED
    while True:
        current = [dump for dump in dumps if dump.file_id not in stale]
        overtaken = _overtaken(_SharedCalls(tables, current), n_failed)
        # What another attempt has completed says nothing about the rest: without it they are looked at again.
        others = {file: reason for file, reason in overtaken.items() if reason is _OTHER_ATTEMPT}
        stale |= others or overtaken
        if not others and (not overtaken or not n_failed):
            return stale
        if not others:  # the dumps are known to be from different moments: a call that one rank lacks proves no failure
            n_failed = 0


class _SharedCalls:
    """The collectives of the dumps as arrays; a key is the same for the same call of several dumps."""

    def __init__(self, tables: Mapping[str, Table], dumps: Sequence[Dump]) -> None:
        calls = tables["collectives"]
        number = np.full(whole(max(calls.array("file_id").max(initial=0), *(d.file_id for d in dumps))) + 1, MISSING)
        number[[dump.file_id for dump in dumps]] = np.arange(len(dumps))
        is_collective = ~calls.array("is_p2p") & ~calls.text("role").equals("member")
        self.rows = np.flatnonzero(is_collective & (number[calls.array("file_id")] != MISSING))
        self.dumps, self.calls = dumps, calls
        self.dump = number[calls.array("file_id")[self.rows]]
        self.group = self._groups(tables.get("group_config"))
        self.seq = np.clip(calls.array("seq")[self.rows], 0, (1 << 40) - 1)
        self.created = calls.array("created_ns")[self.rows]
        # In a group that was made again the same number stands for several calls.
        again = own_generations(calls, calls.array("file_id"))[self.rows] > 0
        self.is_unique = ~np.isin(self.group, self.group[again])

    def _groups(self, config: Table | None) -> Array:
        """Numbers that are equal where name and members are: local groups may share a name."""
        names = self.calls.text("group_name")
        position = {dump.file_id: index for index, dump in enumerate(self.dumps)}
        members: dict[tuple[int, str], str] = {}
        for row in with_global_members(config).rows() if config is not None else ():
            if row["file_id"] in position:
                members[position[row["file_id"]], row["name"]] = row["members"]
        pairs = self.dump.astype(np.int64) * max(len(names.values), 1) + names.codes[self.rows]
        distinct, codes = np.unique(pairs, return_inverse=True)
        pool: dict[tuple[str, str], int] = {}
        numbers = np.empty(len(distinct), np.int64)
        for index, pair in enumerate(distinct.tolist()):
            dump, name = divmod(pair, len(names.values))
            group = (names.values[name], members.get((dump, names.values[name]), ""))
            numbers[index] = pool.setdefault(group, len(pool))
        self.is_member = np.zeros((len(pool), len(self.dumps)), bool)  # where the dump itself lists the group
        for (dump, name), listed in members.items():
            if (name, listed) in pool:
                self.is_member[pool[name, listed], dump] = True
        return numbers[codes]

    def sampled(self) -> Array:
        """Rows of a part of the keys, the same for all dumps, that is large enough for medians."""
        n_parts = len(self.rows) // _ENOUGH_ROWS + 1
        chosen: Array = np.flatnonzero((self.group + self.seq) % n_parts == 0)
        return chosen


def _of_another_time(shared: _SharedCalls) -> dict[int, LeftOut]:
    """Dumps that made their calls long before or after the others did, or in another attempt."""
    clusters = _clusters(shared)
    drifting = _drifting(shared)
    labels = [len(shared.dumps) + index if drifting[index] else clusters[index] for index in range(len(shared.dumps))]
    sizes = Counter(labels)
    newest: dict[int, int] = {}
    for dump, label in zip(shared.dumps, labels, strict=True):
        newest[label] = max(newest.get(label, MISSING), dump.last_ns)
    # Of equally many, the newest: yesterday's file is often all that a lost rank has left.
    kept = max(sizes, key=lambda label: (sizes[label], newest[label]))
    moments = sorted(dump.last_ns for dump, label in zip(shared.dumps, labels, strict=True) if label == kept)
    moment = moments[(len(moments) - 1) // 2]
    return {
        dump.file_id: _time_reason(dump.last_ns - moment)
        for dump, label in zip(shared.dumps, labels, strict=True)
        if label != kept
    }


def _clusters(shared: _SharedCalls) -> list[int]:
    """Dumps of one time have the same number: they made a call together, or share no call and overlap in time."""
    rows = shared.sampled()
    keys, created, dump = shared.group[rows] << 40 | shared.seq[rows], shared.created[rows], shared.dump[rows]
    order = np.lexsort((created, keys))
    is_same = np.diff(keys[order]) == 0
    is_close = is_same & (np.diff(created[order]) <= MAX_APART_NS)
    n_dumps = len(shared.dumps)
    pairs = dump[order][:-1] * n_dumps + dump[order][1:]
    cluster = list(range(n_dumps))

    def root(index: int) -> int:
        while cluster[index] != index:
            cluster[index] = cluster[cluster[index]]
            index = cluster[index]
        return index

    for pair in distinct(pairs[is_close]).tolist():
        cluster[root(pair // n_dumps)] = root(pair % n_dumps)
    apart = {frozenset((root(pair // n_dumps), root(pair % n_dumps))) for pair in distinct(pairs[is_same]).tolist()}
    spans: dict[int, tuple[int, int]] = {}
    for index, one in enumerate(shared.dumps):
        first, last = spans.get(root(index), (one.first_ns, one.last_ns))
        spans[root(index)] = (min(first, one.first_ns), max(last, one.last_ns))
    for (left, one_span), (right, other_span) in combinations(sorted(spans.items(), key=lambda item: item[1]), 2):
        if frozenset((left, right)) not in apart and _gap(one_span, other_span) <= MAX_APART_NS:
            cluster[root(left)] = root(right)
    return [root(index) for index in range(len(shared.dumps))]


def _gap(one: tuple[int, int], other: tuple[int, int]) -> int:
    """The time between two spans; 0 where they overlap or one of them is not known."""
    return 0 if MISSING in (*one, *other) else max(one[0] - other[1], other[0] - one[1], 0)


def _drifting(shared: _SharedCalls) -> Array:
    """Dumps of an attempt shortly before or after: all of it lies outside of the others' time, and it runs on its own.

    The clock of a host may be off by as much; but then its calls keep the same distance to those of its peers, for
    ranks that wait for each other stay together.
    """
    rows = shared.sampled()
    usual, is_known = _usual_times(shared.group[rows] << 40 | shared.seq[rows], shared.created[rows])
    rows, apart = rows[is_known], (shared.created[rows] - usual)[is_known]
    order = np.argsort(shared.dump[rows], kind="stable")
    bounds = np.searchsorted(shared.dump[rows][order], np.arange(len(shared.dumps) + 1))
    drifting = np.zeros(len(shared.dumps), bool)
    for index in range(len(shared.dumps)):
        mine = order[bounds[index] : bounds[index + 1]]
        drifting[index] = len(mine) >= _MIN_SHARED and _drifts(shared.created[rows[mine]], apart[mine])
    return drifting & (2 * np.count_nonzero(drifting) < len(drifting))


def _usual_times(keys: Array, created: Array) -> tuple[Array, Array]:
    """When most dumps made the same call, and whether there are enough of them to be sure."""
    order = np.lexsort((created, keys))
    starts = np.flatnonzero(np.append(True, np.diff(keys[order]) != 0)[: len(keys)])
    counts = np.diff(np.append(starts, len(keys)))
    usual, is_known = np.empty(len(keys), np.int64), np.empty(len(keys), bool)
    usual[order] = np.repeat(created[order][starts + counts // 2], counts)
    is_known[order] = np.repeat(counts > 2, counts)
    return usual, is_known


def _drifts(created: Array, apart: Array) -> bool:
    offset = abs(float(np.median(apart)))
    if offset < max(whole(created.max() - created.min()), 10**9):
        return False
    drift = apart[np.argsort(created, kind="stable")].astype(np.float64)
    total = float(np.square(drift - drift.mean()).sum())
    return total > 0 and float(np.square(np.diff(drift)).sum()) / total < _LOCKSTEP


def _overtaken(shared: _SharedCalls, n_failed: int) -> dict[int, LeftOut]:
    """Dumps without a call that their peers saw complete in time, which takes all members: they are older.

    gloo retires a failed call just like a completed one: there it takes further calls that ended. Where
    most of those that lack the call continued after it had completed, they were not the members that completed it: the
    others are of another attempt.
    """
    n_dumps, n_groups = len(shared.dumps), whole(shared.group.max(initial=-1)) + 1
    newest = np.full((n_groups, n_dumps), MISSING, np.int64)
    np.maximum.at(newest, (shared.group, shared.dump), shared.seq)
    rows = _completed_in_time(shared)
    proven, ended = np.full((2, n_groups, n_dumps), MISSING, np.int64)
    np.maximum.at(proven, (shared.group[rows], shared.dump[rows]), shared.seq[rows])
    np.maximum.at(ended, (shared.group[rows], shared.dump[rows]), shared.calls.array("completed_ns")[shared.rows[rows]])
    last = np.array([dump.last_ns for dump in shared.dumps])
    first = np.array([dump.first_ns for dump in shared.dumps])
    rows = _passed(shared, n_failed)
    np.maximum.at(proven, (shared.group[rows], shared.dump[rows]), shared.seq[rows])
    np.maximum.at(ended, (shared.group[rows], shared.dump[rows]), last[shared.dump[rows]])
    reasons: dict[int, LeftOut] = {}
    for group in np.flatnonzero(proven.max(axis=1, initial=MISSING) > MISSING).tolist():
        # A member without any call of the group: its ring reaches further back, or is empty, so it has made none yet.
        has_none = (newest[group] == MISSING) & shared.is_member[group]
        has_none &= first < ended[group].max()
        behind = ((newest[group] != MISSING) | has_none) & (newest[group] < proven[group].max())
        provers = proven[group] > newest[group][behind].max(initial=MISSING)
        went_on = behind & (last > ended[group][provers].max(initial=MISSING))
        is_other_attempt = np.count_nonzero(went_on) > np.count_nonzero(provers)
        for index in np.flatnonzero(provers if is_other_attempt else behind).tolist() if behind.any() else ():
            dump, n_behind = shared.dumps[index], whole(proven[group].max() - max(newest[group][index], 0))
            if is_other_attempt or not dump.is_cut:
                reasons[dump.file_id] = _OTHER_ATTEMPT if is_other_attempt else _moment_reason(n_behind)
    return reasons


def _completed_in_time(shared: _SharedCalls) -> Array:
    calls, rows = shared.calls, shared.rows
    backend, op = calls.text("backend"), calls.text("op")
    on_device = np.isin(backend.codes[rows], [n for n, name in enumerate(backend.values) if name in _DEVICE_BACKENDS])
    needs_all = np.isin(op.codes[rows], [n for n, name in enumerate(op.values) if name in _NEED_ALL])
    ended, timeout = calls.array("completed_ns")[rows], calls.array("timeout_ns")[rows]
    # An abort ends what waits, too, but only at the time-out.
    in_time = (ended > 0) & (timeout > 0) & (ended - shared.created < timeout // 2)
    completed = shared.is_unique & calls.text("state").equals("completed")[rows]
    provers: Array = np.flatnonzero(on_device & needs_all & in_time & completed)
    return provers


def _passed(shared: _SharedCalls, n_failed: int) -> Array:
    """Calls on gloo after which their rank ended at least `n_failed` others of the group, so they did not fail."""
    calls, rows = shared.calls, shared.rows
    backend, op = calls.text("backend"), calls.text("op")
    on_gloo = np.isin(backend.codes[rows], [n for n, name in enumerate(backend.values) if name == "gloo"])
    needs_all = np.isin(op.codes[rows], [n for n, name in enumerate(op.values) if name in _NEED_ALL])
    is_done = calls.array("retired")[rows]
    newest = np.full((whole(shared.group.max(initial=-1)) + 1, len(shared.dumps)), MISSING, np.int64)
    np.maximum.at(newest, (shared.group[is_done], shared.dump[is_done]), shared.seq[is_done])
    is_passed = shared.seq + n_failed <= newest[shared.group, shared.dump]
    passed: Array = np.flatnonzero(on_gloo & needs_all & is_done & is_passed & shared.is_unique)
    return passed


_OTHER_ATTEMPT = LeftOut(
    STALE,
    "is from another attempt: it completed calls that the other ranks had not made when they moved on",
    "remove it, or collect the dumps of all ranks from one attempt",
)


def _time_reason(offset: int) -> LeftOut:
    how = f"{format_duration(abs(offset))} {'before' if offset < 0 else 'after'} those of the other ranks"
    return LeftOut(
        STALE,
        f"ends {how}: it is from another run or time, or its host's clock is wrong",
        "remove it if it is from another run; if the clock is wrong, fix it and record again",
    )


def _moment_reason(n_behind: int) -> LeftOut:
    behind = "a collective" if n_behind == 1 else f"{n_behind} collectives"
    return LeftOut(
        STALE,
        f"{EARLIER_MOMENT}: its peers completed {behind} with this rank that it does not have yet",
        "collect the dumps of all ranks at the same time",
    )
