"""Linked traces as Chakra graphs, one per rank: operators, host time between them, device work, communication.

Rows are in the order of start times, and what a row waits for always comes before it: a graph without circles by
construction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rankscope.analyze.chakra.building.attributes import (
    comm_attributes,
    file_attributes,
    node_attributes,
    run_attributes,
)
from rankscope.analyze.chakra.building.comms import Comms, comms_of, groups_of
from rankscope.analyze.chakra.building.edges import item_edges
from rankscope.analyze.chakra.building.items import Items, Source, load_items, sources_of
from rankscope.analyze.chakra.building.layout import Layout, lay_out, wire
from rankscope.analyze.chakra.building.texts import described_groups, printed_lists
from rankscope.analyze.chakra.building.times import times_of
from rankscope.model.chakra import COMP, METADATA, ChakraGraph
from rankscope.model.tables import Array, Text, Trace

HOST_TIME = "host"
GROUPS = "## process_group:init ##"
_NOTHING = "<None>"  # how the observer writes an absent argument


class LeftOut(NamedTuple):
    """How often something of the trace is not in the graph, or not as it was found."""

    nodes_outside: int
    """Nodes that no profiler saw."""
    kernels_outside: int
    """Launched before or after what the observer saw."""
    edges_outside: int
    """Edges that lead to what was left out."""
    edges_backwards: int
    """Edges to what starts earlier."""
    calls_unplaced: int
    """Collectives without a node and without a kernel."""
    calls_unknown: int
    """Collectives that the schema has no number for: their nodes stay computation."""
    calls_memberless: int
    """Collectives whose process group no source shows: their nodes stay computation."""
    calls_sizeless: int
    """Collectives without bytes, written as one byte: a simulator never ends those of none."""


class Built(NamedTuple):
    graph: ChakraGraph
    source: Source
    left_out: LeftOut
    n_operators: int
    n_kernels: int
    n_host_time: int
    n_inflated: int
    """Operators whose duration was measured while the observer ran."""
    n_transplanted: int
    """Operators whose duration is from clean steps."""


def chakra_graphs(trace: Trace) -> Iterator[ChakraGraph]:
    return (built.graph for built in build_graphs(trace))


def build_graphs(trace: Trace) -> Iterator[Built]:
    """One rank after the other: only one graph is in memory at a time."""
    return (_build(trace, source) for source in sources_of(trace))


def _build(trace: Trace, source: Source) -> Built:
    items = load_items(trace, source)
    edges, n_edges_outside = item_edges(trace.table("et_edges"), items)
    groups, comms = groups_of(trace, source.file_id), comms_of(trace, items)
    item_duration, host = times_of(trace, items, edges, comms.item)
    layout = lay_out(items, host, bool(groups), _clock_offset(trace, source))
    duration = layout.column(item_duration, groups=0, host=host.duration)
    wiring = wire(items, edges, host, layout)
    is_kernel = layout.column(np.arange(len(items))) >= items.n_nodes
    graph = ChakraGraph(
        source.rank,
        layout.text(items.texts["name"], kernels=items.kernel_names, groups=GROUPS, host=HOST_TIME),
        _types(layout, comms),
        layout.start,
        duration,
        wiring.ctrl_deps,
        wiring.data_deps,
        _lists(trace, items, layout, ("inputs", "input_shapes", "input_types"), described_groups(groups)),
        _lists(trace, items, layout, ("outputs", "output_shapes", "output_types")),
        node_attributes(items, host, layout)
        | run_attributes(items.is_timed, layout, duration, is_kernel, comms)
        | comm_attributes(comms, source.rank, layout),
        file_attributes(trace, source),
    )
    left_out = LeftOut(items.n_outside, items.n_kernels_outside, n_edges_outside, wiring.n_backwards, *comms.n_left_out)
    is_linked, is_inflated = items.nodes["profile_id"] >= 0, items.nodes["is_inflated"] == 1
    n_inflated, n_clean = (int(np.count_nonzero(rows)) for rows in (is_inflated, is_linked & ~is_inflated))
    n_kernels = len(items) - items.n_nodes
    return Built(graph, source, left_out, items.n_nodes, n_kernels, len(host.item), n_inflated, n_clean)


def _clock_offset(trace: Trace, source: Source) -> int:
    """How far the clock of the rank's host is ahead of the clock on which all ranks are compared."""
    clocks = trace.table("profile_clocks").rows() if source.profile_ids else ()
    return next(
        (c["offset_ns"] for c in clocks if (c["file_id"], c["rank"]) == (source.profile_ids[0], source.rank)), 0
    )


def _types(layout: Layout, comms: Comms) -> Array:
    types = layout.column(np.full(layout.n_items, COMP), groups=METADATA, host=COMP)
    types[layout.item_rows[comms.item]] = comms.type
    return types


def _lists(
    trace: Trace, items: Items, layout: Layout, names: tuple[str, str, str], groups: str = ""
) -> tuple[Text, Text, Text]:
    sql = "SELECT DISTINCT device FROM et_tensors WHERE file_id = $file AND device IS NOT NULL"
    devices = [device for (device,) in trace.sql(sql, file=items.source.file_id).rows()]
    values, shapes, types = (printed_lists(items.texts[name], (_NOTHING, *devices)) for name in names)
    return layout.text(values, groups=groups), layout.text(shapes), layout.text(types)
