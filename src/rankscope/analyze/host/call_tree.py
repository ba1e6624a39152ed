"""Which range is inside which: operators (and modules, annotations) of a thread as a tree, without a loop over them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.analyze.derived import derived
from rankscope.analyze.device.events import with_process
from rankscope.analyze.metric import Selection, metric
from rankscope.model.tables import MISSING, Array, Table, Text, Trace

_NOT_INSIDE = -1


@dataclass(frozen=True)
class Nesting:
    """Ranges of many threads from the outside in: by thread, by start, the longer first. Fields are in that order."""

    order: Array  # rows of the arrays that were given; the other fields speak of places in this order
    thread: Array
    start: Array  # on one axis on which no two threads meet
    end: Array  # cut where the range around it ends
    parent: Array  # _NOT_INSIDE at the top
    depth: Array
    last: Array  # the last range inside, itself when there is none
    axis: _Axis

    def enclosing(self, thread: Array, time: Array) -> Array:
        """The innermost range of a thread that holds a moment; _NOT_INSIDE where there is none."""
        is_known = (thread >= 0) & (thread < len(self.axis.low))
        thread = np.where(is_known, thread, 0)
        if not len(self.start):
            return np.full(len(time), _NOT_INSIDE)
        is_known &= (time >= self.axis.low[thread]) & (time < self.axis.high[thread])
        moment = self.axis.place(thread, np.clip(time, self.axis.low[thread], self.axis.high[thread]))
        innermost = np.where(is_known, np.searchsorted(self.start, moment, "right") - 1, _NOT_INSIDE)
        # The last one begun may be over: then one of those around it is the one.
        over = np.flatnonzero((innermost >= 0) & (self.end[innermost] <= moment))
        while len(over):
            innermost[over] = self.parent[innermost[over]]
            over = over[(innermost[over] >= 0) & (self.end[innermost[over]] <= moment[over])]
        return innermost

    def inside_sums(self, values: Array) -> Array:
        """Per range: the sum of a value over itself and everything inside it."""
        running = np.concatenate(([0], np.cumsum(values)))
        sums: Array = running[self.last + 1] - running[:-1]
        return sums

    def self_ns(self) -> Array:
        """Per range: its time outside of the ranges directly inside it."""
        duration = self.end - self.start
        inner = np.flatnonzero(self.parent >= 0)
        taken = np.bincount(self.parent[inner], duration[inner].astype(np.float64), len(duration))
        outside: Array = duration - taken.astype(np.int64)
        return outside

    def nearest(self, wanted: Array) -> Array:
        """Per range: the innermost one among itself and those around it that is `wanted`; _NOT_INSIDE where none is."""
        nearest = np.arange(len(wanted))
        pending = np.flatnonzero(~wanted)
        while len(pending):
            nearest[pending] = self.parent[nearest[pending]]
            pending = pending[nearest[pending] >= 0]
            pending = pending[~wanted[nearest[pending]]]
        return nearest

    def recursive(self, name: Array) -> Array:
        """Per range: whether one of the same name lies around it."""
        around = self.parent.copy()
        is_recursive = np.zeros(len(name), bool)
        pending = np.flatnonzero(around >= 0)
        while len(pending):
            is_same = name[around[pending]] == name[pending]
            is_recursive[pending[is_same]] = True
            pending = pending[~is_same]
            around[pending] = self.parent[around[pending]]
            pending = pending[around[pending] >= 0]
        return is_recursive


@dataclass(frozen=True)
class _Axis:
    """The threads' times laid end to end, so that one sorted array holds them all."""

    low: Array  # first start and last end per thread
    high: Array
    offset: Array

    @classmethod
    def of(cls, thread: Array, start: Array, end: Array) -> _Axis:
        n_threads = int(thread.max(initial=-1)) + 1
        low = np.full(n_threads, np.iinfo(np.int64).max)
        high = np.full(n_threads, np.iinfo(np.int64).min)
        np.minimum.at(low, thread, start)
        np.maximum.at(high, thread, end)
        return cls(low, high, np.concatenate(([0], np.cumsum(high - low + 1)[:-1])).astype(np.int64)[:n_threads])

    def place(self, thread: Array, time: Array) -> Array:
        placed: Array = time - self.low[thread] + self.offset[thread]
        return placed


