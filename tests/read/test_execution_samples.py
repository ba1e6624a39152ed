"""Real execution traces of others, where they lie beside the repository: read whole, linked as far as they can be."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rankscope.model.tables import Trace
from rankscope.pipeline import load

SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "samples" / "execution_trace"
ADD = "simple_add/benchmark_simple_add"
PAIRS = {
    "linear": ("linear_et.json.gz", "linear_kineto.json.gz"),
    "resnet": ("resnet_et.json.gz", "resnet_kineto.json.gz"),
    "simple_add": (f"{ADD}_et.json.gz", f"{ADD}_trace.json.gz"),
}
SCHEMAS = {"linear": "1.0.1", "resnet": "1.1.0-chakra.0.0.4", "simple_add": "1.0.1"}
ROOTS = ("[pytorch|profiler|", "## process_group:init")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SAMPLES.is_dir(), reason="the samples are not beside the repository"),
]
each_pair = pytest.mark.parametrize("name", PAIRS)
each_aligned_pair = pytest.mark.parametrize("name", ["linear", "simple_add"])


@cache
def trace_of(name: str) -> Trace:
    trace = load([SAMPLES / file for file in PAIRS[name]])
    for table in ("et_pairs", "et_links", "et_edges", "et_collectives"):
        trace.table(table)
    return trace


@cache
def plain(name: str) -> dict[str, Any]:
    """As the standard library reads it."""
    with gzip.open(SAMPLES / PAIRS[name][0]) as file:
        document: dict[str, Any] = json.load(file)
    return document


def query(name: str, sql: str) -> list[tuple[Any, ...]]:
    return trace_of(name).sql(sql).rows()


def attribute(node: dict[str, Any], name: str) -> Any:
    listed = {attribute["name"]: attribute["value"] for attribute in node.get("attrs", ())}
    return listed.get(name, node.get(name))


def values(node: dict[str, Any], side: str) -> list[Any]:
    given = node[side]
    found: list[Any] = given["values"] if isinstance(given, dict) else given
    return found


def tensors_in(value: Any) -> Iterator[list[Any]]:
    if not isinstance(value, list):
        return
    if len(value) == 6 and isinstance(value[5], str) and all(isinstance(part, int) for part in value[:5]):
        yield value
        return
    for element in value:
        yield from tensors_in(element)


@each_pair
def test_nodes_are_those_of_the_file(name: str) -> None:
    nodes = plain(name)["nodes"]
    [described] = trace_of(name).table("et_traces").rows()
    assert (described["schema"], described["pid"]) == (SCHEMAS[name], plain(name)["pid"])
    assert (described["n_nodes"], described["is_cut"]) == (len(nodes), False)
    assert (described["start_ms"], described["finish_ms"]) == (plain(name)["start_ts"], plain(name)["finish_ts"])
    told = [(node["id"], node["name"], attribute(node, "rf_id")) for node in nodes]
    found = query(name, "SELECT node_id, name, coalesce(record_id, 0) FROM et_nodes ORDER BY position")
    assert found == told


@each_pair
def test_callers_and_threads_are_those_of_the_file(name: str) -> None:
    told = {
        node["id"]: (node.get("ctrl_deps", node.get("parent")), attribute(node, "tid"), attribute(node, "seq_id"))
        for node in plain(name)["nodes"]
        if not node["name"].startswith(ROOTS)
    }
    sql = "SELECT node_id, parent_id, thread, coalesce(seq_id, -1) FROM et_nodes WHERE kind = 'op'"
    assert {number: tuple(rest) for number, *rest in query(name, sql)} == told


@each_pair
def test_tensors_are_those_of_the_file(name: str) -> None:
    told = Counter(
        (node["id"], side == "outputs", *tensor)
        for node in plain(name)["nodes"]
        for side in ("inputs", "outputs")
        for tensor in tensors_in(values(node, side))
        if tensor[1] or tensor[3]  # one without memory is none
    )
    columns = "tensor_id, storage_id, storage_offset, n_elements, n_item_bytes, device"
    assert Counter(query(name, f"SELECT node_id, is_output, {columns} FROM et_tensors")) == told
    assert query(name, "SELECT count(*) FROM et_tensors WHERE dtype IS NULL") == [(0,)]


def test_counts() -> None:
    """Once by hand: what plain json counts could be wrong in the same way."""
    counted = (
        "SELECT (SELECT count(*) FROM et_nodes), (SELECT count(*) FROM et_tensors), (SELECT count(*) FROM et_groups)"
    )
    assert {name: query(name, counted)[0] for name in PAIRS} == {
        "linear": (931, 1745, 0),
        "resnet": (14_392, 33_198, 1),
        "simple_add": (38, 52, 0),
    }


def test_the_group_and_the_collectives_of_resnet_are_known_without_a_profiler() -> None:
    [group] = trace_of("resnet").table("et_groups").rows()
    assert (group["name"], group["desc"], group["backend"], group["size"]) == ("0", "default_pg", "cuda:nccl", 1)
    assert query("resnet", "SELECT op, count(*) FROM et_collectives GROUP BY op ORDER BY op") == [
        ("all_reduce", 15),
        ("broadcast", 6),
    ]
    comms = [node for node in plain("resnet")["nodes"] if node["name"] == "record_param_comms"]
    n_given = sum(int(attribute(node, "in_msg_nelems") or 0) for node in comms)
    assert n_given > 0
    assert query("resnet", "SELECT sum(n_in) FROM et_collectives") == [(n_given,)]


@pytest.mark.parametrize(
    ("name", "n_linkable", "n_linked", "method", "why"),
    [
        ("linear", 928, 928, "alignment", "no-ids"),
        ("simple_add", 36, 36, "alignment", "no-ids"),
        ("resnet", 14_388, 0, "none", "different-run"),
    ],
)
def test_how_much_is_linked(name: str, n_linkable: int, n_linked: int, method: str, why: str) -> None:
    [pair] = trace_of(name).table("et_pairs").rows()
    assert (pair["n_linkable"], pair["n_linked"], pair["method"], pair["why"]) == (n_linkable, n_linked, method, why)
    assert query(name, "SELECT count(*) FROM et_links WHERE how <> 'none'") == [(n_linked,)]


LINKED = """(
    SELECT n.node_id, n.name, n.parent_id, n.thread, n.seq_id, l.tid, l.start_ns, l.start_ns + l.duration_ns AS end_ns,
           coalesce(o.name, a.name) AS event_name, coalesce(o.start_ns, a.start_ns) AS event_start_ns,
           o.sequence_number, n.input_shapes, o.input_dims
    FROM et_links AS l JOIN et_nodes AS n USING (file_id, node_id)
    LEFT JOIN ops AS o ON o.file_id = l.profile_id AND o.op_id = l.op_id
    LEFT JOIN annotations AS a ON a.file_id = l.profile_id AND a.annotation_id = l.annotation_id
    WHERE l.how <> 'none')"""


@each_aligned_pair
def test_names_and_times_are_those_of_the_profiler(name: str) -> None:
    wrong = f"SELECT name, event_name FROM {LINKED} WHERE name <> event_name OR start_ns <> event_start_ns"
    assert query(name, wrong) == []
    outside = f"""
        SELECT count(*) FROM {LINKED} AS linked, profiles AS p
        WHERE linked.start_ns < p.start_ns OR linked.end_ns > p.end_ns"""
    assert query(name, outside) == [(0,)]


@each_aligned_pair
def test_no_event_is_two_nodes(name: str) -> None:
    twice = """
        SELECT op_id, annotation_id FROM et_links WHERE how <> 'none' GROUP BY ALL HAVING count(*) > 1"""
    assert query(name, twice) == []


@each_aligned_pair
def test_the_alignment_keeps_order_calls_and_sequence_numbers(name: str) -> None:
    """What alignment does not look at, or only to break a tie, confirms it."""
    disordered = f"""
        SELECT count(*) FROM (
            SELECT start_ns, lag(start_ns) OVER (PARTITION BY thread ORDER BY node_id) AS before_ns FROM {LINKED})
        WHERE start_ns < before_ns"""
    assert query(name, disordered) == [(0,)]
    outside_caller = f"""
        SELECT count(*) FROM {LINKED} AS called JOIN {LINKED} AS caller ON caller.node_id = called.parent_id
        WHERE called.tid <> caller.tid OR called.start_ns < caller.start_ns OR called.end_ns > caller.end_ns"""
    assert query(name, outside_caller) == [(0,)]
    contradicted = f"SELECT count(*) FROM {LINKED} WHERE sequence_number >= 0 AND seq_id <> sequence_number"
    assert query(name, contradicted) == [(0,)]
    assert query(name, f"SELECT count(DISTINCT tid) = count(DISTINCT thread) FROM {LINKED}") == [(True,)]


@each_pair
def test_edges_lead_from_earlier_to_later(name: str) -> None:
    backwards = """
        SELECT count(*) FROM et_edges AS e
        JOIN et_links AS f ON e.source = 'node' AND f.file_id = e.from_file_id AND f.node_id = e.source_id
        JOIN et_links AS t ON e.target = 'node' AND t.file_id = e.file_id AND t.node_id = e.target_id
        WHERE t.start_ns < f.start_ns"""
    assert query(name, backwards) == [(0,)]
    assert query(name, "SELECT count(*) FROM et_edges WHERE kind = 'call'")[0][0] > 0


def test_kernels_hang_on_nodes() -> None:
    """simple_add: what was launched in the window belongs to operators, and these to nodes."""
    tied = """
        SELECT n.name, count(*) FROM kernels AS k JOIN et_links AS l ON l.profile_id = k.file_id AND l.op_id = k.op_id
        JOIN et_nodes AS n ON n.file_id = l.file_id AND n.node_id = l.node_id GROUP BY n.name ORDER BY n.name"""
    assert query("simple_add", tied) == [("aten::add", 2), ("aten::uniform_", 2)]
    launches = "SELECT count(*) FROM et_edges WHERE kind = 'launch' AND target = 'kernel'"
    assert query("simple_add", launches) == [(4,)]
