"""Execution traces of every layout, whole and broken: the same nodes, tensors and groups."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rankscope.model.tables import Trace
from rankscope.pipeline import load
from rankscope.read import event_stream
from rankscope.read.execution_stage import NodeStage
from rankscope.simulate.execution import SCHEMAS, execution_trace_text, observe
from rankscope.simulate.profiler import ProfileSpec, simulate_profile

NEWEST = SCHEMAS[-1]
Row = dict[str, Any]


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """One small trace in every layout."""
    trace = observe(simulate_profile(ProfileSpec(data_parallel=2, n_steps=1, n_layers=1, n_microbatches=1)), 1)
    return {schema: execution_trace_text(trace, schema) for schema in SCHEMAS}


@pytest.fixture
def refuse_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeStage, "_add_as_a_whole", lambda stage, part, table: False)


def read(folder: Path, text: str, name: str = "torch_et_1.json") -> Trace:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return load(path)


def rows(trace: Trace, table: str) -> list[Row]:
    return list(trace.table(table).rows())


def nodes_by_id(trace: Trace) -> dict[int, Row]:
    return {row["node_id"]: row for row in rows(trace, "et_nodes")}


def node(number: int, **fields: Any) -> Row:
    """A node in the nested layout."""
    nothing: dict[str, list[Any]] = {"values": [], "shapes": [], "types": []}
    attributes: Row = {"rf_id": 10 + number, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 1, "fw_tid": 0}
    attributes |= {"op_schema": "", "kernel_backend": "", "kernel_file": "", **fields.pop("attributes", {})}
    listed = [{"name": name, "type": "", "value": value} for name, value in attributes.items()]
    made = {"id": number, "name": "aten::mm", "ctrl_deps": 2, "inputs": nothing, "outputs": nothing, "attrs": listed}
    return made | fields


def document(nodes: list[Row], **around: Any) -> str:
    about = {"schema": NEWEST, "pid": 7, "time": "2026-01-02 03:04:05", "start_ts": 100}
    return json.dumps(about | {"nodes": nodes, "finish_ts": 200} | around)


@pytest.mark.cases
@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_layout_has_the_same_nodes_and_tensors(texts: dict[str, str], schema: str, tmp_path: Path) -> None:
    trace = read(tmp_path, texts[schema])
    newest = read(tmp_path, texts[NEWEST], "torch_et_0.json")

    shared = ("name", "record_id", "seq_id", "scope", "thread", "input_shapes")
    assert operators(trace, *shared) == operators(newest, *shared)
    assert parents(trace) == parents(newest)
    assert len(tensors_of(trace, "aten::mm")) > 5
    assert tensors_of(trace, "aten::mm") == tensors_of(newest, "aten::mm")
    [described] = rows(trace, "et_traces")
    assert (described["schema"], described["rank"], described["is_cut"]) == (schema, 1, False)
    assert described["n_nodes"] == len(rows(trace, "et_nodes"))


def operators(trace: Trace, *columns: str) -> list[list[Any]]:
    """Positional arguments of collectives differ from version to version."""
    found = (row for row in rows(trace, "et_nodes") if row["kind"] == "op" and row["name"] != "record_param_comms")
    return [[row[name] for name in columns] for row in found]


def parents(trace: Trace) -> dict[int, str]:
    found = nodes_by_id(trace)
    called = ((row, found[row["parent_id"]]) for row in found.values() if row["parent_id"] in found)
    return {row["record_id"]: caller["name"] for row, caller in called if caller["kind"] == "op"}


def tensors_of(trace: Trace, name: str) -> list[list[Any]]:
    found = nodes_by_id(trace)
    columns = ("is_output", "argument", "element", "n_elements", "n_item_bytes", "dtype", "device")
    own = (row for row in rows(trace, "et_tensors") if found[row["node_id"]]["name"] == name)
    return sorted([found[row["node_id"]]["record_id"], *(row[column] for column in columns)] for row in own)


@pytest.mark.cases
@pytest.mark.parametrize("schema", SCHEMAS[1:])
def test_the_database_and_python_read_the_same(
    texts: dict[str, str], schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = read(tmp_path, texts[schema])
    monkeypatch.setattr(NodeStage, "_add_as_a_whole", lambda stage, part, table: False)
    slow = read(tmp_path, texts[schema] + " ")  # another size: not the entry in the cache

    as_values = {"inputs", "outputs", "extra"}  # numbers are written differently: 0.000000 and 0.0
    for table in ("et_nodes", "et_tensors", "et_groups"):
        for ours, theirs in zip(sorted_rows(fast, table), sorted_rows(slow, table), strict=True):
            for name, value in ours.items():
                if name in as_values:
                    assert json.loads(value or "0") == json.loads(theirs[name] or "0"), name
                else:
                    assert value == theirs[name], name


def sorted_rows(trace: Trace, table: str) -> list[Row]:
    return sorted(rows(trace, table), key=lambda row: [str(value) for value in row.values()][2:6])


def test_torchs_own_layout_is_taken_in_as_a_whole(
    texts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("decoded in Python")

    monkeypatch.setattr(NodeStage, "_add_one_by_one", refuse)
    assert rows(read(tmp_path, texts[NEWEST]), "et_nodes")


def test_a_trace_of_many_parts_is_whole(texts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rows(read(tmp_path, texts[NEWEST]), "et_nodes")
    monkeypatch.setattr(event_stream, "PART_BYTES", 5_000)
    monkeypatch.setattr(event_stream, "_CHUNK_BYTES", 1_000)
    assert rows(read(tmp_path, texts[NEWEST] + " "), "et_nodes") == whole


@pytest.mark.parametrize("schema", [SCHEMAS[0], NEWEST])
def test_a_cut_file_gives_its_whole_nodes(texts: dict[str, str], schema: str, tmp_path: Path) -> None:
    whole = rows(read(tmp_path, texts[schema]), "et_nodes")
    cut = read(tmp_path, texts[schema][: len(texts[schema]) * 2 // 3], "torch_et_1.json.gz")

    found = rows(cut, "et_nodes")
    assert 0.5 * len(whole) < len(found) < len(whole)
    assert [row["node_id"] for row in found] == [row["node_id"] for row in whole[: len(found)]]
    [described] = rows(cut, "et_traces")
    assert described["is_cut"]
    assert described["finish_ms"] == -1
    [file] = rows(cut, "files")
    assert file["status"] == "damaged"
    assert "read up to the last complete node" in file["problem"]


@pytest.mark.parametrize("way", ["fast", "slow"])
def test_what_no_column_is_for_is_kept(tmp_path: Path, way: str, request: pytest.FixtureRequest) -> None:
    if way == "slow":
        request.getfixturevalue("refuse_the_fast_way")
    strange = node(4, colour="blue", inputs={"values": [1], "shapes": [[]], "types": ["Int"], "ranges": [[0, 1]]})
    attributed = node(5, attributes={"tensor_range": "[0,1]", "quantum": 3, "global_rank_start": 0})
    trace = read(tmp_path, document([node(3), strange, attributed], cluster="moon"))

    found = nodes_by_id(trace)
    assert found[3]["extra"] == ""
    assert json.loads(found[4]["extra"]) == {"colour": "blue", "inputs": {"ranges": [[0, 1]]}}
    assert json.loads(found[5]["extra"]) == {"tensor_range": "[0,1]", "quantum": 3, "global_rank_start": 0}
    assert json.loads(rows(trace, "et_traces")[0]["extra"]) == {"cluster": "moon"}


def test_a_field_that_one_node_of_many_has_is_kept(tmp_path: Path) -> None:
    """The database would leave it out silently."""
    trace = read(tmp_path, document([*(node(number) for number in range(3, 300)), node(300, mark=1)]))
    assert json.loads(nodes_by_id(trace)[300]["extra"]) == {"mark": 1}


def test_collectives_of_nccl_have_columns(texts: dict[str, str], tmp_path: Path) -> None:
    calls = [row for row in rows(read(tmp_path, texts[NEWEST]), "et_nodes") if row["collective"]]
    assert {"allreduce"} <= {row["collective"] for row in calls}
    call = next(row for row in calls if row["collective"] == "allreduce")
    assert call["name"] == "record_param_comms"
    assert call["group_size"] == 2
    assert call["n_in"] == call["n_out"] > 0
    assert call["group_name"]
    assert call["dtype"]


def test_groups_are_described(tmp_path: Path) -> None:
    groups = [
        {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cpu:gloo", "ranks": [], "group_size": 4},
        {"pg_name": 12, "pg_desc": "dp", "backend_config": "cuda:nccl", "ranks": [1, 3], "group_size": 2},
        "no group",
    ]
    described = node(
        3,
        name="## process_group:init ##",
        inputs={"values": [json.dumps(groups)], "shapes": [[]], "types": ["String"]},
    )
    trace = read(tmp_path, document([described, node(4)]))
    assert [(row["name"], row["desc"], row["ranks"], row["size"]) for row in rows(trace, "et_groups")] == [
        ("0", "default_pg", "[]", 4),
        ("12", "dp", "[1,3]", 2),
    ]
    assert nodes_by_id(trace)[3]["kind"] == "groups"


@pytest.mark.parametrize("way", ["fast", "slow"])
def test_tensors_know_their_argument_and_type(tmp_path: Path, way: str, request: pytest.FixtureRequest) -> None:
    if way == "slow":
        request.getfixturevalue("refuse_the_fast_way")
    given = {
        "values": [
            [7, 8, 0, 6, 4, "cpu"],
            [1, 2, 3, 4, 5, 6],
            [[9, 10, 2, 3, 2, "cuda:1"], [11, 0, 0, 0, 0, ""]],
            "[1]",
        ],
        "shapes": [[2, 3], [[], []], [[3], []], []],
        "types": [
            "Tensor(float)",
            "GenericList[Int,Int,Int,Int,Int,Int]",
            "GenericList[Tensor(c10::BFloat16),Tensor(nullptr (uninitialized))]",
            "String",
        ],
    }
    found = rows(read(tmp_path, document([node(3, inputs=given)])), "et_tensors")
    assert [
        (row["argument"], row["element"], row["tensor_id"], row["storage_offset"], row["dtype"]) for row in found
    ] == [
        (0, 0, 7, 0, "float"),
        (2, 0, 9, 2, "c10::BFloat16"),
    ]
    assert [row["device"] for row in found] == ["cpu", "cuda:1"]


def test_text_that_looks_like_a_tensor_is_none(tmp_path: Path) -> None:
    given = {"values": ['[1,2,3,4,5,"cpu"]', [1, 2]], "shapes": [[], []], "types": ["String", "GenericList[Int,Int]"]}
    assert not rows(read(tmp_path, document([node(3, inputs=given)])), "et_tensors")


@pytest.mark.parametrize(
    "broken",
    [
        {"id": "four", "name": "aten::add"},
        {"id": -4, "name": "aten::add"},
        {"id": 2**70, "name": "aten::add"},
        {"id": 4},
        {"name": "aten::add"},
        {"id": 4, "name": ["aten::add"]},
        {"id": 4, "name": "aten::add", "ctrl_deps": 2, "attrs": 7},
        {"id": 4, "name": "aten::add", "ctrl_deps": 2, "inputs": [1]},
        17,
        None,
    ],
)
def test_a_node_that_is_none_costs_only_itself(tmp_path: Path, broken: Any) -> None:
    trace = read(tmp_path, document([node(3), broken, node(5)]))
    assert {3, 5} <= set(nodes_by_id(trace)) <= {3, 4, 5}
    if 4 not in nodes_by_id(trace):
        [file] = rows(trace, "files")
        assert (file["status"], "not a node" in file["problem"]) == ("damaged", True)


@pytest.mark.parametrize("value", [2**64 - 1, -7, "many", None, [1]])
def test_absurd_numbers_are_missing(tmp_path: Path, value: Any) -> None:
    trace = read(tmp_path, document([node(3, attributes={"rf_id": value, "tid": value, "pg_size": value})]))
    found = nodes_by_id(trace)[3]
    for name in ("record_id", "thread", "group_size"):
        assert found[name] == -1 or found[name] == value


def test_the_rank_is_in_the_name(texts: dict[str, str], tmp_path: Path) -> None:
    names = {"torch_et_12.json": 12, "pytorch_et-rank3.json": 3, "et_rank_7_2024.json": 7, "linear_et.json": 0}
    for name, rank in names.items():
        assert rows(read(tmp_path, texts[NEWEST], name), "et_traces")[0]["rank"] == rank
