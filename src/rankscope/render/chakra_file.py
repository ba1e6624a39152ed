"""Writes Chakra's file of one rank: a stream of protobuf messages, each after its length.

Bytes are made column by column and joined node by node, so that no node costs more than a few lookups. What proto3
leaves out (zeros and empty texts outside of attributes) is left out here, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from operator import add
from typing import TypeAlias, cast

import numpy as np

from rankscope.model import chakra, protobuf
from rankscope.model.chakra import Attribute, AttributeColumn, ChakraGraph, Ragged
from rankscope.model.tables import Array, Text
from rankscope.render.whole_file import whole_binary

_ROWS_AT_ONCE = 4096
# Texts with few distinct values are encoded once; of others most rows have a value of their own.
_MAX_KEPT_TEXTS = 16_384
_NS_PER_US = 1000

# The bytes of one field, row by row, of a slice of rows; b"" where a row does not have it.
Encoder: TypeAlias = Callable[[slice], Sequence[bytes]]


def write_graph(graph: ChakraGraph, path: str | os.PathLike[str]) -> int:
    """Writes the file, packed when its name ends with .gz, and returns how many nodes it has. All or nothing."""
    with whole_binary(os.fspath(path)) as file:
        file.write(_message(_metadata(graph)))
        for chunk in _node_chunks(graph):
            file.write(chunk)
    return len(graph.type)


def _metadata(graph: ChakraGraph) -> bytes:
    version = protobuf.delimited(chakra.METADATA_VERSION, protobuf.text_bytes(chakra.SCHEMA_VERSION))
    attributes = (
        protobuf.delimited(chakra.METADATA_ATTRIBUTE, _attribute_content(name, attribute))
        for name, attribute in graph.metadata.items()
    )
    return version + b"".join(attributes)


def _message(content: bytes) -> bytes:
    return protobuf.encode_varint(len(content)) + content


def _node_chunks(graph: ChakraGraph) -> Iterator[bytes]:
    encoders = _encoders(graph)
    lengths = _Heads(protobuf.encode_varint)
    n_nodes = len(graph.type)
    for first in range(0, n_nodes, _ROWS_AT_ONCE):
        rows = slice(first, min(first + _ROWS_AT_ONCE, n_nodes))
        fields = zip(*(encode(rows) for encode in encoders), strict=True)
        nodes = list(map(b"".join, fields))
        yield b"".join(chain.from_iterable(zip(lengths.of(nodes), nodes, strict=True)))


def _encoders(graph: ChakraGraph) -> list[Encoder]:
    """In the order of the fields' numbers."""
    return [
        _number_field(chakra.NODE_ID, np.arange(len(graph.type))),
        _text_field(chakra.NODE_NAME, graph.name),
        _number_field(chakra.NODE_TYPE, graph.type),
        _dependencies(chakra.NODE_CTRL_DEPS, graph.ctrl_deps),
        _dependencies(chakra.NODE_DATA_DEPS, graph.data_deps),
        _number_field(chakra.NODE_START, _whole_us(graph.start_ns)),
        _number_field(chakra.NODE_DURATION, _whole_us(graph.duration_ns)),
        _io_field(chakra.NODE_INPUTS, graph.inputs),
        _io_field(chakra.NODE_OUTPUTS, graph.outputs),
        *(_attribute(name, column) for name, column in graph.attributes.items()),
    ]


