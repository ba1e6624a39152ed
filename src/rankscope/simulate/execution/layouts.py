"""The versions in which torch has written execution traces down."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from rankscope.errors import UsageError
from rankscope.simulate.execution.nodes import (
    GROUPS_NAME,
    Argument,
    Communication,
    Device,
    ExecutionTrace,
    Node,
    Opaque,
    Tensor,
)


@dataclass(frozen=True)
class _Version:
    is_flat: bool = False
    has_group_tuple: bool = True
    """A group is identified by its name and description; before, by a number."""
    has_kernel_fields: bool = True
    has_comm_fields: bool = True
    is_latest: bool = False
    """With strides and the range of values, indented more deeply, and sequence numbers that distinguish transfers."""

    @property
    def between_fields(self) -> str:
        return "," if self.has_kernel_fields else ", "

    @property
    def indent(self) -> str:
        return " " * (6 if self.is_latest else 4)


LATEST_SCHEMA = "1.1.1-chakra.0.0.4"
_VERSIONS = {
    "1.0.1": _Version(is_flat=True, has_group_tuple=False, has_kernel_fields=False, has_comm_fields=False),
    "1.0.2-chakra.0.0.4": _Version(has_group_tuple=False, has_kernel_fields=False, has_comm_fields=False),
    "1.0.3-chakra.0.0.4": _Version(has_kernel_fields=False, has_comm_fields=False),
    "1.0.4-chakra.0.0.4": _Version(has_comm_fields=False),
    "1.1.0-chakra.0.0.4": _Version(),
    LATEST_SCHEMA: _Version(is_latest=True),
}
SCHEMAS: tuple[str, ...] = tuple(_VERSIONS)


def write_execution_trace(
    trace: ExecutionTrace, path: str | PathLike[str], schema: str = LATEST_SCHEMA, *, is_killed: bool = False
) -> Path:
    """Write the trace as torch did when this was its version; compressed if the name ends in .gz."""
    path = Path(path)
    content = execution_trace_text(trace, schema, is_killed=is_killed).encode()
    # Without a time stamp, so that the same seed gives the same bytes.
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path


def execution_trace_text(trace: ExecutionTrace, schema: str = LATEST_SCHEMA, *, is_killed: bool = False) -> str:
    """The whole file; of a process that was killed, what it had written until then."""
    if schema not in _VERSIONS:
        raise UsageError(f"unknown schema {schema!r}", f"choose one of: {', '.join(SCHEMAS)}")
    version = _VERSIONS[schema]
    head = (
        f'{{\n  "schema": "{schema}", "pid": {trace.pid}, "time": "{trace.time}", "start_ts": {trace.start_ms},\n'
        '  "nodes": ['
    )
    write = _flat_node if version.is_flat else _nested_node
    texts = [write(node, version) for node in trace.nodes if not (version.is_flat and node.name == GROUPS_NAME)]
    if is_killed:
        # Operators that were under way then are missing, as is the process, which comes last.
        return f"{head}{','.join(texts[: len(texts) * 3 // 4])}"
    return f'{head}{",".join(texts)}\n  ],\n  "finish_ts": {trace.finish_ms}\n}}'


def _flat_node(node: Node, version: _Version) -> str:
    inputs, outputs = _Listing.of(_inputs(node, version)), _Listing.of(node.outputs)
    name = node.name.replace("execution_trace", "execution_graph")
    return (
        f'\n    {{\n      "name": {json.dumps(name)}, "id": {node.node_id}, "rf_id": {node.record_id}, '
        f'"parent": {node.parent_id}, "fw_parent": {node.fw_parent_id}, "seq_id": {node.sequence}, '
        f'"scope": {node.scope}, "tid": {node.thread}, "fw_tid": {node.fw_thread}, '
        f'"op_schema": {json.dumps(node.op_schema)},\n'
        f'      "inputs": {inputs.values}, "input_shapes": {inputs.shapes}, "input_types": {inputs.types},\n'
        f'      "outputs": {outputs.values}, "output_shapes": {outputs.shapes}, "output_types": {outputs.types}\n    }}'
    )


def _nested_node(node: Node, version: _Version) -> str:
    outer, inner = f"\n{version.indent}", f"\n{version.indent}  "
    attributes = version.between_fields.join(_attribute(*field) for field in _fields(node, version))
    if node.communication is not None and version.has_comm_fields:
        attributes += "".join(f", \n  {_attribute(*field)}" for field in _comm_fields(node.communication))
    return (
        f'{outer}{{{inner}"id": {node.node_id}, "name": {json.dumps(node.name)}, "ctrl_deps": {node.parent_id},'
        f'{inner}"inputs": {_Listing.of(_inputs(node, version)).text(version)},'
        f'{inner}"outputs": {_Listing.of(node.outputs).text(version)},'
        f'{inner}"attrs": [{attributes}]{outer}}}'
    )


_Field = tuple[str, str, "int | str"]


def _attribute(name: str, kind: str, value: int | str) -> str:
    return f'{{"name": "{name}", "type": "{kind}", "value": {json.dumps(value)}}}'


def _fields(node: Node, version: _Version) -> list[_Field]:
    fields: list[_Field] = [
        ("rf_id", "uint64", node.record_id),
        ("fw_parent", "uint64", node.fw_parent_id),
        ("seq_id", "int64", node.sequence),
        ("scope", "uint64", node.scope),
        ("tid", "uint64", node.thread),
        ("fw_tid", "uint64", node.fw_thread),
        ("op_schema", "string", node.op_schema),
    ]
    if version.has_kernel_fields:
        fields += [("kernel_backend", "string", ""), ("kernel_file", "string", "")]
    if version.is_latest:
        fields.append(("tensor_range", "string", ""))
    return fields


def _comm_fields(call: Communication) -> list[_Field]:
    n_elements = call.tensor.n_elements
    return [
        ("collective_name", "string", call.op),
        ("dtype", "string", call.dtype),
        ("in_msg_nelems", "uint64", n_elements),
        ("out_msg_nelems", "uint64", n_elements),
        ("in_split_size", "string", "[]"),
        ("out_split_size", "string", "[]"),
        ("global_rank_start", "uint64", call.first_rank),
        ("global_rank_stride", "uint64", call.stride),
        ("pg_name", "string", call.group_name),
        ("pg_desc", "string", call.group_desc),
        ("pg_size", "uint64", call.group_size),
    ]


def _inputs(node: Node, version: _Version) -> tuple[Argument, ...]:
    call = node.communication
    if call is None:
        return node.inputs
    group: Argument = (call.group_name, call.group_desc)
    if not version.has_group_tuple:
        group = _group_address(call) if version.is_flat else int(call.group_name)
    sequence: Argument = (call.sequence, call.is_p2p) if version.is_latest else call.sequence
    said: tuple[Argument, ...] = ([call.tensor], sequence, group, call.rank, call.op, [], [])
    return said if version.is_flat else (*said, call.first_rank, call.stride, call.group_size)


def _group_address(call: Communication) -> int:
    """The first version identified groups by their address in the process."""
    return 0x5500_0000_0000 + int.from_bytes(blake2b(call.group_name.encode(), digest_size=4).digest(), "big") * 16


class _Listing(NamedTuple):
    """Arguments as four parallel JSON lists."""

    values: str
    shapes: str
    types: str
    strides: str

    @classmethod
    def of(cls, arguments: Iterable[Argument]) -> _Listing:
        descriptions = [_describe(argument) for argument in arguments]
        values, shapes, strides = (f"[{','.join(each[column] for each in descriptions)}]" for column in (0, 1, 3))
        return cls(values, shapes, f"[{','.join(json.dumps(each.types) for each in descriptions)}]", strides)

    def text(self, version: _Version) -> str:
        strides = f', "strides": {self.strides}' if version.is_latest else ""
        return f'{{"values": {self.values}, "shapes": {self.shapes}, "types": {self.types}{strides}}}'


def _describe(argument: Argument) -> _Listing:
    """One argument: the JSON of its value, shape and strides; its type as plain text."""
    if isinstance(argument, Tensor):
        texts = [_compact(each) for each in (argument.value, argument.shape, argument.strides)]
        return _Listing(texts[0], texts[1], f"Tensor({argument.dtype})", texts[2])
    if isinstance(argument, list | tuple):
        inner = [_describe(each) for each in argument]
        values, shapes, strides = (f"[{','.join(each[column] for each in inner)}]" for column in (0, 1, 3))
        kind = "GenericList" if isinstance(argument, list) else "Tuple"
        return _Listing(values, shapes, f"{kind}[{','.join(each.types for each in inner)}]", strides)
    value, kind = _scalar(argument)
    return _Listing(value, "[]", kind, "[]")


def _scalar(argument: Device | Opaque | str | float | None) -> tuple[str, str]:
    if argument is None:
        return '"<None>"', "None"
    if isinstance(argument, Opaque):
        return '"<Object>"', "Object"
    if isinstance(argument, float):
        return f"{argument:f}", "Double"
    kinds = ((Device, "Device"), (str, "String"), (bool, "Bool"), (int, "Int"))
    return json.dumps(argument), next(name for kind, name in kinds if isinstance(argument, kind))


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
