"""Two dumps of one rank, torch's and ours: one call per group and number, each from who knows it best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankscope.model.tables import Trace
from rankscope.pipeline import load
from read.dumps import Dump, codes, make_dump, make_entry, report_of, rows_of, verdict, write_dump

SECOND = 1_000_000_000
OWN_FRAME = {"name": "average", "filename": "/job/own.py", "line": 40}
CONFIG = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
NAMELESS = {"": {"name": "", "desc": "", "ranks": "[]"}}


def by_torch(seqs: range, backend: str = "gloo", **fields: Any) -> Dump:
    """gloo as torch records it: no states, no transfers, no names of groups."""
    entries = [make_entry(seq, profiling_name=f"{backend}:all_reduce", retired=True, **fields) for seq in seqs]
    counters = {"last_enqueued_collective": seqs[-1], "last_started_collective": -1, "last_completed_collective": 0}
    return make_dump(entries, pg_config=NAMELESS if backend == "gloo" else CONFIG, pg_status={"0": counters})


def own_entry(seq: int, is_done: bool = True, **fields: Any) -> Dump:
    times = {"time_discovered_started_ns": (seq + 1) * SECOND + 5}
    if is_done:
        times["time_discovered_completed_ns"] = (seq + 1) * SECOND + 9
    state = {"state": "completed" if is_done else "started", "retired": is_done, "frames": [OWN_FRAME]}
    return make_entry(seq, **{"profiling_name": "gloo:all_reduce", **state, **times, **fields})


def by_us(*entries: Dump, written_s: int = 30, completed: int = 0, **fields: Any) -> Dump:
    counters = {"last_enqueued_collective": 4, "last_started_collective": 4, "last_completed_collective": completed}
    own = {"rank": 0, "host": "gpu-7", "world_size": 2, "pid": 9, "written_ns": written_s * SECOND}
    settings = {"pg_config": CONFIG, "pg_status": {"3": counters}, "rankscope": own, "comm_lib_version": "", **fields}
    return make_dump(({**entry, "pg_id": 3} for entry in entries), **settings)


def joined(folder: Path, torch: Dump, own: Dump) -> Trace:
    write_dump(folder / "nccl_trace_rank_0", torch)
    write_dump(folder / "rankscope_trace_rank_0", own)
    return load(folder)


def calls(trace: Trace, *names: str) -> list[Any]:
    chosen = [row for row in rows_of(trace, "collectives") if row["rank"] == 0]
    return [tuple(row[name] for name in names) if len(names) > 1 else row[names[0]] for row in chosen]


def test_of_gloo_ours_holds_and_torch_fills_the_gaps(tmp_path: Path) -> None:
    trace = joined(tmp_path, by_torch(range(1, 5)), by_us(own_entry(1), own_entry(2), own_entry(4, is_done=False)))
    assert calls(trace, "seq", "state", "started_ns") == [
        (1, "completed", 2 * SECOND + 5),
        (2, "completed", 3 * SECOND + 5),
        (3, "completed", -1),
        (4, "completed", 5 * SECOND + 5),  # torch has seen its end
    ]
    lines = trace.table("frames").array("line")
    assert [int(lines[site]) for site in calls(trace, "site_id")] == [40, 40, 12, 40]
    assert calls(trace, "record_id") == [1, 2, 3, 4]


def test_the_joined_rank_is_one(tmp_path: Path) -> None:
    torch = by_torch(range(1, 5))
    trace = joined(tmp_path, torch, by_us(own_entry(1), own_entry(9)))
    (rank,) = rows_of(trace, "ranks")
    assert (rank["recorder"], rank["host"], rank["n_calls"], rank["comm_version"]) == ("both", "gpu-7", 5, "2.27.5")
    assert (rank["last_created_ns"], rank["written_ns"]) == (10 * SECOND, 30 * SECOND)
    assert {row["status"] for row in rows_of(trace)} == {"read"}
    assert "D903" not in codes(report_of(tmp_path))


def test_calls_are_in_the_order_of_their_times(tmp_path: Path) -> None:
    late = own_entry(7, process_group=("1", "tp"), time_created_ns=2 * SECOND + 1)
    trace = joined(tmp_path, by_torch(range(1, 4)), by_us(late, own_entry(3)))
    assert calls(trace, "group_name", "seq") == [("0", 1), ("1", 7), ("0", 2), ("0", 3)]


def test_a_call_that_only_we_have_seen_waiting_waits(tmp_path: Path) -> None:
    torch = by_torch(range(1, 3))
    torch["entries"][1]["retired"] = False
    trace = joined(tmp_path, torch, by_us(own_entry(1), own_entry(2, is_done=False)))
    assert calls(trace, "status") == ["done", "waiting"]


def test_sends_and_receives_on_gloo_are_ours(tmp_path: Path) -> None:
    send = own_entry(1, profiling_name="gloo:send 0->1", is_p2p=True, p2p_seq_id=1, time_created_ns=3 * SECOND)
    trace = joined(tmp_path, by_torch(range(1, 2)), by_us(own_entry(1), send))
    assert calls(trace, "op", "peer") == [("all_reduce", -1), ("send", 1)]


def test_on_a_device_torch_holds_and_ours_fills_the_gaps(tmp_path: Path) -> None:
    torch = by_torch(range(2, 4), "nccl", state="completed", time_discovered_completed_ns=77 * SECOND, frames=[])
    own = [own_entry(seq, profiling_name="nccl:all_reduce") for seq in (1, 2, 3)]
    trace = joined(tmp_path, torch, by_us(*own))
    assert calls(trace, "seq", "completed_ns") == [(1, 2 * SECOND + 9), (2, 77 * SECOND), (3, 77 * SECOND)]
    assert [trace.table("frames").array("line")[site] for site in calls(trace, "site_id")] == [40, 40, 40]


def test_transfers_on_a_device_are_torchs_alone(tmp_path: Path) -> None:
    transfer: dict[str, Any] = {"profiling_name": "nccl:send 0->1", "is_p2p": True}
    torch = make_dump([make_entry(1, p2p_seq_id=1, **transfer)])
    trace = joined(tmp_path, torch, by_us(own_entry(1, p2p_seq_id=4, **transfer)))
    assert calls(trace, "p2p_seq") == [1]


def test_members_of_a_coalesced_call_stay_with_their_trailer(tmp_path: Path) -> None:
    member = make_entry(1, profiling_name="nccl:all_reduce")
    trailer = make_entry(1, profiling_name="nccl:coalesced", input_sizes=[], output_sizes=[], state="completed")
    own = [own_entry(1, profiling_name="nccl:all_reduce"), own_entry(1, profiling_name="nccl:all_reduce")]
    trace = joined(tmp_path, make_dump([member, member, trailer]), by_us(*own))
    assert calls(trace, "role") == ["member", "member", "batch"]


def test_groups_are_as_we_name_them(tmp_path: Path) -> None:
    trace = joined(tmp_path, by_torch(range(1, 3)), by_us(own_entry(1)))
    assert [(row["name"], row["members"]) for row in rows_of(trace, "group_config")] == [("0", "[0,1]")]
    assert [(row["origin"], row["size"]) for row in rows_of(trace, "groups")] == [("config", 2)]


def test_a_group_that_only_torch_names_is_kept(tmp_path: Path) -> None:
    torch = by_torch(range(1, 3), "nccl")
    torch["pg_config"] = {**CONFIG, "5": {"name": "5", "desc": "tp", "ranks": "[0, 1]"}}
    trace = joined(tmp_path, torch, by_us(own_entry(1)))
    assert [row["name"] for row in rows_of(trace, "group_config")] == ["5", "0"]


@pytest.mark.parametrize(("backend", "completed"), [("gloo", 3), ("nccl", 0)])
def test_counters_are_the_furthest_where_torch_does_not_watch(backend: str, completed: int, tmp_path: Path) -> None:
    own = own_entry(1, profiling_name=f"{backend}:all_reduce")
    trace = joined(tmp_path, by_torch(range(1, 4), backend), by_us(own, completed=3))
    (row,) = rows_of(trace, "group_status")
    assert (row["group_name"], row["last_completed"]) == ("0", completed)


def test_a_dump_of_an_older_run_is_not_joined(tmp_path: Path) -> None:
    own = [own_entry(seq, time_created_ns=(500 + seq) * SECOND) for seq in (1, 2)]
    trace = joined(tmp_path, by_torch(range(1, 5)), by_us(*own, written_s=600))
    assert calls(trace, "seq") == [1, 2]
    assert {row["status"] for row in rows_of(trace)} == {"read", "duplicate"}


def test_a_ring_that_has_gone_round_since_our_last_call_is_joined(tmp_path: Path) -> None:
    """A job whose calls are all made by DDP: we saw its first barrier alone."""
    trace = joined(tmp_path, by_torch(range(20, 24)), by_us(own_entry(1), written_s=30))
    assert calls(trace, "seq") == [1, 20, 21, 22, 23]


@pytest.mark.parametrize("name", ["nccl_trace_rank_0", "rankscope_trace_rank_0"])
def test_a_dump_without_a_partner_stays_as_it_is(name: str, tmp_path: Path) -> None:
    is_own = name.startswith("rankscope")
    dump = by_us(own_entry(1), own_entry(2)) if is_own else by_torch(range(1, 3))
    write_dump(tmp_path / name, dump)
    trace = load(tmp_path)
    (rank,) = rows_of(trace, "ranks")
    assert rank["recorder"] == ("rankscope" if is_own else "torch")
    assert calls(trace, "state") == ["completed" if is_own else "scheduled"] * 2
    assert calls(trace, "status") == ["done", "done"]


def test_a_rank_with_torchs_dump_alone_has_not_failed(tmp_path: Path) -> None:
    """Our states beside it must not make torch's retired calls look like failures."""
    write_dump(tmp_path / "nccl_trace_rank_1", by_torch(range(1, 5)))
    joined(tmp_path, by_torch(range(1, 5)), by_us(*(own_entry(seq) for seq in range(1, 5))))
    report = report_of(tmp_path)
    assert [finding.code for finding in report.findings] == []


def test_a_rank_that_hangs_on_gloo_is_found(tmp_path: Path) -> None:
    for rank, n_calls in ((0, 4), (1, 3)):
        own = [own_entry(seq, is_done=seq < 4) for seq in range(1, n_calls + 1)]
        torch = by_torch(range(1, n_calls + 1))
        torch["entries"][-1]["retired"] = n_calls < 4
        counters = {"last_enqueued_collective": n_calls, "last_completed_collective": 3}
        write_dump(tmp_path / f"nccl_trace_rank_{rank}", {**torch, "pg_status": {"0": counters}})
        write_dump(tmp_path / f"rankscope_trace_rank_{rank}", by_us(*own, pg_status={"3": counters}))
    found = verdict(report_of(tmp_path))
    assert (found.rule, found.ranks) == ("rank-stuck", (1,))
    assert found.evidence.waiting_ns == 25 * SECOND  # until our dump was written
