"""Collectives, estimates and order of execution, as the artifacts of each log tell them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.model.tables import MISSING
from rankscope.simulate.compile_log import LogBuilder, ids_of
from read.compile_log_reading import load_logs, rows_of

REDUCE = "torch.ops._c10d_functional.all_reduce_.default"
WAIT = "torch.ops._c10d_functional.wait_tensor.default"
GATHER = "torch.ops._c10d_functional.all_gather_into_tensor.default"
SCHEDULE = "inductor_collective_schedule"
ESTIMATES = "inductor_runtime_and_tensor_meta"


def code(*calls: str) -> str:
    return "def call(args):\n" + "".join(f"    buf = {call}(buf0, 'sum', '0')\n" for call in calls)


def with_code(log: LogBuilder, compile_id: str, text: str) -> LogBuilder:
    return log.record("inductor_output_code", {"filename": "/cache/abc.py"}, text, **ids_of(compile_id))


def test_all_schedules_of_a_compilation_count_on(tmp_path: Path) -> None:
    log = LogBuilder(rank=1)
    log.artifact(SCHEDULE, [REDUCE, WAIT], "0/0").artifact(SCHEDULE, [GATHER, None], "0/0").artifact(
        SCHEDULE, [WAIT], "1/0"
    )
    rows = rows_of(load_logs(tmp_path, log), "compile_collectives")
    assert [(row["compile_id"], row["position"], row["op"]) for row in rows] == [
        ("0/0", 0, REDUCE),
        ("0/0", 1, WAIT),
        ("0/0", 2, GATHER),
        ("1/0", 0, WAIT),
    ]
    assert {(row["rank"], row["run"]) for row in rows} == {(1, 0)}
    assert [row["record"] for row in rows] == [0, 0, 1, 2]


def test_a_graph_from_a_cache_is_listed_by_its_code(tmp_path: Path) -> None:
    log = with_code(LogBuilder(rank=0), "0/0", code(REDUCE, WAIT))
    rows = rows_of(load_logs(tmp_path, log), "compile_collectives")
    assert [(row["compile_id"], row["op"]) for row in rows] == [("0/0", REDUCE), ("0/0", WAIT)]


def test_a_graph_with_a_schedule_is_not_listed_twice(tmp_path: Path) -> None:
    log = with_code(LogBuilder(rank=0).artifact(SCHEDULE, [REDUCE], "0/0"), "0/0", code(REDUCE, WAIT))
    assert [row["op"] for row in rows_of(load_logs(tmp_path, log), "compile_collectives")] == [REDUCE]


@pytest.mark.parametrize("name", [SCHEDULE, ESTIMATES, "graph_execution"])
@pytest.mark.parametrize("payload", ["", "not JSON", "{", "17", '"text"', "\xff", "[" * 100_000])
def test_payloads_that_are_not_what_they_should_be_are_left_out(name: str, payload: str, tmp_path: Path) -> None:
    log = LogBuilder(rank=0)
    log.record("artifact", {"name": name, "encoding": "json"}, payload.encode("latin-1"), **ids_of("0/0"))
    log.artifact(SCHEDULE, [REDUCE], "0/1")
    trace = load_logs(tmp_path, log)
    assert [row["op"] for row in rows_of(trace, "compile_collectives")] == [REDUCE]
    assert not trace.has("compile_estimates")
    assert not trace.has("graph_executions")


def test_estimates_keep_shapes_and_whole_nanoseconds(tmp_path: Path) -> None:
    tensor = {"shape": [8, "s0"], "stride": [4, 1], "dtype": "float16"}
    ops = [
        {"name": "extern_kernels.mm", "type": "compute", "estimated_runtime_ns": 1234.9, "outputs": [tensor]},
        {"name": REDUCE, "type": "collective", "estimated_runtime_ns": None},
        {"name": None, "estimated_runtime_ns": float("1e300")},
    ]
    rows = rows_of(
        load_logs(tmp_path, LogBuilder(rank=0).artifact(ESTIMATES, {"ops": ops}, "0/0")), "compile_estimates"
    )
    assert [(row["position"], row["op"], row["kind"], row["estimate_ns"]) for row in rows] == [
        (0, "extern_kernels.mm", "compute", 1234),
        (1, REDUCE, "collective", MISSING),
        (2, "", "", MISSING),
    ]
    assert rows[0]["outputs"] == '[{"shape":[8,"s0"],"stride":[4,1],"dtype":"float16"}]'
    assert rows[1]["outputs"] == "[]"


def test_orders_recorded_one_after_the_other_count_on(tmp_path: Path) -> None:
    log = LogBuilder(rank=2)
    log.artifact("graph_execution", {"graph_execution_order": [{"compile_id": "0/1"}, "0/0", {"compile_id": None}]})
    log.artifact("graph_execution", {"graph_execution_order": [{"compile_id": "1/0"}]})
    rows = rows_of(load_logs(tmp_path, log), "graph_executions")
    assert [(row["rank"], row["position"], row["compile_id"]) for row in rows] == [
        (2, 0, "0/1"),
        (2, 1, "0/0"),
        (2, 2, "1/0"),
    ]
