"""What newer recorders write: torch's hook for any backend, torchcomms, several recorders in a process, Ray Train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankscope.model.tables import Trace
from rankscope.pipeline import load
from read.dumps import codes, make_dump, make_entry, read_calls, read_tables, report_of, rows_of, verdict, write_dump
from read.newer_dumps import SECOND, as_json, config, hooked_dump, torchcomms_dump, write_job


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nccl2:all_reduce", ("nccl2", "all_reduce", -1, False)),
        ("nccl2:all_to_all_single", ("nccl2", "all_to_all", -1, False)),
        ("nccl2:send 0->1", ("nccl2", "send", 1, True)),
        ("nccl2:recv 1<-?", ("nccl2", "recv", -1, True)),
        ("recv 1<-?", ("", "recv", -1, True)),
        ("all_reduce", ("", "all_reduce", -1, False)),
        ("c10d:allreduce", ("c10d", "all_reduce", -1, False)),
        ("ncclx:reduce_scatter_single", ("ncclx", "reduce_scatter", -1, False)),
        ("ncclx:all_to_all_v_single", ("ncclx", "all_to_all", -1, False)),
        ("ncclx:send", ("ncclx", "send", -1, True)),
    ],
)
def test_names_of_newer_recorders(tmp_path: Path, name: str, expected: tuple[Any, ...]) -> None:
    file = write_dump(tmp_path / "trace_0", make_dump([make_entry(1, profiling_name=name)]))
    (call,) = read_calls(file)
    assert (call["backend"], call["op"], call["peer"], call["is_p2p"]) == expected


def test_counters_of_the_hook_are_numbers_of_operations(tmp_path: Path) -> None:
    """Taken for numbers of collectives they would say that the rank has made a hundred calls."""
    file = write_dump(tmp_path / "trace_0", hooked_dump(["all_reduce", "all_reduce", "send 0->1"], [0, 1]))
    (status,) = read_tables(file)["group_status"].rows()
    assert (status["last_enqueued"], status["last_completed"]) == (2, -1)


def test_counters_that_count_collectives_are_kept(tmp_path: Path) -> None:
    dump = hooked_dump(["all_reduce", "all_reduce"], [0, 1], "hccl")
    dump["pg_status"]["0"]["last_enqueued_collective"] = 7
    (status,) = read_tables(write_dump(tmp_path / "trace_0", dump))["group_status"].rows()
    assert status["last_enqueued"] == 7


def test_the_json_of_an_empty_recorder_is_read(tmp_path: Path) -> None:
    (tmp_path / "trace_0.json").write_bytes(as_json(hooked_dump([], [0, 1])))
    tables = read_tables(tmp_path / "trace_0.json")
    assert [len(tables[name]) for name in ("collectives", "group_config", "ranks")] == [0, 1, 1]


# --- torchcomms -------------------------------------------------------------------------------------------------------

GROUPS = {"dp": [0, 1], "world": [0, 1]}


def _numbered(trace: Trace, rank: int = 0) -> list[tuple[str, str, int]]:
    rows = [row for row in rows_of(trace, "collectives") if row["rank"] == rank]
    return [(row["group_name"], row["op"], row["seq"]) for row in rows]


def test_torchcomms_calls_are_numbered_per_communicator(tmp_path: Path) -> None:
    """Rank 1 has a communicator of its own, whose calls shift the numbers of all others."""
    calls = [
        ("world", "all_reduce", True),
        ("world", "send", True),
        ("dp", "all_gather", True),
        ("world", "barrier", True),
    ]
    alone = [("alone", "all_reduce", True), ("alone", "all_reduce", True)]
    dumps = {
        0: torchcomms_dump(calls, GROUPS, cuda=True),
        1: torchcomms_dump([*alone, *calls], {**GROUPS, "alone": [1]}, cuda=True),
    }
    trace = load([write_job(tmp_path, dumps, "torchcomms_fr_trace_{}.json")])
    expected = [("world", "all_reduce", 1), ("world", "send", 1), ("dp", "all_gather", 1), ("world", "barrier", 2)]
    assert _numbered(trace) == expected
    assert _numbered(trace, 1)[2:] == expected
    assert {(row["recorder"], row["host"]) for row in rows_of(trace, "ranks")} == {("torchcomms", "")}
    assert codes(report_of(tmp_path)) == set()


@pytest.mark.parametrize("cuda", [True, False])
def test_a_torchcomms_call_that_is_not_retired_waits(tmp_path: Path, cuda: bool) -> None:
    """In flight it reads `completed` on a device, and like all others `scheduled` on the CPU."""
    done = [("world", "all_reduce", True)] * 3
    dumps = {rank: torchcomms_dump([*done, ("world", "all_reduce", False)], GROUPS, cuda) for rank in (0, 1, 2)}
    dumps[2] = torchcomms_dump(done, GROUPS, cuda)
    for dump in dumps.values():
        dump["pg_config"] = config([0, 1, 2], "world", "ncclx")
    finding = verdict(report_of(write_job(tmp_path, dumps)))
    assert (finding.rule, finding.ranks, finding.certainty) == ("rank-stuck", (2,), "certain")


def test_torchcomms_rings_that_wrapped_keep_the_recorded_numbers(tmp_path: Path) -> None:
    calls = [("world", "all_reduce", True), ("dp", "all_gather", True), ("world", "barrier", True)]
    dumps = {rank: torchcomms_dump(calls, GROUPS, cuda=True) for rank in (0, 1)}
    for dump in dumps.values():
        del dump["entries"][0]
    assert _numbered(load([write_job(tmp_path, dumps)])) == [("dp", "all_gather", 2), ("world", "barrier", 3)]


# --- several recorders in one process ---------------------------------------------------------------------------------


def _device_dump(n_calls: int, **fields: Any) -> dict[str, Any]:
    ended = {"state": "completed", "retired": True}
    entries = [
        make_entry(seq, record_id=seq - 1, time_discovered_completed_ns=SECOND * (seq + 1) + 9, **{**ended, **fields})
        for seq in range(1, n_calls + 1)
    ]
    return make_dump(entries, pg_status={})


def _gloo_dump(
    n_calls: int, group: tuple[str, str] = ("5", "cpu"), start_ns: int = SECOND // 2, **fields: Any
) -> dict[str, Any]:
    entries = [
        make_entry(
            seq,
            record_id=seq - 1,
            profiling_name="gloo:barrier",
            process_group=group,
            retired=True,
            time_created_ns=seq * SECOND + start_ns,
            **fields,
        )
        for seq in range(1, n_calls + 1)
    ]
    return make_dump(entries, pg_config={"": {"name": "", "desc": "", "ranks": "[0, 1]"}}, pg_status={})


def _write_both(folder: Path, device: dict[int, Any], gloo: dict[int, Any]) -> Path:
    for rank, dump in device.items():
        write_dump(folder / f"nccl_trace_rank_{rank}", dump)
    for rank, dump in gloo.items():
        write_dump(folder / f"gloo_trace_rank_{rank}", dump)
    return folder


def test_dumps_of_two_backends_are_one_rank(tmp_path: Path) -> None:
    folder = _write_both(tmp_path, {r: _device_dump(3) for r in (0, 1)}, {r: _gloo_dump(3) for r in (0, 1)})
    trace = load([folder])
    assert {row["status"] for row in rows_of(trace)} == {"read"}
    ranks = rows_of(trace, "ranks")
    assert [(row["rank"], row["n_calls"], row["host"]) for row in ranks] == [(0, 6, ""), (1, 6, "")]
    calls = [row for row in rows_of(trace, "collectives") if row["rank"] == 0]
    assert [(row["backend"], row["seq"]) for row in calls] == [
        (backend, seq) for seq in (1, 2, 3) for backend in ("gloo", "nccl")
    ]
    assert [row["record_id"] for row in calls] == list(range(6))
    assert codes(report_of(folder)) == set()


def test_a_rank_that_waits_on_one_backend_holds_up_the_other(tmp_path: Path) -> None:
    """Rank 1 waits in its gloo barrier for nobody: rank 0 went to the device's call without making it."""
    device = {0: _device_dump(4), 1: _device_dump(3)}
    device[0]["entries"][-1].update(state="scheduled", retired=False, time_discovered_completed_ns=None)
    gloo = {0: _gloo_dump(2), 1: _gloo_dump(3)}
    gloo[1]["entries"][-1].update(retired=False)
    report = report_of(_write_both(tmp_path, device, gloo))
    assert verdict(report).rule in ("order-deadlock", "call-skipped")
    assert "D903" not in codes(report)


