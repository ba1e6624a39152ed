from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from google.protobuf import json_format
from hypothesis import given

from rankscope.model.chakra import COMP, Attribute, ChakraFile, ChakraNode, ChakraStream
from rankscope.render.chakra_file import write_graph
from rankscope.render.chakra_graphs import dot_lines, graphml_lines
from rankscope.render.chakra_views import (
    MAX_TRANSFER_ROWS,
    Excerpt,
    json_lines,
    node_lines,
    summarize,
    summary_lines,
    summary_record,
)
from render import chakra_proto
from render.chakra_building import files, graph_of, quickly, small_nodes

GRAPHML = "{http://graphml.graphdrawing.org/xmlns}"


def stream_of(nodes: Sequence[ChakraNode], path: str = "job.0.et") -> ChakraStream:
    return ChakraStream(path, "0.0.4", {"rank": Attribute("int64", 0)}, iter(nodes))


def excerpt_of(nodes: Sequence[ChakraNode], limit: int = 0) -> Excerpt:
    return Excerpt(stream_of(nodes), limit)


# JSON lines


@quickly
@given(file=files())
def test_protobuf_parses_every_line(file: ChakraFile, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("written") / "job.0.et"
    write_graph(graph_of(file.nodes, file.attributes), path)
    lines = list(json_lines(Excerpt(ChakraStream("", file.version, file.attributes, iter(file.nodes)))))
    assert all(line.isascii() and line.isprintable() for line in lines)
    metadata, nodes = chakra_proto.parse(path)
    for node in nodes:  # JSON gives what is empty, too
        node.inputs.SetInParent()
        node.outputs.SetInParent()
    found = [json_format.Parse(lines[0], chakra_proto.GlobalMetadata())]
    found += [json_format.Parse(line, chakra_proto.Node()) for line in lines[1:]]
    expected = [message.SerializeToString(deterministic=True) for message in (metadata, *nodes)]
    assert [message.SerializeToString(deterministic=True) for message in found] == expected


def test_a_line_of_a_node() -> None:
    _, _, _, line, _ = json_lines(excerpt_of(small_nodes()))
    assert json.loads(line) == {
        "id": 2,
        "name": "all_reduce",
        "type": "COMM_COLL_NODE",
        "ctrl_deps": [0],
        "data_deps": [1],
        "start_time_micros": 1023,
        "duration_micros": 10,
        "inputs": {"values": "", "shapes": "", "types": ""},
        "outputs": {"values": "", "shapes": "", "types": ""},
        "attr": [
            {"name": "is_cpu_op", "bool_val": False},
            {"name": "comm_size", "int64_val": 4096},
            {"name": "comm_type", "int64_val": 0},
            {"name": "pg_name", "string_val": "1"},
        ],
    }


def test_types_of_newer_schemas_stay_numbers_and_attributes_may_be_empty() -> None:
    node = ChakraNode(1, type=9, attributes={"x": Attribute("", "")})
    record = json.loads(list(json_lines(excerpt_of([node])))[1])
    assert (record["type"], record["attr"]) == (9, [{"name": "x"}])


@pytest.mark.parametrize(("limit", "n_lines", "is_cut"), [(0, 5, False), (2, 3, True), (4, 5, False), (9, 5, False)])
def test_an_excerpt_knows_whether_there_is_more(limit: int, n_lines: int, is_cut: bool) -> None:
    excerpt = excerpt_of(small_nodes(), limit)
    assert len(list(json_lines(excerpt))) == n_lines
    assert (excerpt.n_passed, excerpt.is_cut) == (n_lines - 1, is_cut)


# The summary


def test_the_summary_counts() -> None:
    nodes = small_nodes()
    nodes[3].ctrl_deps = [77, 0]
    nodes.append(ChakraNode(4, "no times", COMP))
    nodes.append(ChakraNode(5, "groups", 1))
    record = summary_record(summarize(stream_of(nodes), 2))
    transfers = [(row.op, row.group, row.n_bytes, row.n_nodes, row.duration_us) for row in record.pop("transfers")]
    assert transfers == [("all_reduce", "1", 4096, 1, 10), ("send", "", 64, 1, 2)]
    assert [node["id"] for node in record.pop("first")] == [0, 1]
    assert record == {
        "path": "job.0.et",
        "version": "0.0.4",
        "attributes": [{"name": "rank", "int64_val": 0}],
        "n_nodes": 6,
        "types": {"METADATA_NODE": 1, "COMP_NODE": 3, "COMM_SEND_NODE": 1, "COMM_COLL_NODE": 1},
        "n_host_nodes": 1,
        "n_device_nodes": 3,
        "n_ctrl_deps": 4,
        "n_data_deps": 2,
        "n_roots": 3,
        "n_leaves": 3,
        "n_missing": 1,
        "n_without_start": 1,
        "start_us": 1000,
        "end_us": 1042,
    }


def test_the_summary_for_people() -> None:
    lines = list(summary_lines(summarize(stream_of(small_nodes()), 2), None))
    assert lines == [
        "job.0.et: Chakra trace, schema 0.0.4",
        "  metadata      rank=0",
        "  nodes         4: COMP 2, COMM_SEND 1, COMM_COLL 1",
        "  where         1 on the host, 3 on devices",
        "  dependencies  2 control, 2 data",
        "  ends          1 root, 1 leaf",
        "  span          42 us",
        "",
        "op          group  bytes  nodes  duration (us)",
        "----------  -----  -----  -----  -------------",
        "all_reduce  1       4096      1             10",
        "send        world     64      1              2",
        "",
        "id  type  start (us)  duration (us)  depends on  name",
        "--  ----  ----------  -------------  ----------  --------",
        " 0  COMP           0              5              aten::mm",
        " 1  COMP           3             20  0           gemm",
        "(2 nodes, 2 more with --limit N; starts are counted from the first)",
    ]


def test_an_empty_file() -> None:
    lines = list(summary_lines(summarize(stream_of([]), 10), None))
    assert "  nodes         0" in lines
    assert lines[-1] == "  span          unknown: no node has a start time"


def test_transfers_of_many_sizes_are_cut() -> None:
    nodes = [
        ChakraNode(row, type=7, attributes={"comm_type": Attribute("int64", 99), "comm_size": Attribute("int64", row)})
        for row in range(MAX_TRANSFER_ROWS + 3)
    ]
    lines = list(summary_lines(summarize(stream_of(nodes), 0), None))
    assert lines[-1] == "(3 more kinds with --json)"
    assert sum(line.startswith("unknown type 99") for line in lines) == MAX_TRANSFER_ROWS


def test_a_node_in_full() -> None:
    node = small_nodes()[0]
    node.data_deps = [3, 4, 5, 6, 7, 8]
    node.attributes |= {"raw": Attribute("bytes", b"\x01\xff"), "sizes": Attribute("int64_list", [1, 2])}
    lines = list(node_lines(node))
    assert lines[0] == "node 0: aten::mm"
    found = dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in lines[1:] if len(line.split()) > 1)
    assert found["data_deps"] == "3 4 5 6 7 8"
    assert found["inputs.shapes"] == "[[2, 2]]"
    assert (found["raw (bytes)"], found["sizes (int64_list)"]) == ("01 ff", "[1, 2]")


