"""Flight Recorder dumps of every layout and encoding become the same tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankscope.errors import BadFileError
from rankscope.pipeline import load
from rankscope.read import flight_recorder
from rankscope.simulate import Noise
from read.dumps import (
    FRAME,
    assert_read_or_clearly_refused,
    hung_job,
    make_dump,
    make_entry,
    read_calls,
    read_entries,
    read_tables,
    report_of,
    rows_of,
    verdict,
    write_dump,
)

VERSIONS = ("1.0", "2.1", "2.4", "2.7", "2.10")


def without(entry: dict[str, Any], *fields: str) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name not in fields}


@pytest.mark.parametrize("as_json", [False, True], ids=["pickle", "json"])
@pytest.mark.parametrize("version", VERSIONS)
def test_every_layout_leads_to_the_culprit(version: str, as_json: bool, tmp_path: Path) -> None:
    hung_job(Noise(version=version)).write(tmp_path, as_json=as_json)
    report = report_of(tmp_path)
    assert verdict(report).rule == "op-mismatch"
    assert verdict(report).ranks == (2,)
    assert len(report.capture.ranks) == 4


@pytest.mark.parametrize("version", VERSIONS)
def test_every_layout_gives_the_columns_that_it_has(version: str, tmp_path: Path) -> None:
    newest, older = (hung_job(Noise(version=tag)).write(tmp_path / tag)[0] for tag in ("2.10", version))
    names = ["op", "seq", "input_sizes", "created_ns", "state", "stack_id", "group_name"]
    if version != "1.0":
        names += ["record_id", "op_id", "input_dtypes", "n_input_bytes", "completed_ns", "retired", "group_desc"]
    assert [{name: call[name] for name in names} for call in read_calls(older)] == [
        {name: call[name] for name in names} for call in read_calls(newest)
    ]
    assert read_tables(older)["ranks"].text("version").tolist() == [version]


def test_pickle_and_json_tell_the_same(tmp_path: Path) -> None:
    simulation = hung_job(Noise(timing=True))
    pickled, as_json = (simulation.write(tmp_path / str(flag), as_json=flag)[1] for flag in (False, True))
    frames = ("stack_id", "site_id")  # the JSON variant has none
    assert [without(call, *frames) for call in read_calls(as_json)] == [
        without(call, *frames) for call in read_calls(pickled)
    ]
    for table in ("group_config", "group_status", "ranks"):
        assert list(read_tables(as_json)[table].rows()) == list(read_tables(pickled)[table].rows())


def test_layouts_and_encodings_may_be_mixed_in_one_job(tmp_path: Path) -> None:
    for rank, version in enumerate(("2.10", "2.4", "2.7", "2.1")):
        paths = hung_job(Noise(version=version)).write(tmp_path / version, as_json=rank == 3, gzip=rank == 1)
        paths[rank].rename(tmp_path / paths[rank].name)
    for version in ("2.10", "2.4", "2.7", "2.1"):
        for path in (tmp_path / version).iterdir():
            path.unlink()
    report = report_of(tmp_path)
    assert report.capture.ranks == (0, 1, 2, 3)
    assert (verdict(report).rule, verdict(report).ranks) == ("op-mismatch", (2,))


def test_reading_imports_no_torch_and_no_database(tmp_path: Path) -> None:
    hung_job().write(tmp_path)
    script = (
        "import sys; from rankscope.pipeline import load, diagnose; "
        f"assert diagnose(load([{str(tmp_path)!r}])).findings; "
        "print([name for name in ('torch', 'duckdb') if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert ran.stdout.strip() == "[]"


def test_types_written_as_numbers_are_named(tmp_path: Path) -> None:
    numbered, unknown = read_entries(
        tmp_path,
        make_entry(1, input_dtypes=[15], output_dtypes=[6]),
        make_entry(2, input_dtypes=[99], output_dtypes=[-3]),
    )
    assert (numbered["input_dtypes"], numbered["output_dtypes"]) == ('["BFloat16"]', '["Float"]')
    assert (numbered["n_input_bytes"], numbered["n_output_bytes"]) == (64, 128)
    assert (unknown["input_dtypes"], unknown["n_input_bytes"]) == ('["99"]', -1)


def test_an_unknown_time_is_missing_in_both_encodings(tmp_path: Path) -> None:
    none, zero = read_entries(
        tmp_path,
        make_entry(1),
        make_entry(2, time_discovered_started_ns=0, time_discovered_completed_ns=0),
    )
    for call in (none, zero):
        assert (call["started_ns"], call["completed_ns"], call["duration_ns"]) == (-1, -1, -1)


def test_a_duration_is_kept_in_nanoseconds(tmp_path: Path) -> None:
    timed, untimed = read_entries(tmp_path, make_entry(1, duration_ms=1.5), make_entry(2))
    assert (timed["duration_ns"], untimed["duration_ns"]) == (1_500_000, -1)


@pytest.mark.parametrize(
    ("recorded", "op", "backend"),
    [
        ("nccl:_all_gather_base", "all_gather", "nccl"),
        ("gloo:all_reduce", "all_reduce", "gloo"),
        ("nccl2:all_reduce", "all_reduce", "nccl2"),
        ("custom:shuffle", "shuffle", "custom"),
        ("nccl:send 0->1", "send", "nccl"),
        ("recv 1<-?", "recv", ""),
        ("gloo:sparse_all_reduce", "sparse_all_reduce", "gloo"),
    ],
)
def test_operations_of_any_backend_are_kept(recorded: str, op: str, backend: str, tmp_path: Path) -> None:
    (call,) = read_entries(tmp_path, make_entry(1, profiling_name=recorded))
    assert (call["op"], call["backend"], call["name"]) == (op, backend, recorded)


def test_the_peer_of_a_transfer_comes_from_its_name(tmp_path: Path) -> None:
    sent, received, anyone = read_entries(
        tmp_path,
        make_entry(1, profiling_name="nccl:send 0->1", is_p2p=True),
        make_entry(2, profiling_name="nccl:recv 1<-0", is_p2p=True),
        make_entry(3, profiling_name="nccl:recv 1<-?", is_p2p=True),
    )
    assert [call["peer"] for call in (sent, received, anyone)] == [1, 0, -1]


def batch(seq: int, *names: str, **trailer: Any) -> list[dict[str, Any]]:
    """Members without a state of their own, and the trailer that has it."""
    shared = {"collective_seq_id": 4, "p2p_seq_id": seq}
    members = [
        make_entry(10 * seq + place, profiling_name=name, is_p2p=True, **shared) for place, name in enumerate(names)
    ]
    end = {"profiling_name": "nccl:coalesced", "input_sizes": [], "output_sizes": [], **shared, **trailer}
    return [*members, make_entry(10 * seq + 9, **end)]


def test_members_of_a_batch_take_their_state_from_the_trailer(tmp_path: Path) -> None:
    done = {"state": "completed", "retired": True, "time_discovered_completed_ns": 55}
    calls = read_entries(
        tmp_path,
        *batch(1, "nccl:send 0->1", "nccl:recv 0<-1", **done),
        *batch(2, "nccl:send 0->1"),
    )
    assert [call["role"] for call in calls] == ["member", "member", "batch", "member", "batch"]
    assert [call["state"] for call in calls] == ["completed"] * 3 + ["scheduled"] * 2
    assert [call["retired"] for call in calls] == [True] * 3 + [False] * 2
    assert [call["completed_ns"] for call in calls] == [55] * 3 + [-1] * 2
    assert all(call["is_p2p"] for call in calls), "torch records the trailer of transfers as if it were none"


def test_a_trailer_whose_members_the_ring_dropped_stays_alone(tmp_path: Path) -> None:
    before, trailer = read_entries(tmp_path, make_entry(1), *batch(2, state="completed"))
    assert (before["role"], before["state"]) == ("call", "scheduled")
    assert (trailer["role"], trailer["state"]) == ("batch", "completed")


@pytest.mark.parametrize("trailer", ["nccl:coalesced", "nccl:ALLGATHER_coalesced"])
def test_a_coalesced_group_is_one_collective_of_all_its_members(trailer: str, tmp_path: Path) -> None:
    shared = {"collective_seq_id": 5, "profiling_name": "nccl:_all_gather_base"}
    first, second, end = read_entries(
        tmp_path,
        make_entry(1, **shared, input_sizes=[[2]], output_sizes=[[8]]),
        make_entry(2, **shared, input_sizes=[[3]], output_sizes=[[12]], input_dtypes=["Half"]),
        make_entry(3, **{**shared, "profiling_name": trailer}, input_sizes=[], output_sizes=[], state="completed"),
    )
    assert (first["role"], second["role"], end["role"]) == ("member", "member", "batch")
    assert (first["state"], second["state"]) == ("completed", "completed")
    assert not end["is_p2p"]
    assert end["op"] == "all_gather_coalesced"
    assert json.loads(end["input_sizes"]) == [[2], [3]]
    assert json.loads(end["output_sizes"]) == [[8], [12]]
    assert json.loads(end["input_dtypes"]) == ["Float", "Half"]


def test_a_fused_call_is_no_trailer(tmp_path: Path) -> None:
    shared = {"collective_seq_id": 5}
    before, fused = read_entries(
        tmp_path, make_entry(1, **shared), make_entry(2, **shared, profiling_name="nccl:allreduce_coalesced")
    )
    assert (before["role"], fused["role"]) == ("call", "call")


def test_equal_stacks_are_stored_once_whether_shared_or_not(tmp_path: Path) -> None:
    other = {**FRAME, "line": 99}
    tables = read_tables(
        write_dump(
            tmp_path / "nccl_trace_rank_0",
            make_dump([make_entry(1), make_entry(2, frames=[dict(FRAME)]), make_entry(3, frames=[other, FRAME])]),
        )
    )
    assert tables["collectives"].array("stack_id").tolist() == [0, 0, 1]
    assert len(tables["frames"]) == 2


def test_the_site_is_the_innermost_frame_of_the_user(tmp_path: Path) -> None:
    library = {
        "name": "all_reduce",
        "filename": "/venv/lib/python3.11/site-packages/torch/distributed/c10d.py",
        "line": 5,
    }
    tables = read_tables(
        write_dump(
            tmp_path / "nccl_trace_rank_0",
            make_dump(
                [make_entry(1, frames=[library, FRAME]), make_entry(2, frames=[library]), make_entry(3, frames=[])]
            ),
        )
    )
    lines = tables["frames"].array("line").tolist()
    sites = tables["collectives"].array("site_id").tolist()
    assert [lines[site] if site >= 0 else None for site in sites] == [12, 5, None]


def test_dumps_without_stacks_are_read(tmp_path: Path) -> None:
    calls = read_entries(tmp_path, without(make_entry(1), "frames"), without(make_entry(2), "frames"))
    assert [call["site_id"] for call in calls] == [-1, -1]


def test_the_groups_and_counters_are_read(tmp_path: Path) -> None:
    config = {
        "0": {"name": "0", "desc": "default_pg", "ranks": "[3, 1, 2]"},
        "bad": {"name": "bad", "desc": "x", "ranks": "__import__('os').getpid()"},
        "odd": {"name": "odd", "desc": "y", "ranks": [0, 1]},
    }
    status = {
        "0": {"last_enqueued_collective": "7", "last_started_collective": -1, "last_completed_collective": 6},
        "not a number": {"last_enqueued_collective": 1},
        "1": None,
        "2": {"last_enqueued_collective": 1 << 80},
        "3": {"last_enqueued_collective": float("inf")},
        str(1 << 80): {"last_enqueued_collective": 1},
    }
    tables = read_tables(
        write_dump(tmp_path / "nccl_trace_rank_2", make_dump([make_entry(1)], pg_config=config, pg_status=status))
    )
    assert {row["name"]: row["members"] for row in tables["group_config"].rows()} == {"0": "[3,1,2]", "odd": "[0,1]"}
    (counters,) = tables["group_status"].rows()
    assert (counters["group_name"], counters["last_enqueued"], counters["last_completed"]) == ("0", 7, 6)


@pytest.mark.parametrize(("counted", "seq"), [(18, 14), (17, 14), (14, 13), (13, 12), (11, 10), (-1, -1)])
def test_counters_of_gloo_count_collectives_alone(counted: int, seq: int, tmp_path: Path) -> None:
    """gloo also counts sends and receives there, which it does not record: two after #12, two after #13."""
    numbers = {12: 13, 13: 14, 14: 17}
    entries = [
        make_entry(op_id, collective_seq_id=seq, op_id=op_id, profiling_name="gloo:all_reduce")
        for seq, op_id in numbers.items()
    ]
    status = {"0": {"last_enqueued_collective": counted, "last_completed_collective": -1}}
    tables = read_tables(write_dump(tmp_path / "nccl_trace_rank_2", make_dump(entries, pg_status=status)))
    (counters,) = tables["group_status"].rows()
    assert (counters["last_enqueued"], counters["last_completed"]) == (seq, -1)


