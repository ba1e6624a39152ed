"""Calls of collectives on NCCL: described by attributes, by position in older traces, and done by kernels."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from analyze.link.observed_processes import OBJECT, Process, Tensor, loaded, rows_of
from rankscope import pipeline
from rankscope.simulate.execution import SCHEMAS, PairOptions, write_pairs
from rankscope.simulate.profiler import ProfileSpec, simulate_profile

SAMPLE = Path(__file__).resolve().parents[4] / "shared" / "samples" / "execution_trace" / "resnet_et.json.gz"
NCCL = "cuda:nccl"


def test_attributes_come_first(tmp_path: Path) -> None:
    process = Process(0, {"0": [], "6": [0, 2]}, size=4, backend=NCCL)
    told: dict[str, Any] = {
        "collective_name": "_allgather_base",
        "dtype": "BFloat16",
        "in_msg_nelems": 30,
        "out_msg_nelems": 60,
    }
    told |= {"pg_name": "6", "pg_desc": "dp", "pg_size": 2, "global_rank_start": 0, "global_rank_stride": 2}
    process.record("_allgather_base", Tensor(30, ("c10::BFloat16", 2)), seq=[17, False], group=("6", "dp"), **told)

    [row] = rows_of(loaded(tmp_path, process))

    expected = {"op": "all_gather", "dtype": "BFloat16", "n_in": 30, "n_out": 60, "n_bytes": 60, "seq": 17}
    expected |= {"group_name": "6", "group_ranks": "[0,2]", "group_size": 2, "is_inferred": False, "root": -1}
    assert {key: row[key] for key in expected} == expected
    assert (row["runner"], row["runner_id"]) == ("node", row["node_id"])


@pytest.mark.parametrize(
    ("seq", "group"), [(17, 93473918609024), (17, "6"), (17, ("6", "dp")), ([17, False], ("6", "dp"))]
)
def test_older_traces_tell_by_position(tmp_path: Path, seq: Any, group: Any) -> None:
    process = Process(1, {"6": [1, 3], "93473918609024": [1, 3]}, size=4, backend=NCCL)
    process.record("broadcast", Tensor(30), seq=seq, group=group, rank=1)

    [row] = rows_of(loaded(tmp_path, process, is_profiled=False))

    expected = {"op": "broadcast", "dtype": "Float", "n_in": 30, "n_out": 30, "n_bytes": 120, "seq": 17, "root": 3}
    expected |= {"group_ranks": "[1,3]", "group_size": 2, "is_inferred": False}
    assert {key: row[key] for key in expected} == expected
    assert row["group_name"] == str(group[0] if isinstance(group, tuple) else group)


def test_members_that_no_list_names_are_known_by_their_distance(tmp_path: Path) -> None:
    process = Process(3, {"9": [3, 5, 7]}, size=8, backend=NCCL)
    process.record("allreduce", Tensor(30), group=("9", ""))
    process.groups = {"0": []}

    [row] = rows_of(loaded(tmp_path, process, is_profiled=False))

    assert (row["group_ranks"], row["group_size"], row["is_inferred"]) == ("[3,5,7]", 3, False)


def test_a_call_counts_once_however_many_describe_it(tmp_path: Path) -> None:
    process = Process(0, backend=NCCL)
    process.record("init")
    barrier = process.call("c10d::barrier", Tensor(1), OBJECT, [0], True, -1)
    described = process.record("barrier", parent=barrier)
    process.record("allreduce", Tensor(1), parent=described)
    process.record("wait")
    sent = process.call("c10d::send", [Tensor(8)], OBJECT, 1, 5)
    transfer = process.record("send", Tensor(8), rank=1, parent=sent, seq=[3, True])

    rows = rows_of(loaded(tmp_path, process))

    assert [(row["node_id"], row["op"], row["n_bytes"]) for row in rows] == [
        (described, "barrier", 0),
        (transfer, "send", 32),
    ]
    assert (rows[1]["src"], rows[1]["dst"], rows[1]["tag"], rows[1]["is_p2p"]) == (0, 1, 5, True)


@pytest.mark.cases
@pytest.mark.parametrize("schema", SCHEMAS)
def test_kernels_are_what_runs_the_calls_of_a_simulated_job(tmp_path: Path, schema: str) -> None:
    spec = ProfileSpec(data_parallel=2, stages=2, n_steps=1, n_layers=1, n_microbatches=1)
    write_pairs(simulate_profile(spec), tmp_path, PairOptions(schema))
    trace = pipeline.load([str(tmp_path)])

    rows = rows_of(trace)

    assert Counter(row["op"] for row in rows)["all_reduce"] == 4
    ran = trace.sql(
        "SELECT count(*), bool_and(k.name LIKE 'nccl%'), bool_and(k.type = 'communication'), "
        "bool_and(m.kernel_id = k.kernel_id), bool_and(e.n_bytes = m.n_bytes) FROM et_collectives AS e "
        "JOIN kernels AS k ON k.file_id = e.runner_file_id AND k.kernel_id = e.runner_id "
        "JOIN comms AS m ON m.file_id = k.file_id AND m.comm_id = e.comm_id WHERE e.runner = 'kernel'"
    )
    assert ran.rows() == [(len(rows), True, True, True, True)]
    together: dict[int, set[int]] = {}
    for row in rows:
        together.setdefault(row["match_id"], set()).add(row["rank"])
        assert row["rank"] in json.loads(row["group_ranks"])
        assert not row["is_p2p"] or {row["src"], row["dst"]} == set(json.loads(row["group_ranks"]))
    assert {frozenset(ranks) for ranks in together.values()} == set(map(frozenset, ((0, 1), (2, 3), (0, 2), (1, 3))))
    assert not any(row["is_inferred"] for row in rows)


@pytest.mark.skipif(not SAMPLE.exists(), reason="the sample traces are not here")
def test_the_sample_has_the_collectives_of_its_training() -> None:
    rows = rows_of(pipeline.load([str(SAMPLE)]))

    assert Counter(row["op"] for row in rows) == {"all_reduce": 15, "broadcast": 6}
    assert [row["n_bytes"] for row in rows[:4]] == [212480, 424, 8196000, 31502336]
    assert [row["seq"] for row in rows] == list(range(47, 68))
