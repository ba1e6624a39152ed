"""The nodes of a Chakra file in columns, with dependencies as rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from rankscope.analyze.chakra.verdict import rank_of
from rankscope.model.chakra import COMM_TYPES, Attribute, ChakraFile, ChakraNode
from rankscope.model.tables import MISSING, Array

INTEGER_KINDS = frozenset(
    prefix + bits for prefix in ("int", "uint", "sint", "fixed", "sfixed") for bits in ("32", "64")
)
_FAR = 2**61  # times beyond are no times; the sum of two of them still fits
_LONGEST_NAME = 60


@dataclass(frozen=True)
class Dependencies:
    """One kind of dependency. Edge e: the node of row `after[e]` waits for that of row `before[e]`, MISSING when the
    file does not have it; `wanted[e]` is the id that was written."""

    before: Array
    after: Array
    wanted: Array


@dataclass(frozen=True)
class RankGraph:
    """The graph of one file. Node ids are as written; everything else speaks of rows."""

    path: str
    rank: int | None
    nodes: Sequence[ChakraNode]

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def id(self) -> Array:
        return np.fromiter((node.id for node in self.nodes), np.uint64, len(self.nodes))

    @cached_property
    def type(self) -> Array:
        return _numbers([node.type for node in self.nodes])

    @cached_property
    def start_ns(self) -> Array:
        return self._nanoseconds("start_ns", _numbers([node.start_us for node in self.nodes]))

    @cached_property
    def duration_us(self) -> Array:
        return _numbers([node.duration_us for node in self.nodes])

    @cached_property
    def duration_ns(self) -> Array:
        return self._nanoseconds("duration_ns", self.duration_us)

    @cached_property
    def on_cpu(self) -> Array:
        """As the feeder takes it: a node that does not say so is on the device."""
        said = (node.attributes.get("is_cpu_op") for node in self.nodes)
        return np.fromiter((bool(a.value) if a is not None else False for a in said), bool, len(self.nodes))

    @cached_property
    def comm_rows(self) -> Array:
        return np.flatnonzero(np.isin(self.type, list(COMM_TYPES)))

    @cached_property
    def by_time(self) -> Array:
        """Place of each row when ordered by start time, then id."""
        places = np.empty(len(self.nodes), np.int64)
        places[np.lexsort((self.id, self.start_ns))] = np.arange(len(self.nodes))
        return places

    @cached_property
    def data(self) -> Dependencies:
        return self._dependencies([node.data_deps for node in self.nodes])

    @cached_property
    def ctrl(self) -> Dependencies:
        return self._dependencies([node.ctrl_deps for node in self.nodes])

    @cached_property
    def edges(self) -> tuple[Array, Array]:
        """(before, after) of every dependency whose node is there, each pair once."""
        n = max(len(self.nodes), 1)
        is_known = [kind.before != MISSING for kind in (self.data, self.ctrl)]
        before = np.concatenate((self.data.before[is_known[0]], self.ctrl.before[is_known[1]]))
        after = np.concatenate((self.data.after[is_known[0]], self.ctrl.after[is_known[1]]))
        pairs = np.unique(before * n + after)
        return pairs // n, pairs % n

    @cached_property
    def has_dependencies(self) -> Array:
        """Dangling ones count: the simulator waits for them too."""
        waits = np.zeros(len(self.nodes), bool)
        waits[self.data.after] = True
        waits[self.ctrl.after] = True
        return waits

    def label(self, row: int) -> str:
        """A node in a sentence. Names of kernels run to hundreds of characters."""
        name = self.nodes[row].name
        return f"{self.id[row]} ({name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + '...'})"

    def attribute(self, row: int, name: str) -> Attribute | None:
        return self.nodes[row].attributes.get(name)

    def has(self, name: str) -> Array:
        """Which rows have the attribute as an integer."""
        values = [node.attributes.get(name) for node in self.nodes]
        return np.array([a is not None and a.kind in INTEGER_KINDS for a in values], bool)

    def integers(self, name: str, rows: Array | None = None) -> Array:
        """The attribute of the rows as integers; MISSING where there is none or it has another type."""
        nodes = self.nodes if rows is None else [self.nodes[row] for row in rows.tolist()]
        values = [node.attributes.get(name) for node in nodes]
        return _numbers([a.value if a is not None and a.kind in INTEGER_KINDS else MISSING for a in values])

    def _nanoseconds(self, name: str, microseconds: Array) -> Array:
        """The attribute where it is there: the fields of the schema hold microseconds only."""
        written = np.clip(microseconds, 0, _FAR // 1000) * 1000
        return np.clip(np.where(self.has(name), self.integers(name), written), 0, _FAR)

    def _dependencies(self, lists: list[list[int]]) -> Dependencies:
        lengths = np.fromiter(map(len, lists), np.int64, len(lists))
        wanted = np.fromiter(chain.from_iterable(lists), np.uint64, int(lengths.sum()))
        after = np.repeat(np.arange(len(lists)), lengths)
        order = np.argsort(self.id, kind="stable")
        places = np.searchsorted(self.id[order], wanted)
        before = np.full(len(wanted), MISSING, np.int64)
        if len(order):
            candidates = order[np.minimum(places, len(order) - 1)]
            before = np.where(self.id[candidates] == wanted, candidates, MISSING)
        return Dependencies(before, after, wanted)


def graph_of(file: ChakraFile) -> RankGraph:
    return RankGraph(file.path, rank_of(file.path), file.nodes)


def _numbers(values: list[Any]) -> Array:
    try:
        return np.array(values, np.int64)
    except OverflowError:  # a file may hold any 64 bits; beyond half of them nothing is meant seriously
        return np.array([min(max(value, -_FAR), _FAR) for value in values], np.int64)
