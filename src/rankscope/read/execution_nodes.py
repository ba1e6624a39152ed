"""The nodes of an execution trace, flat or nested, as rows of et_nodes and et_tensors.

Every field that no column is for goes into `extra`. Values, shapes and types stay JSON as the file has it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from rankscope.model.tables import MISSING
from rankscope.read.event_stream import whole_events

_ROOT = re.compile(r"\[pytorch\|profiler\|execution_(?:trace|graph)\|(process|thread)\]")
_GROUPS = "process_group:init"
_TENSOR_TYPE = re.compile(r"Tensor\(((?:[^()]|\([^()]*\))*)\)")  # Tensor(nullptr (uninitialized)) is one of them
_MAX_NESTING = 8
_LIST = b"[]"

RawFields = dict[str, msgspec.Raw]
_nodes = msgspec.json.Decoder(list[RawFields])
_fields = msgspec.json.Decoder(RawFields)
_anything = msgspec.json.Decoder()


class _Attribute(msgspec.Struct):
    name: str
    value: Any = None


_attributes = msgspec.json.Decoder(list[_Attribute])


class NodeRow(NamedTuple):
    """In the order of the columns of et_nodes, without the keys of the file."""

    node_id: int
    position: int
    name: str
    kind: str
    parent_id: int
    fw_parent_id: int
    record_id: int
    seq_id: int
    scope: int
    thread: int
    fw_thread: int
    op_schema: str
    inputs: str
    input_shapes: str
    input_types: str
    input_strides: str
    outputs: str
    output_shapes: str
    output_types: str
    output_strides: str
    kernel_backend: str
    kernel_file: str
    collective: str
    dtype: str
    n_in: int
    n_out: int
    group_name: str
    group_desc: str
    group_size: int
    extra: str


class TensorRow(NamedTuple):
    node_id: int
    is_output: bool
    argument: int
    element: int
    tensor_id: int
    storage_id: int
    storage_offset: int
    n_elements: int
    n_item_bytes: int
    dtype: str
    device: str


class Decoded(NamedTuple):
    nodes: list[NodeRow]
    tensors: list[TensorRow]
    n_damaged: int


class _Values(NamedTuple):
    """What a node takes or gives: JSON, and the values as objects."""

    values: str
    shapes: str
    types: str
    strides: str
    parsed: list[Any]
    others: RawFields


def decode_nodes(part: bytes, n_before: int) -> Decoded:
    """The nodes of a JSON array; those that cannot be understood are counted."""
    try:
        raw_nodes = _nodes.decode(part)
        n_damaged = 0
    except msgspec.DecodeError:
        raw_nodes, n_damaged = _one_by_one(whole_events(part))
    nodes: list[NodeRow] = []
    tensors: list[TensorRow] = []
    for fields in raw_nodes:
        try:
            node, given, taken = _node(fields, n_before + len(nodes))
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError, RecursionError):
            n_damaged += 1
            continue
        nodes.append(node)
        tensors += _tensors(node.node_id, False, given, node.input_types)
        tensors += _tensors(node.node_id, True, taken, node.output_types)
    return Decoded(nodes, tensors, n_damaged)


def _one_by_one(part: bytes) -> tuple[list[RawFields], int]:
    """Objects that are nodes, and how many things in the array are none."""
    try:
        elements = msgspec.json.decode(part, type=list[msgspec.Raw])
    except msgspec.DecodeError:
        return [], 1
    nodes = []
    for element in elements:
        try:
            nodes.append(_fields.decode(element))
        except msgspec.DecodeError:
            continue
    return nodes, len(elements) - len(nodes) or 1


def _node(fields: RawFields, position: int) -> tuple[NodeRow, list[Any], list[Any]]:
    node_id = _anything.decode(fields.pop("id"))
    name = _anything.decode(fields.pop("name"))
    if type(node_id) is not int or not 0 <= node_id < 2**63 or type(name) is not str:
        raise ValueError("a node needs a number and a name")
    is_flat = "rf_id" in fields or "parent" in fields
    given, taken = (_flat_values if is_flat else _nested_values)(fields)
    attributes = _flat_attributes(fields) if is_flat else _nested_attributes(fields)
    parent = _number(attributes.pop("parent", MISSING))
    record = _number(attributes.pop("rf_id", 0))
    row = NodeRow(
        node_id,
        position,
        name,
        _kind(name),
        parent if parent not in (0, node_id) else MISSING,
        _number(attributes.pop("fw_parent", 0)) or MISSING,
        record or MISSING,
        _number(attributes.pop("seq_id", MISSING)),
        _small_number(attributes.pop("scope", MISSING)),
        _number(attributes.pop("tid", MISSING)),
        _number(attributes.pop("fw_tid", 0)) or MISSING,
        _text(attributes.pop("op_schema", "")),
        *given[:4],
        *taken[:4],
        _text(attributes.pop("kernel_backend", "")),
        _text(attributes.pop("kernel_file", "")),
        _text(attributes.pop("collective_name", "")),
        _text(attributes.pop("dtype", "")),
        _number(attributes.pop("in_msg_nelems", MISSING)),
        _number(attributes.pop("out_msg_nelems", MISSING)),
        _text(attributes.pop("pg_name", "")),
        _text(attributes.pop("pg_desc", "")),
        _small_number(attributes.pop("pg_size", MISSING)),
        _extra(attributes, given.others, taken.others),
    )
    return row, given.parsed, taken.parsed


def _nested_values(fields: RawFields) -> tuple[_Values, _Values]:
    given, taken = (_fields.decode(fields.pop(key)) if key in fields else {} for key in ("inputs", "outputs"))
    return (
        _values(given, ("values", "shapes", "types", "strides"), given),
        _values(taken, ("values", "shapes", "types", "strides"), taken),
    )


def _flat_values(fields: RawFields) -> tuple[_Values, _Values]:
    return (
        _values(fields, ("inputs", "input_shapes", "input_types", "input_strides"), {}),
        _values(fields, ("outputs", "output_shapes", "output_types", "output_strides"), {}),
    )


def _values(fields: RawFields, keys: tuple[str, str, str, str], others: RawFields) -> _Values:
    values, shapes, types, strides = (bytes(fields.pop(key, _LIST)) for key in keys)
    parsed = _anything.decode(values) if values != _LIST else []
    return _Values(
        values.decode(),
        shapes.decode(),
        types.decode(),
        strides.decode() if strides != _LIST else "",
        parsed if type(parsed) is list else [],
        others,
    )


def _nested_attributes(fields: RawFields) -> dict[str, Any]:
    attributes = {
        attribute.name: attribute.value
        for attribute in (_attributes.decode(fields.pop("attrs")) if "attrs" in fields else ())
    }
    parent = _anything.decode(fields.pop("ctrl_deps", b"0"))
    attributes["parent"] = parent[0] if type(parent) is list and parent else parent
    for key, raw in fields.items():
        attributes[key] = _anything.decode(raw)
    return attributes


def _flat_attributes(fields: RawFields) -> dict[str, Any]:
    return {key: _anything.decode(raw) for key, raw in fields.items()}


def _extra(attributes: dict[str, Any], given: RawFields, taken: RawFields) -> str:
    """What no column is for; fields that newer versions write on every node, empty on most, are left out."""
    others = {key: value for key, value in attributes.items() if value not in ("", None)}
    if given:
        others["inputs"] = {key: _anything.decode(raw) for key, raw in given.items()}
    if taken:
        others["outputs"] = {key: _anything.decode(raw) for key, raw in taken.items()}
    return msgspec.json.encode(others).decode() if others else ""


def _kind(name: str) -> str:
    if name[0:1] == "[" and (root := _ROOT.fullmatch(name)):
        return root.group(1)
    return "groups" if _GROUPS in name else "op"


def _number(value: object) -> int:
    return value if type(value) is int and -(2**63) <= value < 2**63 else MISSING


def _small_number(value: object) -> int:
    return value if type(value) is int and -(2**31) <= value < 2**31 else MISSING


def _text(value: object) -> str:
    return value if type(value) is str else str(value)


def _tensors(node_id: int, is_output: bool, values: list[Any], types: str) -> list[TensorRow]:
    """The types say which argument each one is: they have one entry per argument, split like the values."""
    tensors = [tensor for value in values if type(value) is list and value for tensor in _tensors_in(value, 0)]
    if not tensors:
        return []
    places = tensor_places(types)
    unknown = ((MISSING, 0, ""),) * (len(tensors) - len(places))
    return [
        TensorRow._make((node_id, is_output, argument, element, *tensor[:5], dtype, tensor[5]))
        for tensor, (argument, element, dtype) in zip(tensors, (*places, *unknown), strict=False)
        if tensor[1] or tensor[3]  # without memory it is none
    ]


def _tensors_in(value: list[Any], depth: int) -> Iterator[list[Any]]:
    if len(value) == 6 and type(value[5]) is str and type(value[0]) is int:
        if all(type(number) is int and -(2**63) <= number < 2**63 for number in value[:5]):
            yield value
    elif type(value[0]) is list and depth < _MAX_NESTING:
        for inner in value:
            if type(inner) is list and inner:
                yield from _tensors_in(inner, depth + 1)


@functools.lru_cache(maxsize=4096)
def tensor_places(types: str) -> tuple[tuple[int, int, str], ...]:
    """For each tensor in a list of types, in order: the argument, the position in the argument, and the type."""
    try:
        named = _anything.decode(types)
    except msgspec.DecodeError:
        return ()
    return tuple(
        (argument, element, dtype)
        for argument, name in enumerate(named if isinstance(named, list) else ())
        for element, dtype in enumerate(_TENSOR_TYPE.findall(str(name)))
    )


def group_rows(inputs: str) -> list[dict[str, Any]]:
    """The process groups that a node describes: a JSON text within the values."""
    try:
        described = _anything.decode(_anything.decode(inputs.encode())[0])
    except (msgspec.DecodeError, LookupError, TypeError, ValueError):
        return []
    rows = []
    for group in described if isinstance(described, list) else []:
        if not isinstance(group, dict):
            continue
        ranks = group.get("ranks")
        ranks = [rank for rank in ranks if type(rank) is int] if isinstance(ranks, list) else []
        size = _small_number(group.get("group_size", group.get("pg_size", len(ranks) or MISSING)))
        rows.append(
            {
                "name": _text(group.get("pg_name", "")),
                "desc": _text(group.get("pg_desc", "")),
                "backend": _text(group.get("backend_config", "")),
                "ranks": msgspec.json.encode(ranks).decode(),
                "size": size,
            }
        )
    return rows
