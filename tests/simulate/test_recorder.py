"""The dumps look as torch would have written them, whatever the noise."""

from __future__ import annotations

import gzip
import io
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from rankscope.simulate import Fault, JobSpec, Mesh, Noise, simulate
from rankscope.simulate.sites import EXAMPLE
from simulate.dump_reading import Dump, collectives_on, dumps_of, own_location, pending, works

TIMEOUT_NS = 600_000_000_000


class NothingAllowed(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise AssertionError(f"the dump needs {module}.{name}")


def test_pickle_has_the_documented_shape(tmp_path: Path) -> None:
    paths = simulate(JobSpec(Mesh(2, 2, 2)), Fault("stall")).write(tmp_path)
    assert [path.name for path in paths] == [f"nccl_trace_rank_{rank}" for rank in range(8)]
    for rank, path in enumerate(paths):
        content = path.read_bytes()
        assert content[:2] == b"\x80\x02"
        dump = NothingAllowed(io.BytesIO(content)).load()
        assert list(dump) == ["version", "pg_config", "comm_lib_version", "pg_status", "entries"]
        assert dump["version"] == "2.10"
        assert set(dump["pg_config"]["0"]) == {"name", "desc", "ranks"}
        names = {(config["name"], config["desc"]) for config in dump["pg_config"].values()}
        assert all(rank in json.loads(config["ranks"]) for config in dump["pg_config"].values())
        assert {entry["process_group"] for entry in dump["entries"]} == names
        assert {str(entry["pg_id"]) for entry in dump["entries"]} == set(dump["pg_status"])
        for entry in dump["entries"]:
            check_entry(entry)


def check_entry(entry: Dump) -> None:
    expected: dict[str, type | tuple[type, ...]] = {
        **dict.fromkeys(("record_id", "pg_id", "collective_seq_id", "p2p_seq_id", "op_id", "timeout_ms"), int),
        **dict.fromkeys(("thread_name", "thread_id", "profiling_name", "state"), str),
        **dict.fromkeys(("input_sizes", "output_sizes", "input_dtypes", "output_dtypes", "frames"), list),
        **dict.fromkeys(("time_discovered_started_ns", "time_discovered_completed_ns"), (int, type(None))),
        **dict.fromkeys(("retired", "is_p2p"), bool),
        "time_created_ns": int,
        "process_group": tuple,
    }
    assert set(entry) == set(expected)
    for name, kind in expected.items():
        assert isinstance(entry[name], kind), name
    assert 4 <= len(entry["frames"]) <= 12
    assert "/torch/" in entry["frames"][0]["filename"]
    if entry["state"] == "completed":
        assert 0 < entry["time_discovered_completed_ns"] - entry["time_created_ns"] < 1e9
    else:
        assert entry["state"] == "scheduled"
        assert entry["time_discovered_completed_ns"] is None


def test_numbers_count_per_rank_and_per_group() -> None:
    for _, dump in simulate(JobSpec(Mesh(2, 2, 2), steps=5)).dumps():
        assert [entry["record_id"] for entry in dump["entries"]] == list(range(len(dump["entries"])))
        last: dict[int, Dump] = {}
        for entry in works(dump):
            before = last.get(entry["pg_id"], {"collective_seq_id": 0, "p2p_seq_id": 0, "op_id": 0})
            is_transfer = entry["is_p2p"] or entry["profiling_name"] == "nccl:coalesced"
            assert entry["collective_seq_id"] == before["collective_seq_id"] + (not is_transfer)
            assert entry["p2p_seq_id"] == before["p2p_seq_id"] + is_transfer
            assert entry["op_id"] > before["op_id"]
            last[entry["pg_id"]] = entry


def test_a_batch_is_its_members_and_a_trailer() -> None:
    dumps = dumps_of(simulate(JobSpec(Mesh(1, 1, 3), steps=1)))
    entries = [entry for entry in dumps[1]["entries"] if entry["process_group"][1] == "pp"]
    forward = ["recv 1<-0", "send 1->2"] * 2
    backward = ["recv 1<-2", "coalesced", "send 1->0", "recv 1<-2", "coalesced", "send 1->0", "coalesced"]
    assert [entry["profiling_name"] for entry in entries] == [f"nccl:{name}" for name in forward + backward]
    assert [entry["p2p_seq_id"] for entry in entries] == [1, 2, 3, 4, 5, 5, 6, 6, 6, 7, 7]
    assert [entry["op_id"] for entry in entries] == [1, 2, 3, 4, 5, 5, 6, 7, 7, 8, 8]
    assert {entry["collective_seq_id"] for entry in entries} == {0}
    for entry in entries[4:]:
        is_trailer = entry["profiling_name"] == "nccl:coalesced"
        assert entry["is_p2p"] is not is_trailer
        assert entry["state"] == ("completed" if is_trailer else "scheduled")
        assert entry["retired"] is is_trailer
        assert bool(entry["input_sizes"]) is not is_trailer


@pytest.mark.slow
@pytest.mark.parametrize("ring", [1, 7, 30])
def test_ring_keeps_the_last_entries_and_the_status_survives(ring: int) -> None:
    spec, fault = JobSpec(Mesh(2, 2, 2)), Fault("stuck", rank=3, step=6)
    whole, wrapped = dumps_of(simulate(spec, fault)), dumps_of(simulate(spec, fault, Noise(ring=ring)))
    for rank, dump in wrapped.items():
        assert dump["entries"] == whole[rank]["entries"][-ring:]
        assert dump["pg_status"] == whole[rank]["pg_status"]
        assert dump["pg_config"] == whole[rank]["pg_config"]


def test_status_is_the_last_of_each_group() -> None:
    for _, dump in simulate(JobSpec(Mesh(4, 2, 1), run_ahead=4), Fault("stall", step=3)).dumps():
        for pg_id, status in dump["pg_status"].items():
            calls = [entry for entry in dump["entries"] if str(entry["pg_id"]) == pg_id]
            done = [entry["collective_seq_id"] for entry in calls if entry["state"] == "completed"]
            assert status["last_enqueued_collective"] == calls[-1]["collective_seq_id"]
            assert status["last_completed_collective"] == max(done, default=-1)
            assert status["last_started_collective"] == -1


def test_group_names_agree_across_ranks_and_local_ids_do_not() -> None:
    dumps = dumps_of(simulate(JobSpec(Mesh(2, 2, 1), steps=1)))
    members: dict[str, set[str]] = {}
    for dump in dumps.values():
        assert [config["desc"] for config in dump["pg_config"].values()] == ["default_pg", "tp", "dp"]
        assert sorted(dump["pg_status"]) == ["0", "1", "2"]
        for name, config in dump["pg_config"].items():
            members.setdefault(name, set()).add(config["ranks"])
    assert members == {"0": {"[0, 1, 2, 3]"}, "1": {"[0, 1]"}, "2": {"[2, 3]"}, "3": {"[0, 2]"}, "4": {"[1, 3]"}}


def test_a_group_that_was_never_used_is_absent() -> None:
    seeds = (simulate(JobSpec(Mesh(2, 2, 1), seed=seed), Fault("stuck", rank=3, step=0)) for seed in range(40))
    early = next(simulation for simulation in seeds if simulation.truth.group_desc == "tp")
    dump = dumps_of(early)[2]
    assert [config["desc"] for config in dump["pg_config"].values()] == ["tp"]
    assert list(dump["pg_status"]) == ["1"]


def test_timing_adds_starts_and_durations() -> None:
    simulation = simulate(JobSpec(Mesh(4, 1, 1), run_ahead=6), Fault("stuck", step=3), Noise(timing=True))
    states = set()
    for _, dump in simulation.dumps():
        for entry in dump["entries"]:
            states.add(entry["state"])
            assert ("duration_ms" in entry) == (entry["state"] == "completed")
            assert (entry["time_discovered_started_ns"] is None) == (entry["state"] == "scheduled")
        waiting = [entry["state"] for entry in pending(dump)]
        assert waiting == ["started", *["scheduled"] * (len(waiting) - 1)][: len(waiting)]
        assert all(status["last_started_collective"] >= 0 for status in dump["pg_status"].values())
    assert states == {"scheduled", "started", "completed"}


def test_abort_makes_stuck_calls_look_completed() -> None:
    simulation = simulate(JobSpec(Mesh(4, 2, 1), run_ahead=2), Fault("stall"), Noise(abort=True))
    late = 0
    for _, dump in simulation.dumps():
        for entry in dump["entries"]:
            assert entry["state"] == "completed"
            assert entry["retired"]
            late += entry["time_discovered_completed_ns"] - entry["time_created_ns"] > TIMEOUT_NS
    assert late >= 8


def test_uneven_state_hides_some_completions_only() -> None:
    spec, fault = JobSpec(Mesh(8, 2, 1)), Fault("stuck", rank=5)
    plain = dumps_of(simulate(spec, fault))
    uneven = dumps_of(simulate(spec, fault, Noise(uneven_state=True)))
    n_more = {rank: len(pending(uneven[rank])) - len(pending(plain[rank])) for rank in plain}
    assert 0 in n_more.values()
    assert 1 <= max(n_more.values()) <= 3
    assert n_more[5] == 0


def test_clock_skew_is_constant_per_host() -> None:
    spec = JobSpec(Mesh(4, 2, 1), ranks_per_host=2)
    plain, skewed = dumps_of(simulate(spec)), dumps_of(simulate(spec, noise=Noise(clock_skew_ms=500)))
    offsets = []
    for rank in range(8):
        pairs = zip(plain[rank]["entries"], skewed[rank]["entries"], strict=True)
        (offset,) = {b["time_created_ns"] - a["time_created_ns"] for a, b in pairs}
        offsets.append(offset)
    assert offsets[0::2] == offsets[1::2]
    assert len(set(offsets)) == 4
    assert all(abs(offset) <= 500_000_000 for offset in offsets)


@pytest.mark.parametrize(
    ("version", "top", "absent", "present"),
    [
        ("2.7", {"version", "pg_config", "nccl_version", "pg_status", "entries"}, {"thread_id"}, {"timeout_ms"}),
        ("2.4", {"version", "pg_config", "pg_status", "entries"}, {"thread_name"}, {"is_p2p", "input_dtypes"}),
        ("2.1", {"version", "pg_config", "entries"}, {"is_p2p", "timeout_ms"}, {"p2p_seq_id", "input_dtypes"}),
        ("1.0", {"version", "entries"}, {"record_id", "op_id", "collective_seq_id", "retired"}, {"seq_id", "frames"}),
    ],
)
def test_older_versions_lack_what_came_later(version: str, top: set[str], absent: set[str], present: set[str]) -> None:
    for _, dump in simulate(JobSpec(Mesh(1, 2, 2)), noise=Noise(version=version)).dumps():
        assert dump["version"] == version
        assert set(dump) == top
        for entry in dump["entries"]:
            assert present <= set(entry)
            assert not absent & set(entry)
        has_transfers = any("send" in entry["profiling_name"] for entry in dump["entries"])
        assert has_transfers == (version != "1.0")
        dtypes = {dtype for entry in dump["entries"] for dtype in entry.get("input_dtypes", ())}
        assert dtypes == {"2.1": {6, 15}, "1.0": set()}.get(version, {"Float", "BFloat16"})


def test_mixed_versions_alternate() -> None:
    dumps = dumps_of(simulate(JobSpec(Mesh(4, 1, 1)), noise=Noise(version="mixed")))
    assert [dump["version"] for dump in dumps.values()] == ["2.10", "2.7", "2.10", "2.7"]


def test_json_variant(tmp_path: Path) -> None:
    simulation = simulate(JobSpec(Mesh(2, 1, 1)), Fault("stuck", rank=1, step=0))
    for path, (rank, dump) in zip(simulation.write(tmp_path, "rank_", as_json=True), simulation.dumps(), strict=True):
        assert path.name == f"rank_{rank}.json"
        loaded = json.loads(path.read_text())
        assert loaded["nccl_comm_state"] == {}
        assert ("entries" in loaded) == bool(dump["entries"])
        assert all(isinstance(seq, str) for status in loaded["pg_status"].values() for seq in status.values())
        for entry in loaded.get("entries", ()):
            assert "frames" not in entry
            assert isinstance(entry["process_group"], list)
            assert entry["time_discovered_started_ns"] == 0


def test_json_leaves_out_an_empty_list_of_entries(tmp_path: Path) -> None:
    seeds = (simulate(JobSpec(Mesh(2, 1, 1), steps=1, seed=seed), Fault("stuck", rank=0)) for seed in range(40))
    empty = next(simulation for simulation in seeds if not dumps_of(simulation)[0]["entries"])
    assert empty.truth.location is None
    paths = empty.write(tmp_path, as_json=True)
    assert "entries" not in json.loads(paths[0].read_text())


def test_file_names_and_compression(tmp_path: Path) -> None:
    simulation = simulate(JobSpec(Mesh(4, 1, 1), steps=2, ranks_per_host=2))
    plain = simulation.write(tmp_path / "plain")
    paths = simulation.write(tmp_path / "packed", host_in_name=True, gzip=True)
    assert [path.name for path in paths] == [
        "nccl_trace_rank_node00_0.gz",
        "nccl_trace_rank_node00_1.gz",
        "nccl_trace_rank_node01_2.gz",
        "nccl_trace_rank_node01_3.gz",
    ]
    assert [gzip.decompress(path.read_bytes()) for path in paths] == [path.read_bytes() for path in plain]


def test_locations_point_at_the_statement_that_was_called() -> None:
    statements = {
        "all_reduce": "dist.all_reduce(",
        "_all_gather_base": "dist.all_gather_into_tensor(",
        "all_reduce_barrier": "dist.barrier(",
        "coalesced": "dist.batch_isend_irecv(",
        "send": ("dist.send(", "dist.batch_isend_irecv("),
        "recv": ("dist.recv(", "dist.batch_isend_irecv("),
    }
    seen = set()
    for _, dump in simulate(JobSpec(Mesh(2, 2, 2), steps=4)).dumps():
        for entry in dump["entries"]:
            op = entry["profiling_name"].partition(":")[2].partition(" ")[0]
            file, line, _ = own_location(entry)
            assert Path(file).parent == EXAMPLE
            source = Path(file).read_text().splitlines()[line - 1]
            expected = statements[op]
            assert any(text in source for text in ([expected] if isinstance(expected, str) else expected))
            seen.add(op)
    assert seen == set(statements)


def test_buckets_differ_in_size_and_share_a_line() -> None:
    dump = dumps_of(simulate(JobSpec(Mesh(2, 1, 1), steps=1, buckets=5)))[0]
    calls = list(collectives_on(dump, "dp").values())
    assert len({str(call["input_sizes"]) for call in calls}) == 5
    assert len({own_location(call) for call in calls}) == 1
