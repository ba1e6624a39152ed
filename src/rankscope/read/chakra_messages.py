"""Chakra's messages, decoded by protobuf's own library (the extra `chakra`) from the numbers of et_def.proto.

What it takes for granted is checked here: it passes over a field whose wire type is not the schema's, as if a newer
schema had added it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from rankscope.errors import UsageError
from rankscope.model import chakra
from rankscope.model.chakra import IO, Attribute, ChakraNode

_PACKAGE = "ChakraProtoMsg"
_IO_TEXTS = ("values", "shapes", "types")
_NODE_FIELDS = (
    (chakra.NODE_ID, "id", "uint64"),
    (chakra.NODE_NAME, "name", "string"),
    (chakra.NODE_TYPE, "type", "int32"),
    (chakra.NODE_CTRL_DEPS, "ctrl_deps", "uint64"),
    (chakra.NODE_DATA_DEPS, "data_deps", "uint64"),
    (chakra.NODE_START, "start_time_micros", "uint64"),
    (chakra.NODE_DURATION, "duration_micros", "uint64"),
    (chakra.NODE_INPUTS, "inputs", "IOInfo"),
    (chakra.NODE_OUTPUTS, "outputs", "IOInfo"),
    (chakra.NODE_ATTRIBUTE, "attr", "AttributeProto"),
)
# The field that holds a value of a kind: int64_val, or the message int64_list.
_KIND_OF_FIELD = {
    kind if kind.endswith(chakra.LIST_ENDING) else f"{kind}_val": kind for kind in chakra.ATTRIBUTE_FIELDS
}
_NO_IO = IO()


class MessageError(ValueError):
    """Bytes that are not the message; the text says what was found in them."""


class Decoder:
    """Decodes the messages of one file."""

    def __init__(self) -> None:
        self._node_class, self._metadata_class = _message_classes()

    def metadata(self, data: bytes) -> tuple[str, dict[str, Attribute]]:
        message = _parsed(self._metadata_class, data)
        return message.version, _attributes(message.attr)

    def node(self, data: bytes) -> ChakraNode:
        message = _parsed(self._node_class, data)
        return ChakraNode(
            message.id,
            message.name,
            message.type,
            list(message.ctrl_deps),
            list(message.data_deps),
            message.start_time_micros,
            message.duration_micros,
            _io(message.inputs) if message.HasField("inputs") else _NO_IO,
            _io(message.outputs) if message.HasField("outputs") else _NO_IO,
            _attributes(message.attr),
        )


def _io(message: Any) -> IO:
    return IO(message.values, message.shapes, message.types)


def _attributes(messages: Any) -> dict[str, Attribute]:
    attributes = {}
    for message in messages:
        field = message.WhichOneof("value")
        if field is None:
            attributes[message.name] = Attribute("", "")
        else:
            kind, value = _KIND_OF_FIELD[field], getattr(message, field)
            attributes[message.name] = Attribute(kind, list(value.values) if field == kind else value)
    return attributes


def _parsed(kind: Any, data: bytes) -> Any:
    try:
        message = kind.FromString(data)
    except _decode_error():
        raise MessageError(f"bytes that are not a {kind.DESCRIPTOR.name} message") from None
    message.DiscardUnknownFields()
    if message.ByteSize() != len(data):  # something was passed over, or is merely written in another way
        _check_fields(kind.FromString(data))
    return message


def _check_fields(message: Any) -> None:
    """Fields of newer schemas are passed over; those of this one must have their wire type."""
    from google.protobuf.message import Message
    from google.protobuf.unknown_fields import UnknownFieldSet

    known = message.DESCRIPTOR.fields_by_number
    for field in UnknownFieldSet(message):
        if field.field_number in known:
            name = message.DESCRIPTOR.name
            raise MessageError(f"field {field.field_number} of {name} with the wire type {field.wire_type}")
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in (value,) if isinstance(value, Message) else value:
                _check_fields(inner)


@cache
def _decode_error() -> type[Exception]:
    from google.protobuf.message import DecodeError

    error: type[Exception] = DecodeError
    return error


@cache
def _message_classes() -> tuple[Any, Any]:
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise UsageError("reading Chakra traces needs protobuf", "pip install 'rankscope[chakra]'") from error
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_schema(descriptor_pb2))
    node, metadata = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in ("Node", "GlobalMetadata")
    )
    return node, metadata


def _schema(descriptors: Any) -> Any:
    """What et_def.proto says, as far as this package goes: the types of nodes stay numbers."""
    file = descriptors.FileDescriptorProto(name="et_def.proto", package=_PACKAGE, syntax="proto3")
    field_class = descriptors.FieldDescriptorProto

    def add_field(message: Any, number: int, name: str, kind: str, *, repeated: bool = False) -> Any:
        label = field_class.LABEL_REPEATED if repeated else field_class.LABEL_OPTIONAL
        if kind in chakra.ATTRIBUTE_FIELDS:
            return message.field.add(number=number, name=name, label=label, type=f"TYPE_{kind.upper()}")
        type_name = f".{_PACKAGE}.{kind}"
        return message.field.add(number=number, name=name, label=label, type="TYPE_MESSAGE", type_name=type_name)

    attribute = file.message_type.add(name="AttributeProto")
    attribute.oneof_decl.add(name="value")
    add_field(attribute, chakra.ATTRIBUTE_NAME, "name", "string")
    for name, kind in _KIND_OF_FIELD.items():
        held = kind
        if name == kind:  # a list is a message
            held = f"{kind.removesuffix(chakra.LIST_ENDING).capitalize()}List"
            scalar = kind.removesuffix(chakra.LIST_ENDING)
            add_field(file.message_type.add(name=held), chakra.LIST_VALUES, "values", scalar, repeated=True)
        add_field(attribute, chakra.ATTRIBUTE_FIELDS[kind], name, held).oneof_index = 0
    metadata = file.message_type.add(name="GlobalMetadata")
    add_field(metadata, chakra.METADATA_VERSION, "version", "string")
    add_field(metadata, chakra.METADATA_ATTRIBUTE, "attr", "AttributeProto", repeated=True)
    io_info = file.message_type.add(name="IOInfo")
    for number, name in enumerate(_IO_TEXTS, start=1):
        add_field(io_info, number, name, "string")
    node = file.message_type.add(name="Node")
    for number, name, kind in _NODE_FIELDS:
        add_field(node, number, name, kind, repeated=name in ("ctrl_deps", "data_deps", "attr"))
    return file
