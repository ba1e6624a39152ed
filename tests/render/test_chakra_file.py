from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from rankscope.errors import OutputError
from rankscope.model.chakra import COMP, Attribute, AttributeColumn, ChakraFile, ChakraNode
from rankscope.model.tables import Text
from rankscope.render import chakra_file
from rankscope.render.chakra_file import write_graph
from render import chakra_proto
from render.chakra_building import files, graph_of, quickly, small_nodes


def expected_messages(file: ChakraFile) -> tuple[Any, list[Any]]:
    metadata = chakra_proto.GlobalMetadata(version=file.version, attr=proto_attributes(file.attributes))
    return metadata, [expected_node(node) for node in file.nodes]


def expected_node(node: ChakraNode) -> Any:
    message = chakra_proto.Node(id=node.id, name=node.name, type=node.type)
    message.ctrl_deps.extend(node.ctrl_deps)
    message.data_deps.extend(node.data_deps)
    message.start_time_micros, message.duration_micros = node.start_us, node.duration_us
    for side, io in ((message.inputs, node.inputs), (message.outputs, node.outputs)):
        for name in ("values", "shapes", "types"):
            if getattr(io, name):
                setattr(side, name, getattr(io, name))
    message.attr.extend(proto_attributes(node.attributes))
    return message


def proto_attributes(attributes: Mapping[str, Attribute]) -> list[Any]:
    return [chakra_proto.attribute(name, found.kind, found.value) for name, found in attributes.items()]


def as_bytes(messages: tuple[Any, list[Any]]) -> list[bytes]:
    metadata, nodes = messages
    return [message.SerializeToString(deterministic=True) for message in (metadata, *nodes)]


@quickly
@given(file=files())
def test_protobuf_reads_what_was_written(file: ChakraFile, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("written") / "job.0.et"
    assert write_graph(graph_of(file.nodes, file.attributes), path) == len(file.nodes)
    assert as_bytes(chakra_proto.parse(path)) == as_bytes(expected_messages(file))


@quickly
@given(file=files())
def test_not_a_byte_differs_from_what_protobuf_writes(
    file: ChakraFile, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("written")
    write_graph(graph_of(file.nodes, file.attributes), folder / "ours.0.et")
    metadata, nodes = expected_messages(file)
    theirs = chakra_proto.serialize(folder / "theirs.0.et", metadata, *nodes)
    assert (folder / "ours.0.et").read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize(("constant", "value"), [("_ROWS_AT_ONCE", 3), ("_MAX_KEPT_TEXTS", 2)])
def test_neither_blocks_nor_many_texts_change_the_file(
    constant: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [
        ChakraNode(row, f"op {row}", COMP, list(range(row)), [row - 1] if row else [], 1000 * row, row)
        for row in range(20)
    ]
    for node in nodes[::3]:
        node.attributes = {"note": Attribute("string", f"of {node.id}"), "size": Attribute("int64", 200 * node.id)}
    write_graph(graph_of(nodes), tmp_path / "whole.0.et")
    monkeypatch.setattr(chakra_file, constant, value)
    write_graph(graph_of(nodes), tmp_path / "other.0.et")
    assert (tmp_path / "other.0.et").read_bytes() == (tmp_path / "whole.0.et").read_bytes()
    assert as_bytes(chakra_proto.parse(tmp_path / "other.0.et"))[1:] == [
        expected_node(node).SerializeToString(deterministic=True) for node in nodes
    ]


def test_times_are_rounded_to_the_nearest_microsecond(tmp_path: Path) -> None:
    graph = graph_of([ChakraNode(row, type=COMP) for row in range(4)])
    graph.start_ns[:] = 1_499, 1_500, -1, 1_700_000_000_000_000_499
    graph.duration_ns[:] = 0, 499, 500, 1_999
    write_graph(graph, tmp_path / "job.0.et")
    _, nodes = chakra_proto.parse(tmp_path / "job.0.et")
    assert [node.start_time_micros for node in nodes] == [1, 2, 0, 1_700_000_000_000_000]
    assert [node.duration_micros for node in nodes] == [0, 0, 1, 2]


def test_zeros_of_attributes_are_written(tmp_path: Path) -> None:
    """comm_type 0 is ALL_REDUCE: a reader that asks whether the attribute is there must get it."""
    zeros = {"comm_type": Attribute("int64", 0), "is_cpu_op": Attribute("bool", False), "text": Attribute("string", "")}
    write_graph(graph_of([ChakraNode(0, type=COMP, attributes=zeros)]), tmp_path / "job.0.et")
    _, (node,) = chakra_proto.parse(tmp_path / "job.0.et")
    assert [attribute.WhichOneof("value") for attribute in node.attr] == ["int64_val", "bool_val", "string_val"]


def test_a_column_of_narrow_numbers_keeps_its_sign(tmp_path: Path) -> None:
    graph = graph_of([ChakraNode(row, type=COMP) for row in range(3)])
    graph.attributes["seq_id"] = AttributeColumn("int64", np.array([-1, 5, -128], np.int8))
    graph.attributes["small"] = AttributeColumn("uint64", np.array([0, 200, 255], np.uint8))
    write_graph(graph, tmp_path / "job.0.et")
    _, nodes = chakra_proto.parse(tmp_path / "job.0.et")
    assert [node.attr[0].int64_val for node in nodes] == [-1, 5, -128]
    assert [node.attr[1].uint64_val for node in nodes] == [0, 200, 255]


def test_text_that_no_utf8_can_hold_is_escaped(tmp_path: Path) -> None:
    graph = graph_of([ChakraNode(0, "bad \ud800 name", COMP), ChakraNode(1, "näme", COMP)])
    graph.attributes["note"] = AttributeColumn("string", Text.encode(["\udfff", "ok"]))
    write_graph(graph, tmp_path / "job.0.et")
    _, nodes = chakra_proto.parse(tmp_path / "job.0.et")
    assert [(node.name, node.attr[0].string_val) for node in nodes] == [("bad \\ud800 name", "\\udfff"), ("näme", "ok")]


def test_a_name_that_ends_with_gz_is_packed(tmp_path: Path) -> None:
    graph = graph_of(small_nodes(), {"rank": Attribute("int64", 0)})
    write_graph(graph, tmp_path / "job.0.et")
    write_graph(graph, tmp_path / "job.0.et.gz")
    assert (tmp_path / "job.0.et.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert as_bytes(chakra_proto.parse(tmp_path / "job.0.et.gz")) == as_bytes(chakra_proto.parse(tmp_path / "job.0.et"))


def test_the_same_graph_gives_the_same_packed_file(tmp_path: Path) -> None:
    for name in ("a.0.et.gz", "b.0.et.gz"):
        write_graph(graph_of(small_nodes()), tmp_path / name)
    assert (tmp_path / "a.0.et.gz").read_bytes() == (tmp_path / "b.0.et.gz").read_bytes()


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "job.0.et"
    path.write_text("old")
    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OutputError, match="No space left on device"):
        write_graph(graph_of(small_nodes()), path)
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("job.0.et", "old")]


def test_a_graph_whose_columns_differ_in_length_is_refused(tmp_path: Path) -> None:
    graph = graph_of(small_nodes())
    graph.attributes["short"] = AttributeColumn("int64", np.arange(2))
    with pytest.raises(ValueError, match="shorter"):
        write_graph(graph, tmp_path / "job.0.et")
    assert list(tmp_path.iterdir()) == []