def nest(thread: Array, start: Array, duration: Array) -> Nesting:
    """A range is nested in another if it starts inside it; threads are numbered from 0.

    If two begin and end together, the first in the arrays is the outer one. A range without duration contains no other.

    """
    duration = np.maximum(duration, 0)
    axis = _Axis.of(thread, start, start + duration)
    begin = axis.place(thread, start)
    order = np.lexsort((-duration, begin))
    begin, end, thread = begin[order], begin[order] + duration[order], thread[order]
    depth, parent = _depth_and_parent(begin, end)
    is_overhanging = (parent >= 0) & (end > end[parent])
    if is_overhanging.any():
        affected = np.flatnonzero(np.isin(thread, np.unique(thread[is_overhanging])))
        end[affected] = _cut_overhang(begin[affected], end[affected])
        depth, parent = _depth_and_parent(begin, end)
    places = np.arange(len(begin))
    last = np.where(end > begin, np.searchsorted(begin, end, "left") - 1, places)
    return Nesting(order, thread, begin, end, parent, depth, np.maximum(last, places), axis)


def _depth_and_parent(begin: Array, end: Array) -> tuple[Array, Array]:
    """Depth: ranges begun before minus those over by then. Parent: the last range before that is one level higher."""
    can_hold = end > begin
    n_begun: Array = np.cumsum(can_hold) - can_hold
    depth = n_begun - np.searchsorted(np.sort(end[can_hold]), begin, "right")
    parent = np.full(len(begin), _NOT_INSIDE)
    by_depth = np.argsort(depth, kind="stable")
    limits = np.searchsorted(depth[by_depth], np.arange(int(depth.max(initial=-1)) + 2))
    above = by_depth[:0]
    for first, beyond in zip(limits[:-1].tolist(), limits[1:].tolist(), strict=True):
        level = by_depth[first:beyond]
        if len(above):
            parent[level] = above[np.searchsorted(above, level) - 1]
        above = level
    return depth.astype(np.int32), parent


def _cut_overhang(begin: Array, end: Array) -> Array:
    """Ends that reach beyond the range around are cut there. Rare: rounded times, or calls that really overlap."""
    cut = end.tolist()
    around: list[int] = []
    for number, start in enumerate(begin.tolist()):
        while around and around[-1] <= start:
            around.pop()
        if around and cut[number] > around[-1]:
            cut[number] = around[-1]
        if cut[number] > start:
            around.append(cut[number])
    return np.asarray(cut, np.int64)


def thread_numbers(relation: str) -> str:
    """SQL: a number from 0 for every thread (file_id, rank, tid) of a relation, always the same one."""
    distinct = f"SELECT DISTINCT file_id, rank, tid FROM ({relation})"
    return f"(SELECT *, row_number() OVER (ORDER BY file_id, rank, tid) - 1 AS thread FROM ({distinct}))"


@dataclass(frozen=True)
class OpTree:
    """The operators of all ranks; columns are in the order of the nesting, `name` holds codes into `names`."""

    nesting: Nesting
    columns: dict[str, Array]
    names: list[str]

    def name_of(self, places: Array) -> list[str]:
        """Names at some places; empty where there is no place."""
        codes = self.columns["name"]
        return [self.names[codes[position]] if position >= 0 else "" for position in places.tolist()]


def op_tree(trace: Trace) -> OpTree:
    """Made once per trace."""
    return derived(trace, _build_op_tree)


