"""A call that ended for some of its ranks, and what is only inferred about the others; types that nobody recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from analyze.building import alarms, column, findings, job, root_cause, verdict
from rankscope.pipeline import load
from read.dumps import make_dump, make_entry, report_of, write_dump
from read.dumps import verdict as first_finding

WORLD = {"pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}, "pg_status": {}}


def test_the_rank_that_did_not_complete_a_broadcast_is_named() -> None:
    done, waiting = [":0 all_reduce done", ":0 broadcast done"], [":0 all_reduce done", ":0 broadcast"]
    trace = job({0: done, 1: done, 2: done, 3: waiting})
    assert verdict(trace) == ("collective-stalled", (3,), "likely")
    assert "rank 3 has not completed broadcast [8] f32" in root_cause(trace).title
    assert "but ranks 0-2 have" in root_cause(trace).title


def test_peers_that_went_on_wait_for_the_rank_that_did_not_complete() -> None:
    done, waiting = [":0 broadcast done", ":0 all_reduce"], [":0 broadcast", ":0 all_reduce"]
    trace = job({0: done, 1: done, 2: done, 3: waiting})
    assert verdict(trace) == ("collective-stalled", (3,), "likely")
    assert root_cause(trace).evidence.n_blocked == 3


def test_a_broadcast_before_a_collective_that_ended_has_ended() -> None:
    """Calls of a group run one after another: rank 3 has only not noticed."""
    done, unnoticed = [":0 broadcast done", ":0 all_reduce done"], [":0 broadcast", ":0 all_reduce"]
    trace = job({0: done, 1: done, 2: done, 3: unnoticed})
    assert alarms(trace) == []
    assert column(trace, "collectives", "status") == ["done"] * 8
    assert column(trace, "collectives", "status_inferred") == [False] * 6 + [True] * 2
    [told] = findings(trace)
    assert (told.code, told.severity) == ("H111", "info")
    assert told.title.startswith("rank 3 did not record that broadcast [8] f32 (seq 1")


def test_a_rank_that_lived_on_should_have_seen_the_end() -> None:
    done = [":0 all_reduce done +0 =1", ":1 all_reduce done +5000 =5001"]
    stuck = [":0 all_reduce +0", ":1 all_reduce done +5000 =5001"]
    trace = job({0: done, 1: done, 2: done, 3: stuck})
    assert verdict(trace) == ("collective-stalled", (3,), "likely")


def test_where_all_wait_the_rank_without_the_end_before_is_pointed_out() -> None:
    done, behind = [":0 all_reduce done", ":0 all_reduce"], [":0 all_reduce", ":0 all_reduce"]
    cause = root_cause(job({0: done, 1: done, 2: done, 3: behind}))
    assert cause.ranks == (0, 1, 2, 3)
    assert "rank 3 did not record that seq 1 completed, but the other ranks did: check it first" in cause.evidence.notes


def test_retired_alone_is_no_completion() -> None:
    """gloo lets go of calls that failed, too."""
    trace = job({rank: [":0 broadcast gloo" + (" done" if rank else "")] for rank in range(4)})
    assert verdict(trace)[:2] == ("collective-stalled", (0, 1, 2, 3))


def _entries(rank: int, *, untyped: frozenset[int], **last: Any) -> list[dict[str, Any]]:
    ended = {"state": "completed", "retired": True}
    entries = [make_entry(seq, **ended, time_discovered_completed_ns=10**9 * (seq + 2)) for seq in (1, 2)]
    entries.append(make_entry(3, **last))
    if rank in untyped:
        for entry in entries:
            del entry["input_dtypes"], entry["output_dtypes"]
    return entries


def _job(folder: Path, programs: dict[int, list[dict[str, Any]]]) -> Path:
    for rank, entries in programs.items():
        write_dump(folder / f"nccl_trace_rank_{rank}", make_dump(entries, **WORLD))
    return folder


def test_a_type_that_is_not_recorded_does_not_hide_the_rank_that_never_joined(tmp_path: Path) -> None:
    programs = {rank: _entries(rank, untyped=frozenset({1})) for rank in range(4)}
    programs[2].pop()
    finding = first_finding(report_of(_job(tmp_path, programs)))
    assert (finding.rule, finding.ranks) == ("rank-stuck", (2,))
    assert set(load([tmp_path]).table("matches").array("n_signatures").tolist()) == {1}


def test_another_type_is_told_beside_one_that_is_not_recorded(tmp_path: Path) -> None:
    long = {"input_dtypes": ["Long"], "output_dtypes": ["Long"]}
    programs = {rank: _entries(rank, untyped=frozenset({1}), **(long if rank == 0 else {})) for rank in range(4)}
    finding = first_finding(report_of(_job(tmp_path, programs)))
    assert (finding.rule, finding.ranks, finding.certainty) == ("dtype-mismatch", (0,), "certain")
    assert finding.title == "rank 0 called all_reduce with i64 where 2 of its 3 peers passed f32"


def test_ranks_without_types_have_no_vote(tmp_path: Path) -> None:
    long = {"input_dtypes": ["Long"], "output_dtypes": ["Long"]}
    programs = {rank: _entries(rank, untyped=frozenset({1, 2}), **(long if rank == 0 else {})) for rank in range(4)}
    finding = first_finding(report_of(_job(tmp_path, programs)))
    assert (finding.rule, finding.certainty) == ("dtype-mismatch", "likely")
    assert {0, 3} <= set(finding.ranks)


def test_a_transfer_fits_a_side_that_records_no_type(tmp_path: Path) -> None:
    transfer = {"is_p2p": True, "p2p_seq_id": 1, "collective_seq_id": 1}
    send, receive = (make_entry(2, profiling_name=f"nccl:{name}", **transfer) for name in ("send 0->1", "recv 1<-0"))
    del receive["input_dtypes"], receive["output_dtypes"]
    assert "mismatch" not in first_finding(report_of(_job(tmp_path, {0: [send], 1: [receive]}))).rule
