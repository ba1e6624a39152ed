"""Questions that the tests ask of execution traces, simulated and real."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from rankscope.simulate.execution.nodes import (
    Argument,
    Communication,
    Device,
    ExecutionTrace,
    Node,
    Opaque,
    Tensor,
)

_FLAT_NAMES = {
    "node_id": "id",
    "name": "name",
    "parent_id": "parent",
    "record_id": "rf_id",
    "fw_parent_id": "fw_parent",
    "sequence": "seq_id",
    "scope": "scope",
    "thread": "tid",
    "fw_thread": "fw_tid",
    "op_schema": "op_schema",
}
_FLAT_LISTS = {"values": "{}puts", "shapes": "{}put_shapes", "types": "{}put_types"}
_INNER_TYPE = re.compile(r"((?:GenericList|Tuple)\[.*\]|[^,\[\]()]+(?:\((?:[^()]|\([^()]*\))*\))?)(?:,|$)")


def fields_of(node: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a node in the nested layouts, by their names."""
    return {field["name"]: field["value"] for field in node["attrs"]}


def flattened(node: dict[str, Any]) -> dict[str, Any]:
    """A node of the nested layouts under the names that the flat one has."""
    if "attrs" not in node:
        return node
    flat = {"id": node["id"], "name": node["name"], "parent": node["ctrl_deps"], **fields_of(node)}
    for side in ("in", "out"):
        flat |= {name.format(side): node[f"{side}puts"][key] for key, name in _FLAT_LISTS.items()}
        flat[f"{side}put_strides"] = node[f"{side}puts"].get("strides")
    return flat


def tensors(argument: Argument) -> Iterator[Tensor]:
    if isinstance(argument, Tensor):
        yield argument
    elif isinstance(argument, list):
        for each in argument:
            yield from tensors(each)


def tensors_read(node: Node) -> list[Tensor]:
    arguments = (*node.inputs, node.communication.tensor) if node.communication else node.inputs
    return [tensor for argument in arguments for tensor in tensors(argument)]


def tensors_written(node: Node) -> list[Tensor]:
    """What the node returns, and the inputs that its signature says it writes to."""
    signature = [part for part in node.op_schema.partition("(")[2].split(", ") if part != "*"]
    in_place = [value for value, part in zip(node.inputs, signature, strict=False) if "!" in part.partition(" ")[0]]
    return [tensor for argument in (*node.outputs, *in_place) for tensor in tensors(argument)]


def read_back(text: str) -> ExecutionTrace:
    """What a real file says, so that it can be written once more."""
    found = json.loads(text)
    nodes = tuple(_read_node(flattened(node)) for node in found["nodes"] if _is_writable(node))
    return ExecutionTrace(found["pid"], found["time"], found["start_ts"], found["finish_ts"], nodes)


def _is_writable(node: dict[str, Any]) -> bool:
    """Simulated jobs make no calls without tensors."""
    return node["name"] != "record_param_comms" or ("attrs" in node and isinstance(node["inputs"]["values"][0], list))


def _read_node(flat: dict[str, Any]) -> Node:
    node = Node(**{name: flat[key] for name, key in _FLAT_NAMES.items()})
    node = node._replace(
        name=node.name.replace("execution_graph", "execution_trace"),
        inputs=_read_arguments(flat, "in"),
        outputs=_read_arguments(flat, "out"),
    )
    return node._replace(communication=_read_call(node, flat)) if node.name == "record_param_comms" else node


def _read_call(node: Node, flat: dict[str, Any]) -> Communication:
    values: tuple[Any, ...] = node.inputs
    [tensor], sequence, group, rank, op, _, _, first_rank, stride, group_size = values
    dtype = flat.get("dtype", "")
    return Communication._make((op, tensor, dtype, sequence, False, rank, *group, first_rank, stride, group_size))


def _read_arguments(flat: dict[str, Any], side: str) -> tuple[Argument, ...]:
    values, shapes, types = (flat[name.format(side)] for name in _FLAT_LISTS.values())
    strides = flat.get(f"{side}put_strides") or shapes
    return tuple(_read_argument(*each) for each in zip(values, shapes, types, strides, strict=True))


def _read_argument(value: Any, shape: Any, kind: str, strides: Any) -> Argument:
    if kind.startswith("Tensor("):
        return Tensor._make((*value, tuple(shape), tuple(strides), kind[7:-1]))
    if kind.startswith(("GenericList[", "Tuple[")):
        kinds = _INNER_TYPE.findall(kind[kind.index("[") + 1 : -1])
        inner = [_read_argument(*each) for each in zip(value, shape, kinds, strides, strict=True)]
        return inner if kind.startswith("GenericList") else tuple(inner)
    if kind == "Device":
        return Device(value)
    argument: Argument = {"None": None, "Object": Opaque()}.get(kind, value)
    return argument
