"""The attributes of nodes and files: those that Chakra's own converter writes, and those that simulators read."""

from __future__ import annotations

import numpy as np

from rankscope.analyze.chakra.building.comms import Comms
from rankscope.analyze.chakra.building.items import Items, Source, places_of
from rankscope.analyze.chakra.building.layout import Layout
from rankscope.analyze.chakra.building.times import HostTime
from rankscope.model.chakra import COMM_COLL, COMM_RECV, COMM_SEND, Attribute, AttributeColumn
from rankscope.model.tables import MISSING, Array, Text, Trace

_AS_FOUND = {"rf_id": "record_id", "seq_id": "seq_id", "scope": "scope"}


def node_attributes(items: Items, host: HostTime, layout: Layout) -> dict[str, AttributeColumn]:
    nodes = items.nodes
    thread = nodes["tid"] if items.is_timed else nodes["thread"]
    main_thread = nodes["main_tid"] if items.is_timed else nodes["thread"]
    forward = items.node_places(nodes["fw_parent_id"])
    columns = {name: layout.column(nodes[column]) for name, column in _AS_FOUND.items()}
    columns["fw_parent"] = layout.column(np.where(forward == MISSING, MISSING, layout.item_rows[forward]))
    columns["tid"] = layout.column(thread, host=thread[host.item])
    columns["fw_tid"] = layout.column(_forward_threads(items, main_thread))
    columns["stream"] = layout.column(np.concatenate((np.full(items.n_nodes, MISSING), items.kernels["stream"])))
    attributes = {name: AttributeColumn("int64", values, values != MISSING) for name, values in columns.items()}
    schema = layout.text(items.texts["op_schema"])
    return attributes | {"op_schema": AttributeColumn("string", schema, ~schema.equals(""))}


def _forward_threads(items: Items, thread: Array) -> Array:
    """The observer has numbers of its own for threads: one that ran some node is that node's thread."""
    known, first = np.unique(items.nodes["thread"], return_index=True)
    position = places_of(known, items.nodes["fw_thread"])
    return np.where(position == MISSING, MISSING, thread[first[position]])


def run_attributes(
    is_timed: bool, layout: Layout, duration: Array, is_kernel: Array, comms: Comms
) -> dict[str, AttributeColumn]:
    """Where a node runs, and when to the nanosecond."""
    on_host = ~is_kernel
    on_host[layout.item_rows[comms.item]] = False
    attributes = {"is_cpu_op": AttributeColumn("bool", on_host)}
    if is_timed:
        attributes["start_ns"] = AttributeColumn("int64", layout.start)
        attributes["duration_ns"] = AttributeColumn("int64", duration)
    return attributes


def comm_attributes(comms: Comms, rank: int, layout: Layout) -> dict[str, AttributeColumn]:
    """Kinds as the oldest feeder reads them: it takes any other for 0."""
    rows = layout.item_rows[comms.item]
    is_transfer = comms.type != COMM_COLL
    source = np.where((comms.type == COMM_SEND) & (comms.src == MISSING), rank, comms.src)
    target = np.where((comms.type == COMM_RECV) & (comms.dst == MISSING), rank, comms.dst)
    columns = {
        "comm_type": ("int64", comms.comm_type),
        "comm_size": ("int64", comms.n_bytes),
        "comm_src": ("int32", np.where(is_transfer, source, MISSING)),
        "comm_dst": ("int32", np.where(is_transfer, target, MISSING)),
        "comm_tag": ("int32", np.where(is_transfer, np.maximum(comms.tag, 0), MISSING)),
        "root": ("int64", np.where(is_transfer, MISSING, comms.root)),
    }
    attributes = {}
    for name, (kind, values) in columns.items():
        column = np.full(len(layout), MISSING, np.int64)
        column[rows] = values
        attributes[name] = AttributeColumn(kind, column, column != MISSING)
    codes = np.full(len(layout), len(comms.group.values), np.int32)
    codes[rows] = comms.group.codes
    group = Text(codes, [*comms.group.values, ""])
    return attributes | {"pg_name": AttributeColumn("string", group, ~group.equals(""))}


def file_attributes(trace: Trace, source: Source) -> dict[str, Attribute]:
    """What the execution trace says of itself; its clock is no other trace's."""
    traces = trace.table("et_traces")
    row = next(row for row in traces.rows() if row["file_id"] == source.file_id)
    texts = {"schema": row["schema"], "time": row["recorded"]}
    numbers = {"pid": row["pid"], "start_ts": row["start_ms"], "finish_ts": row["finish_ms"]}
    attributes = {name: Attribute("string", text) for name, text in texts.items() if text}
    attributes |= {name: Attribute("uint64", number) for name, number in numbers.items() if number != MISSING}
    return attributes | {"rank": Attribute("int64", source.rank)}
