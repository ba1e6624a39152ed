"""Chakra's messages, decoded one by one. What is wrong with one is said here, and nowhere else."""

from __future__ import annotations

from typing import cast

from rankscope.model import chakra, protobuf
from rankscope.model.chakra import IO, Attribute, AttributeValue, ChakraNode
from rankscope.model.protobuf import WireError

# Numbers and wire types of the fields, as the tags hold them.
_LENGTH, _VARINT = protobuf.LENGTH, protobuf.VARINT
_VERSION = protobuf.key(chakra.METADATA_VERSION, _LENGTH)
_FILE_ATTRIBUTE = protobuf.key(chakra.METADATA_ATTRIBUTE, _LENGTH)
ID = protobuf.key(chakra.NODE_ID, _VARINT)
NAME = protobuf.key(chakra.NODE_NAME, _LENGTH)
TYPE = protobuf.key(chakra.NODE_TYPE, _VARINT)
CTRL_DEPS = protobuf.key(chakra.NODE_CTRL_DEPS, _LENGTH)
_CTRL_DEP = protobuf.key(chakra.NODE_CTRL_DEPS, _VARINT)
DATA_DEPS = protobuf.key(chakra.NODE_DATA_DEPS, _LENGTH)
_DATA_DEP = protobuf.key(chakra.NODE_DATA_DEPS, _VARINT)
START = protobuf.key(chakra.NODE_START, _VARINT)
DURATION = protobuf.key(chakra.NODE_DURATION, _VARINT)
INPUTS = protobuf.key(chakra.NODE_INPUTS, _LENGTH)
OUTPUTS = protobuf.key(chakra.NODE_OUTPUTS, _LENGTH)
ATTRIBUTE = protobuf.key(chakra.NODE_ATTRIBUTE, _LENGTH)
ATTRIBUTE_NAME = protobuf.key(chakra.ATTRIBUTE_NAME, _LENGTH)
IO_TEXTS = tuple(protobuf.key(number, _LENGTH) for number in (1, 2, 3))
_LISTED = protobuf.key(chakra.LIST_VALUES, _LENGTH)
VALUE_KINDS = {
    protobuf.key(number, _LENGTH if kind.endswith(chakra.LIST_ENDING) else protobuf.SCALARS[kind].wire): kind
    for kind, number in chakra.ATTRIBUTE_FIELDS.items()
}


def decode_metadata(data: bytes) -> tuple[str, dict[str, Attribute]]:
    version = ""
    attributes: dict[str, Attribute] = {}
    for key, raw in protobuf.fields(data):
        if key == _VERSION:
            version = protobuf.decode_text(raw)
        elif key == _FILE_ATTRIBUTE:
            name, attributes[name] = decode_attribute(raw)
        else:
            _check_unknown(key, chakra.METADATA_ATTRIBUTE)
    return version, attributes


def decode_node(data: bytes) -> ChakraNode:
    node = ChakraNode(0)
    inputs = outputs = b""
    for key, raw in protobuf.fields(data):
        if key == ATTRIBUTE:
            name, node.attributes[name] = decode_attribute(raw)
        elif key == ID:
            node.id = raw
        elif key == NAME:
            node.name = protobuf.decode_text(raw)
        elif key == TYPE:
            node.type = decode_type(raw)
        elif key == CTRL_DEPS:
            node.ctrl_deps += protobuf.decode_varints(raw)
        elif key == DATA_DEPS:
            node.data_deps += protobuf.decode_varints(raw)
        elif key == _CTRL_DEP:
            node.ctrl_deps.append(raw)
        elif key == _DATA_DEP:
            node.data_deps.append(raw)
        elif key == START:
            node.start_us = raw
        elif key == DURATION:
            node.duration_us = raw
        elif key == INPUTS:  # messages that follow each other are one message
            inputs += raw
        elif key == OUTPUTS:
            outputs += raw
        else:
            _check_unknown(key, chakra.NODE_ATTRIBUTE)
    node.inputs, node.outputs = decode_io(inputs), decode_io(outputs)
    return node


def decode_type(raw: int) -> int:
    return int(protobuf.decode_scalar("int32", raw))


def decode_io(data: bytes) -> IO:
    texts = dict.fromkeys(IO_TEXTS, "")
    for key, raw in protobuf.fields(data):
        if key in texts:
            texts[key] = protobuf.decode_text(raw)
        else:
            _check_unknown(key, len(texts))
    return IO(*texts.values())


def decode_attribute(data: bytes) -> tuple[str, Attribute]:
    name, kind = "", ""
    value: AttributeValue = ""
    for key, raw in protobuf.fields(data):
        if key == ATTRIBUTE_NAME:
            name = protobuf.decode_text(raw)
        elif key not in VALUE_KINDS:
            if key >> 3 in chakra.ATTRIBUTE_FIELDS.values():
                raise WireError(f"field {key >> 3} of an attribute with the wire type {key & 7}")
        else:  # of several values the last one counts
            earlier, kind = kind, VALUE_KINDS[key]
            if kind.endswith(chakra.LIST_ENDING):
                items = _list(kind.removesuffix(chakra.LIST_ENDING), raw)
                value = cast(AttributeValue, [*value, *items] if kind == earlier and isinstance(value, list) else items)
            else:
                value = protobuf.decode_scalar(kind, raw)
    return name, Attribute(kind, value)


def _list(kind: str, data: bytes) -> list[protobuf.Value]:
    """Writers may pack numbers or give each a field of its own."""
    wire = protobuf.SCALARS[kind].wire
    values: list[protobuf.Value] = []
    for key, raw in protobuf.fields(data):
        if key == protobuf.key(chakra.LIST_VALUES, wire):
            values.append(protobuf.decode_scalar(kind, raw))
        elif key == _LISTED:
            values += protobuf.decode_packed(kind, raw)
        else:
            _check_unknown(key, chakra.LIST_VALUES)
    return values


def _check_unknown(key: int, last_known: int) -> None:
    """Fields of newer schemas are skipped; those of this one must have their wire type."""
    if key >> 3 <= last_known:
        raise WireError(f"field {key >> 3} with the wire type {key & 7}")
