"""Execution traces are written letter by letter as torch writes them, in all versions that it has had."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rankscope.errors import UsageError
from rankscope.simulate.execution import (
    LATEST_SCHEMA,
    SCHEMAS,
    execution_trace_text,
    observe,
    write_execution_trace,
)
from rankscope.simulate.execution.nodes import GROUPS_NAME, PROCESS_NAME, ROOT_ID, ExecutionTrace, Node
from rankscope.simulate.execution.schemas import OP_SCHEMAS
from rankscope.simulate.profiler import ProfileSpec, simulate_profile
from simulate.execution_reading import fields_of, flattened, read_back

REPOSITORY = Path(__file__).resolve().parents[2]
SAMPLES = REPOSITORY.parent / "shared" / "samples" / "execution_trace"
JOB = REPOSITORY / "tests" / "e2e" / "jobs" / "observed_training.py"
PIPELINE = ProfileSpec(data_parallel=2, stages=2, n_steps=1, n_layers=1, n_microbatches=1)
each_schema = pytest.mark.parametrize("schema", SCHEMAS)
ATTRIBUTES = ["rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid", "op_schema"]
ROOT = ExecutionTrace(7, "2026-01-15 14:02:00", 100, 120, (Node(ROOT_ID, PROCESS_NAME, ROOT_ID),))


@cache
def pipeline_trace() -> ExecutionTrace:
    return observe(simulate_profile(PIPELINE), 1)


def written(schema: str) -> dict[str, Any]:
    trace: dict[str, Any] = json.loads(execution_trace_text(pipeline_trace(), schema))
    return trace


def first_call(schema: str) -> dict[str, Any]:
    return next(flattened(node) for node in written(schema)["nodes"] if node["name"] == "record_param_comms")


def test_the_latest_layout_letter_by_letter() -> None:
    attributes = (
        '{"name": "rf_id", "type": "uint64", "value": 0},{"name": "fw_parent", "type": "uint64", "value": 0},'
        '{"name": "seq_id", "type": "int64", "value": -1},{"name": "scope", "type": "uint64", "value": 7},'
        '{"name": "tid", "type": "uint64", "value": 0},{"name": "fw_tid", "type": "uint64", "value": 0},'
        '{"name": "op_schema", "type": "string", "value": ""},'
        '{"name": "kernel_backend", "type": "string", "value": ""},'
        '{"name": "kernel_file", "type": "string", "value": ""},{"name": "tensor_range", "type": "string", "value": ""}'
    )
    assert execution_trace_text(ROOT) == (
        '{\n  "schema": "1.1.1-chakra.0.0.4", "pid": 7, "time": "2026-01-15 14:02:00", "start_ts": 100,\n'
        '  "nodes": [\n      {\n'
        '        "id": 1, "name": "[pytorch|profiler|execution_trace|process]", "ctrl_deps": 1,\n'
        '        "inputs": {"values": [], "shapes": [], "types": [], "strides": []},\n'
        '        "outputs": {"values": [], "shapes": [], "types": [], "strides": []},\n'
        f'        "attrs": [{attributes}]\n'
        '      }\n  ],\n  "finish_ts": 120\n}'
    )


def test_the_flat_layout_letter_by_letter() -> None:
    assert execution_trace_text(ROOT, "1.0.1") == (
        '{\n  "schema": "1.0.1", "pid": 7, "time": "2026-01-15 14:02:00", "start_ts": 100,\n  "nodes": [\n    {\n'
        '      "name": "[pytorch|profiler|execution_graph|process]", "id": 1, "rf_id": 0, "parent": 1, '
        '"fw_parent": 0, "seq_id": -1, "scope": 7, "tid": 0, "fw_tid": 0, "op_schema": "",\n'
        '      "inputs": [], "input_shapes": [], "input_types": [],\n'
        '      "outputs": [], "output_shapes": [], "output_types": []\n    }\n  ],\n  "finish_ts": 120\n}'
    )


def test_values_of_every_type() -> None:
    [node] = [node for node in pipeline_trace().nodes if node.name == "aten::_fused_adamw_"]
    text = execution_trace_text(ExecutionTrace(7, "", 0, 0, (node,)))
    assert ',[],[[174,175,0,1,4,"cuda:1"]],0.000300,0.900000,0.950000,0.100000,0.000000,false,false,"<None>"' in text
    assert '"GenericList[Tensor(c10::BFloat16)]","GenericList[]","GenericList[Tensor(float)]","Double",' in text
    assert '"shapes": [[[50350080]],' in text
    assert '"strides": [[[1]],' in text


@pytest.mark.e2e
def test_a_trace_of_torch_is_written_again_letter_by_letter(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    subprocess.run([sys.executable, str(JOB), "--output", str(tmp_path), "--cases", "mlp"], check=True)
    text = (tmp_path / "mlp" / "torch_et_0.json").read_text()
    if '"tensor_range"' not in text:
        pytest.skip("this torch has another layout")
    assert execution_trace_text(read_back(text)) == text


@pytest.mark.e2e
def test_signatures_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    for name, schema in OP_SCHEMAS.items():
        assert schema in map(str, torch._C._jit_get_schemas_for_operator(name))


@pytest.mark.slow
@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the samples are not beside the repository")
@pytest.mark.parametrize("name", ["linear_et.json.gz", "resnet_et.json.gz"])
def test_nodes_of_the_samples_are_written_again_letter_by_letter(name: str) -> None:
    text = gzip.decompress((SAMPLES / name).read_bytes()).decode()
    trace = read_back(text)
    assert len(trace.nodes) > 900
    between = "\n    {\n"
    original = {part.removesuffix(",") for part in text.split(between)}
    assert {part.removesuffix(",") for part in execution_trace_text(trace, schema_of(text)).split(between)} <= original


def schema_of(text: str) -> str:
    return str(json.loads(text)["schema"])


@each_schema
def test_all_versions_tell_of_the_same_nodes(schema: str) -> None:
    latest = [flattened(node) for node in written(LATEST_SCHEMA)["nodes"]]
    nodes = [flattened(node) for node in written(schema)["nodes"]]
    if schema == "1.0.1":
        latest = [node for node in latest if node["name"] != GROUPS_NAME]
    same = ("id", "parent", "outputs", "output_shapes", "output_types", *ATTRIBUTES)
    assert [[node[name] for name in same] for node in nodes] == [[node[name] for name in same] for node in latest]
    others = [node["inputs"] for node in nodes if node["name"] != "record_param_comms"]
    assert others == [node["inputs"] for node in latest if node["name"] != "record_param_comms"]


@pytest.mark.parametrize(
    ("schema", "further"),
    [
        ("1.0.2-chakra.0.0.4", []),
        ("1.0.3-chakra.0.0.4", []),
        ("1.0.4-chakra.0.0.4", ["kernel_backend", "kernel_file"]),
        ("1.1.0-chakra.0.0.4", ["kernel_backend", "kernel_file"]),
        (LATEST_SCHEMA, ["kernel_backend", "kernel_file", "tensor_range"]),
    ],
)
def test_versions_have_their_own_fields(schema: str, further: list[str]) -> None:
    for node in written(schema)["nodes"]:
        is_call = node["name"] == "record_param_comms" and schema >= "1.1"
        calls = ["collective_name", "dtype", "in_msg_nelems", "out_msg_nelems", "in_split_size", "out_split_size"]
        calls += ["global_rank_start", "global_rank_stride", "pg_name", "pg_desc", "pg_size"]
        assert list(fields_of(node)) == [*ATTRIBUTES, *further, *(calls if is_call else [])]
        assert list(node) == ["id", "name", "ctrl_deps", "inputs", "outputs", "attrs"]
        strides = ["strides"] if schema == LATEST_SCHEMA else []
        assert list(node["inputs"]) == list(node["outputs"]) == ["values", "shapes", "types", *strides]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (LATEST_SCHEMA, [[2, True], ["5", "pp_forward"], 1, "send", [], [], 1, 2, 2]),
        ("1.1.0-chakra.0.0.4", [2, ["5", "pp_forward"], 1, "send", [], [], 1, 2, 2]),
        ("1.0.3-chakra.0.0.4", [2, ["5", "pp_forward"], 1, "send", [], [], 1, 2, 2]),
        ("1.0.2-chakra.0.0.4", [2, 5, 1, "send", [], [], 1, 2, 2]),
    ],
)
def test_versions_have_their_own_way_to_tell_of_a_call(schema: str, said: list[object]) -> None:
    call = first_call(schema)
    assert call["inputs"][0] == call["outputs"][0]
    assert call["inputs"][1:] == said


def test_the_flat_layout_tells_groups_by_their_address() -> None:
    _, sequence, group, *others = first_call("1.0.1")["inputs"]
    assert (sequence, others) == (2, [1, "send", [], []])
    assert group > 2**40


def test_a_killed_process_leaves_the_beginning_of_the_file() -> None:
    whole = execution_trace_text(pipeline_trace())
    left = execution_trace_text(pipeline_trace(), is_killed=True)
    assert whole.startswith(left)
    assert left.endswith("}]\n      }")
    assert 0.6 < len(left) / len(whole) < 0.9
    assert PROCESS_NAME not in left


def test_a_name_that_ends_in_gz_is_compressed(tmp_path: Path) -> None:
    path = write_execution_trace(pipeline_trace(), tmp_path / "torch_et_1.json.gz", "1.0.4-chakra.0.0.4")
    expected = execution_trace_text(pipeline_trace(), "1.0.4-chakra.0.0.4")
    assert gzip.decompress(path.read_bytes()).decode() == expected
    assert write_execution_trace(pipeline_trace(), tmp_path / "et.json").read_text().startswith("{\n")


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(UsageError, match=r"1\.2\.0"):
        execution_trace_text(ROOT, "1.2.0")