_NAMES = "(SELECT name, row_number() OVER (ORDER BY name) - 1 AS code FROM (SELECT DISTINCT name FROM ops))"
_OPS = f"""
WITH launched AS (
    SELECT file_id, rank, op_id, count(*) AS n_kernels, sum(duration_ns)::BIGINT AS kernel_ns
    FROM kernels WHERE op_id IS NOT NULL GROUP BY ALL
)
SELECT o.file_id, o.rank, o.op_id, o.tid, o.start_ns,
       coalesce(o.duration_ns, 0) AS duration_ns, o.step, n.code AS name, t.thread,
       coalesce(l.n_kernels, 0) AS n_kernels, coalesce(l.kernel_ns, 0) AS kernel_ns
FROM ops AS o JOIN {_NAMES} AS n USING (name)
JOIN {thread_numbers("FROM ops")} AS t
    ON t.file_id = o.file_id AND t.rank = o.rank AND t.tid IS NOT DISTINCT FROM o.tid
LEFT JOIN launched AS l ON l.file_id = o.file_id AND l.rank = o.rank AND l.op_id = o.op_id
ORDER BY o.file_id, o.rank, o.op_id
"""


def _build_op_tree(trace: Trace) -> OpTree:
    columns = with_process(trace, trace.sql(_OPS).columns())
    nesting = nest(columns.pop("thread"), columns["start_ns"], columns["duration_ns"])
    ordered = {name: values[nesting.order] for name, values in columns.items()}
    names = [name for (name,) in trace.sql(f"SELECT name FROM {_NAMES} ORDER BY code").rows()]
    return OpTree(nesting, ordered, names)


@metric("call_tree", "call_tree", needs=("ops",))
def call_tree(trace: Trace, selection: Selection) -> Table:
    """One row per operator: its caller, its depth, its self time, and the kernels launched below it.

    An operator is a child of the operator on its thread in which it starts. If it ends after its parent (because of
    rounded times), the part beyond counts for neither. Kernels belong to the innermost operator that launched them;
    `below` adds those of all nested operators.
    """
    tree = op_tree(trace)
    nesting, columns = tree.nesting, tree.columns
    op_id = columns["op_id"]
    is_aten = np.array([name.startswith("aten::") for name in tree.names], bool)[columns["name"]]
    aten = nesting.nearest(is_aten)
    table = Table(
        "call_tree",
        {name: columns[name] for name in ("op_id", "tid", "start_ns", "duration_ns", "step", "n_kernels", "kernel_ns")}
        | {
            "file_id": columns["file_id"].astype(np.int32),
            "rank": columns["rank"].astype(np.int32),
            "name": Text(columns["name"].astype(np.int32), tree.names),
            "parent_id": np.where(nesting.parent >= 0, op_id[nesting.parent], MISSING),
            "aten_id": np.where(aten >= 0, op_id[aten], MISSING),
            "depth": nesting.depth,
            "position": np.arange(len(op_id)),
            "last_position": nesting.last,
            "self_ns": nesting.self_ns(),
            "is_recursive": nesting.recursive(columns["name"]),
            "n_kernels_below": nesting.inside_sums(columns["n_kernels"]),
            "kernel_below_ns": nesting.inside_sums(columns["kernel_ns"]),
        },
    )
    is_wanted = _is_selected(columns, selection)
    return table if is_wanted.all() else table.take(np.flatnonzero(is_wanted))


def _is_selected(columns: dict[str, Array], selection: Selection) -> Array:
    is_wanted = np.ones(len(columns["rank"]), bool)
    for name, wanted in (("rank", selection.ranks), ("step", selection.steps)):
        if wanted is not None:
            is_wanted &= np.isin(columns[name], list(wanted))
    if selection.since_ns is not None:
        is_wanted &= columns["start_ns"] >= selection.since_ns
    if selection.until_ns is not None:
        is_wanted &= columns["start_ns"] < selection.until_ns
    return is_wanted
