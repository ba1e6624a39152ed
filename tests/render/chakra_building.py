"""Chakra graphs for tests: small ones by hand, random ones with attributes of every kind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from rankscope.model.chakra import (
    ATTRIBUTE_FIELDS,
    COMP,
    IO,
    SCHEMA_VERSION,
    Attribute,
    AttributeColumn,
    ChakraFile,
    ChakraGraph,
    ChakraNode,
    Ragged,
)
from rankscope.model.tables import Text

quickly = settings(deadline=None, max_examples=60)


def graph_of(nodes: Sequence[ChakraNode], metadata: Mapping[str, Attribute] | None = None) -> ChakraGraph:
    """The columns of nodes whose ids are their places; an attribute has one kind in all of them."""
    kinds = {name: attribute.kind for node in nodes for name, attribute in node.attributes.items()}
    return ChakraGraph(
        rank=0,
        name=Text.encode(node.name for node in nodes),
        type=np.array([node.type for node in nodes], np.int8),
        start_ns=np.array([node.start_us * 1000 for node in nodes], np.int64),
        duration_ns=np.array([node.duration_us * 1000 for node in nodes], np.int64),
        ctrl_deps=_ragged([node.ctrl_deps for node in nodes]),
        data_deps=_ragged([node.data_deps for node in nodes]),
        inputs=_texts([node.inputs for node in nodes]),
        outputs=_texts([node.outputs for node in nodes]),
        attributes={name: _column(name, kind, nodes) for name, kind in kinds.items()},
        metadata=dict(metadata or {}),
    )


def _ragged(lists: Sequence[Sequence[int]]) -> Ragged:
    starts = np.concatenate(([0], np.cumsum([len(items) for items in lists]))).astype(np.int64)
    return Ragged(starts, np.array([item for items in lists for item in items], np.int64))


def _texts(sides: Sequence[IO]) -> tuple[Text, Text, Text]:
    values, shapes, types = (
        Text.encode(getattr(side, name) for side in sides) for name in ("values", "shapes", "types")
    )
    return values, shapes, types


_DTYPES = {"double": np.float64, "float": np.float32, "bool": np.bool_, "uint64": np.uint64, "fixed64": np.uint64}


def _column(name: str, kind: str, nodes: Sequence[ChakraNode]) -> AttributeColumn:
    found = [node.attributes.get(name) for node in nodes]
    is_set = np.array([attribute is not None for attribute in found], bool)
    if kind == "string":
        text = Text.encode(str(attribute.value) if attribute else "" for attribute in found)
        return AttributeColumn(kind, text, is_set)
    if kind == "bytes" or kind.endswith("_list"):
        values = np.empty(len(nodes), object)
        for row, attribute in enumerate(found):
            values[row] = attribute.value if attribute else None
        return AttributeColumn(kind, values, is_set)
    numbers: list[Any] = [attribute.value if attribute else 0 for attribute in found]
    return AttributeColumn(kind, np.array(numbers, _DTYPES.get(kind, np.int64)), None if is_set.all() else is_set)


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(("aten::mm", "x" * 200))
_INTEGERS = {
    **dict.fromkeys(("int32", "sint32", "sfixed32"), (-(1 << 31), (1 << 31) - 1)),
    **dict.fromkeys(("int64", "sint64", "sfixed64"), (-(1 << 63), (1 << 63) - 1)),
    **dict.fromkeys(("uint32", "fixed32"), (0, (1 << 32) - 1)),
    **dict.fromkeys(("uint64", "fixed64"), (0, (1 << 64) - 1)),
}
_SCALAR_VALUES: dict[str, st.SearchStrategy[Any]] = {
    **{
        # Small numbers and those around a change of length are as likely as all others together.
        kind: st.integers(low, high) | st.integers(max(low, -130), 130) | st.sampled_from((low, high))
        for kind, (low, high) in _INTEGERS.items()
    },
    "double": st.floats(allow_nan=False) | st.just(math.nan),  # of the many NaN, text formats know one
    "float": st.floats(width=32, allow_nan=False) | st.just(math.nan),
    "bool": st.booleans(),
    "string": _TEXTS,
    "bytes": st.binary(max_size=12),
}


@st.composite
def values_of(draw: st.DrawFn, kind: str) -> Any:
    scalar = _SCALAR_VALUES[kind.removesuffix("_list")]
    return draw(st.lists(scalar, max_size=4) if kind.endswith("_list") else scalar)


@st.composite
def attributes(draw: st.DrawFn, kinds: Mapping[str, str]) -> dict[str, Attribute]:
    chosen = draw(st.lists(st.sampled_from(sorted(kinds)), unique=True)) if kinds else []
    # The columns of a graph have one order for all nodes.
    return {name: Attribute(kinds[name], draw(values_of(kinds[name]))) for name in kinds if name in chosen}


@st.composite
def files(draw: st.DrawFn) -> ChakraFile:
    """A random graph without cycles, as it should be found again."""
    kinds = draw(st.dictionaries(_TEXTS, st.sampled_from(list(ATTRIBUTE_FIELDS)), max_size=6))
    sides = st.builds(IO, _TEXTS, _TEXTS, _TEXTS)
    times = st.integers(0, 1 << 53) | st.integers(0, 200)
    nodes = [
        ChakraNode(
            id=row,
            name=draw(_TEXTS),
            type=draw(st.integers(0, 7)),
            ctrl_deps=draw(st.lists(st.integers(0, row - 1), max_size=3)) if row else [],
            data_deps=draw(st.lists(st.integers(0, row - 1), max_size=3)) if row else [],
            start_us=draw(times),
            duration_us=draw(times),
            inputs=draw(sides),
            outputs=draw(sides),
            attributes=draw(attributes(kinds)),
        )
        for row in range(draw(st.integers(0, 12)))
    ]
    first_seen = dict.fromkeys(name for node in nodes for name in node.attributes)
    order = {name: place for place, name in enumerate(first_seen)}
    for node in nodes:
        node.attributes = dict(sorted(node.attributes.items(), key=lambda item: order[item[0]]))
    metadata = draw(
        attributes({f"of_{kind}": kind for kind in draw(st.lists(st.sampled_from(list(ATTRIBUTE_FIELDS))))})
    )
    return ChakraFile("", SCHEMA_VERSION, metadata, nodes)


def comparable(value: Any) -> Any:
    """NaN, which differs from itself, as a text."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value
    return [comparable(item) for item in value] if isinstance(value, list) else value


def small_nodes() -> list[ChakraNode]:
    """A host operator, its kernel, a collective and a send."""
    host, device = Attribute("bool", True), Attribute("bool", False)
    return [
        ChakraNode(
            0, "aten::mm", COMP, [], [], 1000, 5, IO("[1]", "[[2, 2]]", "['Tensor(float)']"), IO(), {"is_cpu_op": host}
        ),
        ChakraNode(
            1, "gemm", COMP, [0], [], 1003, 20, attributes={"is_cpu_op": device, "stream": Attribute("int64", 7)}
        ),
        ChakraNode(2, "all_reduce", 7, [0], [1], 1023, 10, attributes=_comm(4096, comm_type=0, pg_name="1")),
        ChakraNode(3, "send", 5, [], [2], 1040, 2, attributes=_comm(64, comm_dst=1, comm_tag=3)),
    ]


def _comm(size: int, pg_name: str = "", **numbers: int) -> dict[str, Attribute]:
    named = {"pg_name": Attribute("string", pg_name)} if pg_name else {}
    integers = {name: Attribute("int64", number) for name, number in {"comm_size": size, **numbers}.items()}
    return {"is_cpu_op": Attribute("bool", False), **integers, **named}