def test_nothing_in_a_file_steers_the_terminal() -> None:
    evil = "\x1b[2J\u202e"
    node = ChakraNode(0, evil, COMP, attributes={evil: Attribute("string", evil)})
    summary = summarize(ChakraStream(evil, evil, {evil: Attribute("string", evil)}, iter([node])), 1)
    for lines in (summary_lines(summary, 80), node_lines(node), dot_lines(excerpt_of([node]))):
        assert all(line.isprintable() for line in lines)


# Graphs


def test_dot_tells_control_from_data() -> None:
    lines = list(dot_lines(excerpt_of(small_nodes())))
    assert lines[0] == 'digraph "job.0.et" {'
    assert lines[-1] == "}"
    assert [line.strip() for line in lines if "->" in line] == [
        "n0 -> n1 [style=dashed];",
        "n0 -> n2 [style=dashed];",
        "n1 -> n2;",
        "n2 -> n3;",
    ]
    assert '  n2 [label="2 all_reduce", fillcolor=lightskyblue, tooltip="COMM_COLL_NODE, 10 us"];' in lines


def test_dot_escapes_names_and_cuts_long_ones() -> None:
    nodes = [ChakraNode(0, 'a "quoted" \\ name\n', COMP), ChakraNode(1, "x" * 500, COMP)]
    lines = list(dot_lines(excerpt_of(nodes)))
    assert '[label="0 a \\"quoted\\" \\\\ name\\\\n",' in lines[2]
    assert f'[label="1 {"x" * 55}...",' in lines[3]


def test_graphml_is_xml_with_all_of_it() -> None:
    nodes = [ChakraNode(0, "<&>\x00'\"", COMP, start_us=5, duration_us=7), ChakraNode(1, "b", 12, [0], [0])]
    root = ElementTree.fromstring("\n".join(graphml_lines(excerpt_of(nodes))))
    found = {node.get("id"): {data.get("key"): data.text for data in node} for node in root.iter(f"{GRAPHML}node")}
    assert found == {
        "n0": {"name": "<&>\\x00'\"", "type": "COMP_NODE", "start_us": "5", "duration_us": "7"},
        "n1": {"name": "b", "type": "TYPE_12", "start_us": "0", "duration_us": "0"},
    }
    edges = [(edge.get("source"), edge.get("target"), edge[0].text) for edge in root.iter(f"{GRAPHML}edge")]
    assert edges == [("n0", "n1", "ctrl"), ("n0", "n1", "data")]


def test_ids_that_are_missing_or_repeated() -> None:
    nodes = [ChakraNode(0, "a", COMP, [9]), ChakraNode(0, "again", COMP, [], [0])]
    dot = list(dot_lines(excerpt_of(nodes)))
    assert '  n9 [label="9 is missing", style=dashed, color=red];' in dot
    root = ElementTree.fromstring("\n".join(graphml_lines(excerpt_of(nodes))))
    assert [node.get("id") for node in root.iter(f"{GRAPHML}node")] == ["n0", "n9"]
    assert len(list(root.iter(f"{GRAPHML}edge"))) == 2


def test_a_limit_leaves_no_edge_to_nowhere() -> None:
    nodes = small_nodes()
    nodes[0].ctrl_deps = [3]
    dot = list(dot_lines(excerpt_of(nodes, 2)))
    assert [line.strip() for line in dot if "->" in line] == ["n0 -> n1 [style=dashed];"]
    assert "  // only the first 2 nodes; the file has more" in dot
    assert not any("missing" in line for line in dot)
    graphml = list(graphml_lines(excerpt_of(nodes, 2)))
    assert "    <!-- only the first 2 nodes; the file has more -->" in graphml


def test_a_path_is_only_a_name(tmp_path: Path) -> None:
    stream = stream_of([], f'{tmp_path}/"odd" & <name>.et')
    root = ElementTree.fromstring("\n".join(graphml_lines(Excerpt(stream))))
    assert root[-1].get("id") == stream.path