def _whole_us(nanoseconds: Array) -> Array:
    """To the nearest; a missing time is 0, which is how the schema leaves it out."""
    return np.maximum(nanoseconds.astype(np.int64) + _NS_PER_US // 2, 0) // _NS_PER_US


class _Heads(dict[int, bytes]):
    """The bytes before a content, by the content's length: made once for each length that occurs."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, length: int) -> bytes:
        head = self[length] = self._make(length)
        return head

    def of(self, contents: Sequence[bytes]) -> Iterator[bytes]:
        return map(self.__getitem__, map(len, contents))

    def before(self, contents: Sequence[bytes]) -> list[bytes]:
        return list(map(add, self.of(contents), contents))


def _field_heads(number: int) -> _Heads:
    """An empty content is left out together with its tag."""
    tag = protobuf.tag(number, protobuf.LENGTH)
    return _Heads(lambda length: tag + protobuf.encode_varint(length) if length else b"")


# Fields


def _number_field(number: int, values: Array) -> Encoder:
    tag = protobuf.tag(number, protobuf.VARINT)
    return _numbers("uint64", values, _Heads(lambda _: tag), values != 0)


def _text_field(number: int, text: Text) -> Encoder:
    return _texts(text, _field_heads(number))


def _io_field(number: int, texts: Sequence[Text]) -> Encoder:
    parts = [_text_field(index, text) for index, text in enumerate(texts, start=1)]
    heads = _field_heads(number)

    def encode(rows: slice) -> Sequence[bytes]:
        return heads.before(list(map(b"".join, zip(*(part(rows) for part in parts), strict=True))))

    return encode


def _dependencies(number: int, lists: Ragged) -> Encoder:
    heads = _field_heads(number)

    def encode(rows: slice) -> Sequence[bytes]:
        starts = lists.starts[rows.start : rows.stop + 1]
        matrix, sizes = protobuf.varint_matrix(lists.values[starts[0] : starts[-1]].astype(np.uint64))
        packed = matrix[np.arange(matrix.shape[1]) < sizes[:, np.newaxis]].tobytes()
        ends = np.concatenate(([0], np.cumsum(sizes)))[starts - starts[0]].tolist()
        return heads.before([packed[start:end] for start, end in pairwise(ends)])

    return encode


# Attributes


def _attribute(name: str, column: AttributeColumn) -> Encoder:
    if isinstance(column.values, Text):
        return _texts(column.values, _attribute_heads(name, column.kind), column.is_set)
    if column.values.dtype == object:
        return _objects(name, column.kind, column.values, column.is_set)
    return _numbers(column.kind, column.values, _attribute_heads(name, column.kind), column.is_set)


def _attribute_heads(name: str, kind: str) -> _Heads:
    """All bytes of an attribute before its value, by the length of the value."""
    wire = protobuf.SCALARS[kind].wire
    start = _attribute_name(name) + protobuf.tag(chakra.ATTRIBUTE_FIELDS[kind], wire)

    def make(length: int) -> bytes:
        inner = start + protobuf.encode_varint(length) if wire == protobuf.LENGTH else start
        n_bytes = protobuf.encode_varint(len(inner) + length)
        return protobuf.tag(chakra.NODE_ATTRIBUTE, protobuf.LENGTH) + n_bytes + inner

    return _Heads(make)


def _attribute_content(name: str, attribute: Attribute) -> bytes:
    """One AttributeProto."""
    start = _attribute_name(name)
    kind, value = attribute.kind, attribute.value
    if not kind:
        return start
    number = chakra.ATTRIBUTE_FIELDS[kind]
    if kind.endswith(chakra.LIST_ENDING):
        items = cast("Sequence[protobuf.Value]", value)
        values = protobuf.repeated_field(chakra.LIST_VALUES, kind.removesuffix(chakra.LIST_ENDING), items)
        return start + protobuf.delimited(number, values)
    return start + protobuf.scalar_field(number, kind, cast("protobuf.Value", value))


def _attribute_name(name: str) -> bytes:
    return protobuf.delimited(chakra.ATTRIBUTE_NAME, protobuf.text_bytes(name)) if name else b""


def _objects(name: str, kind: str, values: Array, is_set: Array | None) -> Encoder:
    def encode(rows: slice) -> Sequence[bytes]:
        numbers = values[rows].tolist()
        has = [True] * len(numbers) if is_set is None else is_set[rows].tolist()
        return [
            protobuf.delimited(chakra.NODE_ATTRIBUTE, _attribute_content(name, Attribute(kind, value)))
            if is_there
            else b""
            for value, is_there in zip(numbers, has, strict=True)
        ]

    return encode


# Columns


def _texts(text: Text, heads: _Heads, is_set: Array | None = None) -> Encoder:
    absent = len(text.values)

    def codes(rows: slice) -> list[int]:
        own_codes = text.codes[rows]
        chosen: list[int] = (own_codes if is_set is None else np.where(is_set[rows], own_codes, absent)).tolist()
        return chosen

    if absent <= _MAX_KEPT_TEXTS:
        pieces = [*heads.before(_encoded(text.values)), b""]
        return lambda rows: [pieces[code] for code in codes(rows)]

    def encode(rows: slice) -> Sequence[bytes]:
        chosen = codes(rows)
        values = text.values
        if is_set is None:
            return heads.before(_encoded([values[code] for code in chosen]))
        present = iter(heads.before(_encoded([values[code] for code in chosen if code < absent])))
        return [next(present) if code < absent else b"" for code in chosen]

    return encode


def _encoded(texts: Sequence[str]) -> list[bytes]:
    try:
        return list(map(str.encode, texts))
    except UnicodeEncodeError:
        return list(map(protobuf.text_bytes, texts))


def _numbers(kind: str, values: Array, heads: _Heads, is_set: Array | None) -> Encoder:
    """Numbers of one length differ only in their last bytes, so those are made together."""

    def encode(rows: slice) -> Sequence[bytes]:
        matrix, sizes = protobuf.number_matrix(kind, values[rows])
        if is_set is not None:
            sizes = np.where(is_set[rows], sizes, 0)
        pieces = np.full(len(sizes), b"", object)
        for size in range(1, matrix.shape[1] + 1):
            chosen = np.flatnonzero(sizes == size)
            if len(chosen):
                head = np.frombuffer(heads[size], np.uint8)
                whole = np.empty((len(chosen), len(head) + size), np.uint8)
                whole[:, : len(head)] = head
                whole[:, len(head) :] = matrix[chosen, :size]
                pieces[chosen] = whole.view(f"V{whole.shape[1]}").ravel().astype(object)
        encoded: list[bytes] = pieces.tolist()
        return encoded

    return encode