def test_a_dump_without_calls_still_gives_its_counters(tmp_path: Path) -> None:
    dump = make_dump([])
    del dump["entries"]
    tables = read_tables(write_dump(tmp_path / "rank_1", dump))
    assert len(tables["collectives"]) == 0
    assert len(tables["group_status"]) == 1
    assert len(tables["ranks"]) == 1


def test_the_number_of_dropped_calls_is_the_first_record(tmp_path: Path) -> None:
    tables = read_tables(write_dump(tmp_path / "rank_1", make_dump([make_entry(41), make_entry(42)])))
    (rank,) = tables["ranks"].rows()
    assert (rank["n_calls"], rank["n_dropped"], rank["last_created_ns"]) == (2, 41, 43_000_000_000)


def test_a_cut_dump_gives_its_counters_and_oldest_calls(tmp_path: Path) -> None:
    path = hung_job().write(tmp_path)[0]
    whole = read_calls(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 3 // 4])
    tables = read_tables(path)
    kept = list(tables["collectives"].rows())
    assert 0 < len(kept) < len(whole)
    names = ("record_id", "op", "seq", "created_ns", "input_sizes", "group_name")
    assert [[call[name] for name in names] for call in kept] == [
        [call[name] for name in names] for call in whole[: len(kept)]
    ]
    assert len(tables["group_status"]) > 0
    (row,) = tables["files"].rows()
    assert row["status"] == "damaged"
    assert f"{len(kept):,} oldest calls" in row["problem"]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_cut_dump_never_makes_its_rank_the_culprit(suffix: str, tmp_path: Path) -> None:
    paths = hung_job(mesh=None).write(tmp_path, gzip=bool(suffix))
    content = paths[3].read_bytes()
    paths[3].write_bytes(content[: len(content) // 2])
    report = report_of(tmp_path)
    assert (verdict(report).rule, verdict(report).ranks) == ("op-mismatch", (2,))
    assert "D902" in {finding.code for finding in report.findings}


@pytest.mark.parametrize("content", [b'{"version": "2.10", "entries": [{"rec', b'{"pg_config": {}, "pg_status"'])
def test_cut_json_is_a_clear_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rank_0.json"
    path.write_bytes(content)
    with pytest.raises(BadFileError, match="truncated"):
        read_tables(path)


@pytest.mark.parametrize(
    "entries",
    [
        [1, 2, 3],
        "text",
        {"a": 1},
        [make_entry(1, collective_seq_id="x")],
        [make_entry(1, collective_seq_id=1 << 80)],
        [make_entry(1, input_sizes=7)],
        [make_entry(1, input_sizes=[[[1]]])],
        [make_entry(1, input_sizes=[["a"]])],
        [make_entry(1, process_group=(1, 2))],
        [make_entry(1, process_group=None)],
        [make_entry(1, profiling_name=["nccl:all_reduce"])],
        [make_entry(1, profiling_name=None)],
        [make_entry(1, frames=[None])],
        [make_entry(1, frames=7)],
        [make_entry(1, frames=[{"name": [1], "filename": {}, "line": "x"}])],
        [make_entry(1, input_dtypes=[None])],
        [make_entry(1, state=(1, (2, (3,))))],
        [make_entry(1, timeout_ms="soon")],
        [make_entry(1, duration_ms="long")],
        [make_entry(1, duration_ms=float("nan"))],
        [make_entry(1, duration_ms=1e300)],
        [make_entry(1, pg_id=1 << 40)],
        [make_entry(1, time_created_ns=None)],
        [{}],
        [{"profiling_name": 1.5, "time_created_us": "x"}],
    ],
    ids=lambda entries: repr(entries)[-60:] if len(repr(entries)) < 40 else None,
)
def test_odd_entries_give_rows_or_a_clear_error(entries: Any, tmp_path: Path) -> None:
    path = write_dump(tmp_path / "nccl_trace_rank_0", make_dump([], entries=entries))
    assert_read_or_clearly_refused(path)


odd_values = pytest.mark.parametrize("value", [None, 7, "text", [1], {"a": {"b": [1]}}, {1: 2}], ids=repr)


@pytest.mark.parametrize("field", ["version", "pg_config", "pg_status", "comm_lib_version"])
@odd_values
def test_odd_top_level_values_cost_only_themselves(field: str, value: Any, tmp_path: Path) -> None:
    tables = read_tables(write_dump(tmp_path / "rank_0", make_dump([make_entry(1)], **{field: value})))
    assert len(tables["collectives"]) == 1


@odd_values
def test_without_a_list_of_entries_the_file_is_damaged(value: Any, tmp_path: Path) -> None:
    """To go on without them would compare the rank as one that made no call."""
    with pytest.raises(BadFileError, match="where a dump has its entries"):
        read_tables(write_dump(tmp_path / "rank_0", make_dump([make_entry(1)], entries=value)))


@pytest.mark.parametrize("wrong", [None, "text", 7, []], ids=repr)
def test_one_entry_of_a_wrong_type_is_damage(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="where a dump has its entries"):
        read_tables(write_dump(tmp_path / "rank_0", make_dump([make_entry(1), wrong, make_entry(2)])))


def test_sizes_that_are_true_or_none_are_damage(tmp_path: Path) -> None:
    for number, size in enumerate((True, None, 1.5)):
        with pytest.raises(BadFileError, match="not in the format of a dump"):
            read_tables(write_dump(tmp_path / f"rank_{number}", make_dump([make_entry(1, input_sizes=[[size]])])))


def test_a_long_member_list_is_never_evaluated() -> None:
    assert flight_recorder.parse_ranks("[0, 2, 1]") == [0, 2, 1]
    assert flight_recorder.parse_ranks([0, 2, 1]) == [0, 2, 1]
    for odd in ("range(4)", "[0, -1]", "[true]", "[1e3]", "[0", "", None, 7, [1.5], [[0]]):
        assert flight_recorder.parse_ranks(odd) is None, odd


def test_the_tables_of_a_capture_hold_all_ranks(tmp_path: Path) -> None:
    hung_job().write(tmp_path)
    trace = load([tmp_path])
    assert {row["rank"] for row in rows_of(trace, "collectives")} == {0, 1, 2, 3}
    assert {row["status"] for row in rows_of(trace)} == {"read"}
    assert all(msgspec.json.decode(call["input_sizes"]) is not None for call in rows_of(trace, "collectives"))
