"""A Chakra file for people and programs: a summary, one node in full, JSON lines.

Nodes are taken as they come, so that a file need not fit into memory.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

from rankscope.model import chakra
from rankscope.model.chakra import Attribute, ChakraNode, ChakraStream, type_name
from rankscope.model.finding import count_noun, format_duration
from rankscope.render.escape import escape
from rankscope.render.plain_table import table_lines

MAX_TRANSFER_ROWS = 20
_TRANSFERS = {chakra.COMM_SEND: "send", chakra.COMM_RECV: "recv"}


class Excerpt:
    """The first nodes of a file, or all when there is no limit. Once they are through, it knows how many there were."""

    def __init__(self, stream: ChakraStream, limit: int = 0) -> None:
        self.stream = stream
        self.limit = limit
        self.n_passed = 0
        self.is_cut = False  # there were more

    def __iter__(self) -> Iterator[ChakraNode]:
        nodes = self.stream.nodes
        for node in islice(nodes, self.limit) if self.limit else nodes:
            self.n_passed += 1
            yield node
        self.is_cut = bool(self.limit) and next(nodes, None) is not None


# Records, in the terms of et_def.proto


def json_lines(excerpt: Excerpt) -> Iterator[str]:
    """One message per line, as protobuf's own JSON parser takes them: the metadata, then every node."""
    stream = excerpt.stream
    yield _json_line({"version": stream.version, "attr": _attribute_records(stream.attributes)})
    for node in excerpt:
        yield _json_line(node_record(node))


def node_record(node: ChakraNode) -> dict[str, Any]:
    known_type = 0 <= node.type < len(chakra.NODE_TYPES)
    return {
        "id": node.id,
        "name": node.name,
        "type": chakra.NODE_TYPES[node.type] if known_type else node.type,
        "ctrl_deps": node.ctrl_deps,
        "data_deps": node.data_deps,
        "start_time_micros": node.start_us,
        "duration_micros": node.duration_us,
        "inputs": msgspec.structs.asdict(node.inputs),
        "outputs": msgspec.structs.asdict(node.outputs),
        "attr": _attribute_records(node.attributes),
    }


def _attribute_records(attributes: Mapping[str, Attribute]) -> list[dict[str, Any]]:
    return [{"name": name, **_attribute_value(attribute)} for name, attribute in attributes.items()]


def _attribute_value(attribute: Attribute) -> dict[str, Any]:
    if not attribute.kind:
        return {}
    if isinstance(attribute.value, list):
        return {attribute.kind: {"values": [_json_value(value) for value in attribute.value]}}
    return {f"{attribute.kind}_val": _json_value(attribute.value)}


