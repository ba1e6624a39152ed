"""The order of nodes in the file, and columns in that order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.chakra.building.edges import ItemEdges, dependencies
from rankscope.analyze.chakra.building.items import Items
from rankscope.analyze.chakra.building.times import HostTime
from rankscope.model.chakra import Ragged
from rankscope.model.tables import MISSING, Array, Text


class Layout(NamedTuple):
    """The parts of a graph are the description of the groups (if there is one), the items, and the time of the host."""

    n_groups: int
    n_items: int
    n_host: int
    start: Array  # by row of the file
    place: Array  # of each row: where it is when the parts stand one after the other
    row: Array  # and back

    def __len__(self) -> int:
        return len(self.row)

    @property
    def item_rows(self) -> Array:
        return self.row[self.n_groups : self.n_groups + self.n_items]

    @property
    def host_rows(self) -> Array:
        return self.row[self.n_groups + self.n_items :]

    def column(self, items: Array, *, groups: int = MISSING, host: Array | int = MISSING) -> Array:
        """By row of the file; `items` may be of the nodes alone."""
        column = np.full(len(self), MISSING, np.int64)
        column[: self.n_groups] = groups
        column[self.n_groups : self.n_groups + len(items)] = items
        column[self.n_groups + self.n_items :] = host
        return column[self.place]

    def text(self, nodes: Text, *, kernels: Text | None = None, groups: str = "", host: str = "") -> Text:
        """By row of the file."""
        values = [groups, host, "", *nodes.values, *(kernels.values if kernels else ())]
        codes = np.full(len(self), 2, np.int32)
        codes[: self.n_groups] = 0
        codes[self.n_groups : self.n_groups + len(nodes)] = nodes.codes.astype(np.int32) + 3
        if kernels:
            behind = self.n_groups + len(nodes)
            codes[behind : behind + len(kernels)] = kernels.codes.astype(np.int32) + 3 + len(nodes.values)
        codes[self.n_groups + self.n_items :] = 1
        return Text(codes[self.place], values)


def lay_out(items: Items, host: HostTime, has_groups: bool, clock_offset_ns: int) -> Layout:
    """By start. Of those that start together nodes come before kernels, callers before what they call.

    Starts are put on the clock that all ranks share: the offset is how far the rank's own is ahead of it.
    """
    starts = np.concatenate((np.maximum(items.start, 0), host.start))
    first = np.full(int(has_groups), starts.min(initial=np.iinfo(np.int64).max) if len(starts) else 0)
    starts = np.concatenate((first, starts))
    order = np.argsort(starts, kind="stable")
    row = np.empty(len(order), np.int64)
    row[order] = np.arange(len(order))
    shared = np.maximum(starts[order] - clock_offset_ns, 0)
    return Layout(int(has_groups), len(items), len(host.item), shared, order, row)


class Wiring(NamedTuple):
    ctrl_deps: Ragged
    data_deps: Ragged
    n_backwards: int  # left out: what they wait for comes later


def wire(items: Items, edges: ItemEdges, host: HostTime, layout: Layout) -> Wiring:
    """Host time waits for all that the item behind it waits for, as far as it had begun, and the item for it."""
    item_rows, host_rows = layout.item_rows, layout.host_rows
    host_of = np.full(len(items), MISSING)
    host_of[host.item] = np.arange(len(host.item))
    copied = np.flatnonzero(host_of[edges.after] != MISSING)
    behind = host_of[edges.after[copied]]
    is_begun = items.start[edges.before[copied]] <= host.start[behind]
    before = (item_rows[edges.before], item_rows[edges.before[copied[is_begun]]], host_rows)
    after = (item_rows[edges.after], host_rows[behind[is_begun]], item_rows[host.item])
    data_deps, n_backwards = dependencies(np.concatenate(before), np.concatenate(after), len(layout))
    around = items.caller[host.item]
    is_open = (around != MISSING) & (items.start[around] <= host.start)
    caller = np.concatenate((items.caller, np.where(is_open, around, MISSING)))
    called = np.flatnonzero(caller != MISSING)
    called_rows = np.concatenate((item_rows, host_rows))[called]
    ctrl_deps, n_callers_later = dependencies(item_rows[caller[called]], called_rows, len(layout))
    return Wiring(ctrl_deps, data_deps, n_backwards + n_callers_later)