def test_a_group_that_two_backends_serve_is_two(tmp_path: Path) -> None:
    """`cpu:gloo,cuda:nccl`: each backend counts its own calls of the same group."""
    world = ("0", "default_pg")
    device, gloo = {r: _device_dump(3) for r in (0, 1)}, {r: _gloo_dump(5, world, -SECOND // 2) for r in (0, 1)}
    folder = _write_both(tmp_path, device, gloo)
    trace = load([folder])
    assert [(row["name"], row["size"]) for row in rows_of(trace, "groups")] == [("0", 2), ("0 (gloo)", 2)]
    assert codes(report_of(folder)) == set()


def test_dumps_of_two_times_are_not_one_process(tmp_path: Path) -> None:
    later = {r: _gloo_dump(3, ("0", "default_pg"), start_ns=7200 * SECOND) for r in (0, 1)}
    trace = load([_write_both(tmp_path, {r: _device_dump(3) for r in (0, 1)}, later)])
    assert {row["path"].rsplit("/", 1)[-1]: row["status"] for row in rows_of(trace)} == {
        "nccl_trace_rank_0": "other-capture",
        "nccl_trace_rank_1": "other-capture",
        "gloo_trace_rank_0": "read",
        "gloo_trace_rank_1": "read",
    }


def test_two_dumps_of_one_backend_and_group_are_still_two(tmp_path: Path) -> None:
    for name in ("a_rank_0", "b_rank_0"):
        write_dump(tmp_path / name, _device_dump(3))
    assert sorted(row["status"] for row in rows_of(load([tmp_path]))) == ["duplicate", "read"]


def test_when_a_capture_is_left_out_all_its_files_are(tmp_path: Path) -> None:
    _write_both(tmp_path / "old", {r: _device_dump(3) for r in (0, 1)}, {r: _gloo_dump(3) for r in (0, 1)})
    late = [make_entry(seq, time_created_ns=(9000 + seq) * SECOND, state="completed") for seq in (1, 2)]
    for rank in (0, 1):
        write_dump(tmp_path / "new" / f"nccl_trace_rank_{rank}", make_dump(late, pg_status={}))
    status = {row["path"][len(str(tmp_path)) + 1 :]: row["status"] for row in rows_of(load([tmp_path]))}
    assert {name: kind for name, kind in status.items() if name.startswith("old")} == {
        f"old/{backend}_trace_rank_{rank}": "other-capture" for backend in ("nccl", "gloo") for rank in (0, 1)
    }


# --- Ray Train --------------------------------------------------------------------------------------------------------


def test_dumps_of_ray_train_are_read(tmp_path: Path) -> None:
    """`flight_recorder/<rank>.log` holds torch's JSON as it is, or a line that says why there is none."""
    dumps = {rank: _device_dump(4 if rank else 3) for rank in (0, 1, 2)}
    for dump in dumps.values():
        dump["pg_config"] = config(range(4))
        if len(dump["entries"]) == 4:
            dump["entries"][-1].update(state="scheduled", retired=False, time_discovered_completed_ns=None)
    folder = write_job(tmp_path / "flight_recorder", dumps, "{}.log")
    (folder / "3.log").write_text("[flight recorder unavailable: torch unavailable: No module named 'torch']")
    trace = load([tmp_path])
    assert [(row["rank"], row["host"]) for row in rows_of(trace, "ranks")] == [(0, ""), (1, ""), (2, "")]
    (bad,) = [row for row in rows_of(trace) if row["status"] == "damaged"]
    assert (bad["rank"], bad["source"]) == (3, "flight_recorder")
    assert bad["problem"] == "has an error message instead of a dump: torch unavailable: No module named 'torch'"
    finding = verdict(report_of(tmp_path))
    assert (finding.rule, finding.ranks) == ("rank-stuck", (0,))