def _json_value(value: Any) -> Any:
    """Bytes and the numbers that JSON does not know, in the form that protobuf gives them."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _json_line(record: dict[str, Any]) -> str:
    return json.dumps(record, allow_nan=False).replace("\x7f", "\\u007f")


# The summary


class Transfers(msgspec.Struct):
    """Collectives, sends or receives of one kind, group and size."""

    op: str
    group: str
    n_bytes: int | None
    n_nodes: int = 0
    duration_us: int = 0


class Summary(msgspec.Struct):
    path: str
    version: str
    attributes: dict[str, Attribute]
    n_nodes: int
    types: dict[str, int]
    n_host_nodes: int
    n_device_nodes: int
    n_ctrl_deps: int
    n_data_deps: int
    n_roots: int  # depend on nothing
    n_leaves: int  # nothing depends on them
    n_missing: int  # ids that are depended on, but not in the file
    n_without_start: int
    start_us: int | None
    end_us: int | None
    transfers: list[Transfers]
    first: list[ChakraNode]


def summarize(stream: ChakraStream, n_first: int) -> Summary:
    types: Counter[int] = Counter()
    sides: Counter[bool | None] = Counter()
    counts: Counter[str] = Counter()
    transfers: dict[tuple[str, str, int | None], Transfers] = {}
    ids: set[int] = set()
    needed: set[int] = set()
    first: list[ChakraNode] = []
    start_us, end_us = math.inf, -math.inf
    for node in stream.nodes:
        if len(first) < n_first:
            first.append(node)
        types[node.type] += 1
        sides[_is_host(node)] += 1
        counts["ctrl"] += len(node.ctrl_deps)
        counts["data"] += len(node.data_deps)
        counts["roots"] += not node.ctrl_deps and not node.data_deps
        ids.add(node.id)
        needed.update(node.ctrl_deps, node.data_deps)
        if node.start_us:
            start_us, end_us = min(start_us, node.start_us), max(end_us, node.start_us + node.duration_us)
        else:
            counts["without_start"] += node.type != chakra.METADATA
        if node.type in chakra.COMM_TYPES:
            _add_transfer(transfers, node)
    return Summary(
        path=stream.path,
        version=stream.version,
        attributes=stream.attributes,
        n_nodes=types.total(),
        types={type_name(number): count for number, count in sorted(types.items())},
        n_host_nodes=sides[True],
        n_device_nodes=sides[False],
        n_ctrl_deps=counts["ctrl"],
        n_data_deps=counts["data"],
        n_roots=counts["roots"],
        n_leaves=len(ids - needed),
        n_missing=len(needed - ids),
        n_without_start=counts["without_start"],
        start_us=int(start_us) if start_us < math.inf else None,
        end_us=int(end_us) if start_us < math.inf else None,
        transfers=sorted(transfers.values(), key=lambda row: -(row.n_bytes or 0) * row.n_nodes),
        first=first,
    )


def _is_host(node: ChakraNode) -> bool | None:
    attribute = node.attributes.get("is_cpu_op")
    return bool(attribute.value) if attribute else None


def _add_transfer(transfers: dict[tuple[str, str, int | None], Transfers], node: ChakraNode) -> None:
    size, group = _number(node, "comm_size"), node.attributes.get("pg_name")
    key = (_op_name(node), str(group.value) if group else "", size)
    row = transfers.setdefault(key, Transfers(*key))
    row.n_nodes += 1
    row.duration_us += node.duration_us


def _op_name(node: ChakraNode) -> str:
    if node.type in _TRANSFERS:
        return _TRANSFERS[node.type]
    number = _number(node, "comm_type")
    known = number is not None and 0 <= number < len(chakra.COLLECTIVE_TYPES)
    return chakra.COLLECTIVE_TYPES[number] if known and number is not None else f"unknown type {number}"


def _number(node: ChakraNode, name: str) -> int | None:
    attribute = node.attributes.get(name)
    return int(attribute.value) if attribute and isinstance(attribute.value, (int, float)) else None


def summary_record(summary: Summary) -> dict[str, Any]:
    record = msgspec.structs.asdict(summary)
    record["attributes"] = _attribute_records(summary.attributes)
    record["first"] = [node_record(node) for node in summary.first]
    return record


def summary_lines(summary: Summary, width: int | None) -> Iterator[str]:
    types = ", ".join(f"{name.removesuffix('_NODE')} {count:,}" for name, count in summary.types.items())
    yield escape(f"{summary.path}: Chakra trace, schema {summary.version or 'unknown'}")
    if summary.attributes:
        metadata = (f"{name}={attribute.value!s}" for name, attribute in summary.attributes.items())
        yield escape(f"  metadata      {', '.join(metadata)}")
    yield f"  nodes         {summary.n_nodes:,}" + (f": {types}" if types else "")
    n_unplaced = summary.n_nodes - summary.n_host_nodes - summary.n_device_nodes
    unplaced = f", {n_unplaced:,} unknown" if n_unplaced else ""
    yield f"  where         {summary.n_host_nodes:,} on the host, {summary.n_device_nodes:,} on devices{unplaced}"
    yield f"  dependencies  {summary.n_ctrl_deps:,} control, {summary.n_data_deps:,} data"
    ends = f"{count_noun(summary.n_roots, 'root')}, {count_noun(summary.n_leaves, 'leaf', 'leaves')}"
    missing = f", {summary.n_missing:,} depended on but missing" if summary.n_missing else ""
    yield f"  ends          {ends}{missing}"
    if summary.start_us is not None and summary.end_us is not None:
        without = f", {count_noun(summary.n_without_start, 'node')} without a start" if summary.n_without_start else ""
        yield f"  span          {format_duration((summary.end_us - summary.start_us) * 1000)}{without}"
    else:
        yield "  span          unknown: no node has a start time"
    yield from _transfer_lines(summary, width)
    yield from _first_lines(summary, width)


def _transfer_lines(summary: Summary, width: int | None) -> Iterator[str]:
    if not summary.transfers:
        return
    yield ""
    shown = summary.transfers[:MAX_TRANSFER_ROWS]
    heads = ["op", "group", "bytes", "nodes", "duration (us)"]
    rows = [(row.op, row.group or "world", row.n_bytes, row.n_nodes, row.duration_us) for row in shown]
    yield from table_lines(heads, rows, width)
    hidden = len(summary.transfers) - len(shown)
    if hidden:
        yield f"({hidden:,} more kinds with --json)"


def _first_lines(summary: Summary, width: int | None) -> Iterator[str]:
    if not summary.first:
        return
    yield ""
    heads = ["id", "type", "start (us)", "duration (us)", "depends on", "name"]
    zero_us = summary.start_us or 0
    rows = [
        (
            node.id,
            type_name(node.type).removesuffix("_NODE"),
            node.start_us - zero_us if node.start_us else None,
            node.duration_us,
            _ids(list(dict.fromkeys(node.ctrl_deps + node.data_deps)), 4),
            node.name,
        )
        for node in summary.first
    ]
    yield from table_lines(heads, rows, width)
    hidden = summary.n_nodes - len(rows)
    more = f", {hidden:,} more with --limit N" if hidden else ""
    yield f"({count_noun(len(rows), 'node')}{more}; starts are counted from the first)"


def _ids(ids: list[int], limit: int = 0) -> str:
    shown = ids[:limit] if limit else ids
    return " ".join(map(str, shown)) + (" ..." if len(shown) < len(ids) else "")


def node_lines(node: ChakraNode) -> Iterator[str]:
    """Everything about one node."""
    yield escape(f"node {node.id}: {node.name}")
    rows: list[tuple[str, Any]] = [
        ("type", type_name(node.type)),
        ("start_time_micros", node.start_us),
        ("duration_micros", node.duration_us),
        ("ctrl_deps", _ids(node.ctrl_deps)),
        ("data_deps", _ids(node.data_deps)),
    ]
    for side, io in (("inputs", node.inputs), ("outputs", node.outputs)):
        rows += [(f"{side}.{name}", value) for name, value in msgspec.structs.asdict(io).items()]
    for name, attribute in node.attributes.items():
        value = attribute.value.hex(" ") if isinstance(attribute.value, bytes) else attribute.value
        rows.append((f"{name} ({attribute.kind or 'no value'})", value))
    wide = max(len(name) for name, _ in rows)
    for name, value in rows:
        yield escape(f"  {name:{wide}}  {value}").rstrip()
