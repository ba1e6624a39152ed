"""Chakra's messages as protobuf itself knows them, from the numbers of et_def.proto: a decoder that is not ours."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, proto

SCALARS = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
    *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
)
NODE_TYPES = ("INVALID", "METADATA", "MEM_LOAD", "MEM_STORE", "COMP", "COMM_SEND", "COMM_RECV", "COMM_COLL")
_FIELD = descriptor_pb2.FieldDescriptorProto


def _add(message: Any, number: int, name: str, kind: str, repeated: bool = False) -> Any:
    field = message.field.add(number=number, name=name)
    field.label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
    if kind in SCALARS:
        field.type = getattr(_FIELD, f"TYPE_{kind.upper()}")
    else:
        field.type = _FIELD.TYPE_ENUM if kind == "NodeType" else _FIELD.TYPE_MESSAGE
        field.type_name = f".ChakraProtoMsg.{kind}"
    return field


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    node_type = file.enum_type.add(name="NodeType")
    for number, name in enumerate(NODE_TYPES):
        node_type.value.add(name=f"{name}_NODE", number=number)
    attribute = file.message_type.add(name="AttributeProto")
    attribute.oneof_decl.add(name="value")
    _add(attribute, 1, "name", "string")
    _add(attribute, 2, "doc_string", "string")
    for place, kind in enumerate(SCALARS):
        listed = f"{kind.capitalize()}List"
        _add(file.message_type.add(name=listed), 1, "values", kind, repeated=True)
        _add(attribute, 3 + 2 * place, f"{kind}_val", kind).oneof_index = 0
        _add(attribute, 4 + 2 * place, f"{kind}_list", listed).oneof_index = 0
    metadata = file.message_type.add(name="GlobalMetadata")
    _add(metadata, 1, "version", "string")
    _add(metadata, 2, "attr", "AttributeProto", repeated=True)
    io_info = file.message_type.add(name="IOInfo")
    for number, name in enumerate(("values", "shapes", "types"), start=1):
        _add(io_info, number, name, "string")
    node = file.message_type.add(name="Node")
    scalars = {"id": "uint64", "name": "string", "type": "NodeType", "ctrl_deps": "uint64", "data_deps": "uint64"}
    scalars |= {"start_time_micros": "uint64", "duration_micros": "uint64", "inputs": "IOInfo", "outputs": "IOInfo"}
    for number, (name, kind) in enumerate(scalars.items(), start=1):
        _add(node, number, name, kind, repeated=name.endswith("_deps"))
    _add(node, 10, "attr", "AttributeProto", repeated=True)
    return file


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_file())


def _message_class(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"ChakraProtoMsg.{name}"))


Node, GlobalMetadata, AttributeProto = map(_message_class, ("Node", "GlobalMetadata", "AttributeProto"))


def parse(path: Path) -> tuple[Any, list[Any]]:
    """The metadata and the nodes of a file, cut into messages and decoded by protobuf."""
    content = path.read_bytes()
    stream = io.BytesIO(gzip.decompress(content) if path.suffix == ".gz" else content)
    return proto.parse_length_prefixed(GlobalMetadata, stream), list(_rest(stream))


def _rest(stream: io.BytesIO) -> Iterator[Any]:
    while (node := proto.parse_length_prefixed(Node, stream)) is not None:
        yield node


def serialize(path: Path, *messages: Any) -> Path:
    """A file as protobuf would write it."""
    stream = io.BytesIO()
    for message in messages:
        proto.serialize_length_prefixed(message, stream)
    path.write_bytes(stream.getvalue())
    return path


def attribute(name: str, kind: str, value: Any) -> Any:
    """An AttributeProto that holds a value of a kind, such as int64 or int64_list."""
    message = AttributeProto(name=name)
    if kind.endswith("_list"):
        getattr(message, kind).SetInParent()  # an empty list is still a list
        getattr(message, kind).values.extend(value)
    elif kind:
        setattr(message, f"{kind}_val", value)
    return message
