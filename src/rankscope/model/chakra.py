"""Chakra's graph of a job, as simulators take it: one per rank, in the terms of its schema (et_def.proto)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from rankscope.model.tables import Array, Text

SCHEMA_VERSION = "0.0.4"
NODE_TYPES = (
    "INVALID_NODE",
    "METADATA_NODE",
    "MEM_LOAD_NODE",
    "MEM_STORE_NODE",
    "COMP_NODE",
    "COMM_SEND_NODE",
    "COMM_RECV_NODE",
    "COMM_COLL_NODE",
)
INVALID, METADATA, MEM_LOAD, MEM_STORE, COMP, COMM_SEND, COMM_RECV, COMM_COLL = range(len(NODE_TYPES))
COMM_TYPES = frozenset((COMM_SEND, COMM_RECV, COMM_COLL))
# By number, under the names that the tables of this package use.
COLLECTIVE_TYPES = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter_block",
    "barrier",
)

# The numbers of the fields in et_def.proto.
METADATA_VERSION, METADATA_ATTRIBUTE = 1, 2
(
    NODE_ID,
    NODE_NAME,
    NODE_TYPE,
    NODE_CTRL_DEPS,
    NODE_DATA_DEPS,
    NODE_START,
    NODE_DURATION,
    NODE_INPUTS,
    NODE_OUTPUTS,
    NODE_ATTRIBUTE,
) = range(1, 11)
ATTRIBUTE_NAME, LIST_VALUES = 1, 1
LIST_ENDING = "_list"
_SCALARS = "double float int32 int64 uint32 uint64 sint32 sint64 fixed32 fixed64 sfixed32 sfixed64 bool string bytes"
_KINDS = [name for kind in _SCALARS.split() for name in (kind, kind + LIST_ENDING)]
# Of what an attribute may hold: each kind of value is followed by a list of its kind.
ATTRIBUTE_FIELDS = {kind: number for number, kind in enumerate(_KINDS, start=3)}

AttributeValue: TypeAlias = (
    "float | int | bool | str | bytes | list[float] | list[int] | list[bool] | list[str] | list[bytes]"
)


class Attribute(msgspec.Struct, frozen=True):
    kind: str  # a key of ATTRIBUTE_FIELDS: int64, bool, string, int64_list; "" when none was set
    value: AttributeValue


def type_name(number: int) -> str:
    """The name of a type of nodes; newer schemas may have more of them."""
    return NODE_TYPES[number] if 0 <= number < len(NODE_TYPES) else f"TYPE_{number}"


class IO(msgspec.Struct, frozen=True):
    """What a node takes or gives: three lists, each written as text."""

    values: str = ""
    shapes: str = ""
    types: str = ""


class ChakraNode(msgspec.Struct):
    """One node of a file, as it was found there."""

    id: int
    name: str = ""
    type: int = INVALID
    ctrl_deps: list[int] = []
    data_deps: list[int] = []
    start_us: int = 0
    duration_us: int = 0
    inputs: IO = IO()
    outputs: IO = IO()
    attributes: dict[str, Attribute] = {}


class ChakraFile(msgspec.Struct):
    """A file as it was found: nodes in its order, whatever their ids."""

    path: str
    version: str
    attributes: dict[str, Attribute]
    nodes: list[ChakraNode]


@dataclass(frozen=True)
class ChakraStream:
    """A file whose nodes are read while they are used, once: for files larger than memory."""

    path: str
    version: str
    attributes: dict[str, Attribute]
    nodes: Iterator[ChakraNode]


@dataclass(frozen=True)
class Ragged:
    """A list of numbers per row: those of row r are values[starts[r]:starts[r + 1]]."""

    starts: Array
    values: Array


@dataclass(frozen=True)
class AttributeColumn:
    """One attribute of many nodes. Rows where `is_set` is false do not have it."""

    kind: str
    values: Array | Text  # numbers as such, strings as Text, bytes and lists as an array of objects
    is_set: Array | None = None  # None: all rows have it


@dataclass(frozen=True)
class ChakraGraph:
    """The graph of one rank in columns, to be written. The id of a node is its row; dependencies name rows."""

    rank: int
    name: Text
    type: Array
    start_ns: Array
    duration_ns: Array
    ctrl_deps: Ragged
    data_deps: Ragged
    inputs: tuple[Text, Text, Text]  # values, shapes, types
    outputs: tuple[Text, Text, Text]
    attributes: dict[str, AttributeColumn]
    metadata: dict[str, Attribute] = field(default_factory=dict)  # of the whole file
