"""Calls of several sources in one table, and the time between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from analyze.building import MS, START_NS, job
from rankscope.analyze.stages import table_makers
from rankscope.model.tables import Table, Trace

# Two pairs of ranks; the profiler says neither group nor peer of what gloo did.
PROGRAMS = {
    rank: [
        f"dp:{1 + rank % 2} all_reduce [8] f32 done @loop.py:10 +10 =14",
        f"tp:{3 + rank // 2} all_reduce [8] f32 done @loop.py:11 +20 =24",
        f"dp:{1 + rank % 2} {'send>1' if rank < 2 else 'recv<0'} [8] f32 done @loop.py:12 +30 =34",
    ]
    for rank in range(4)
}
OPS = [["all_reduce", "all_reduce", "send" if rank < 2 else "recv"] for rank in range(4)]


MAIN_TID = 9
OPERATORS = {"all_reduce": "c10d::allreduce_", "reduce_scatter": "c10d::_reduce_scatter_base_", "send": "c10d::send"}
OPERATORS |= {"recv": "c10d::recv_"}


class Run(NamedTuple):
    """What gloo did for a call, and when the operator ran that called it; milliseconds."""

    rank: int
    op: str
    called: float
    start: float
    end: float


def with_runs(trace: Trace, runs: Sequence[Run]) -> Trace:
    """The calls as a profiler sees them that ran without an observer."""
    comms, ops = [], []
    for number, run in enumerate(runs):
        is_p2p = run.op in ("send", "recv")
        key = {"file_id": 10 + run.rank, "rank": run.rank}
        ran_as = "all_reduce" if run.op == "reduce_scatter" else run.op
        size = {"dtype": "Float", "n_in": 8, "n_out": 8, "n_bytes": 32}
        tid = {"tid": MAIN_TID if is_p2p else 1}
        times = {"start_ns": START_NS + int(run.start * MS), "duration_ns": int((run.end - run.start) * MS)}
        comms.append({**key, **size, **tid, **times, "comm_id": number, "op": ran_as, "is_p2p": is_p2p})
        called = {"start_ns": START_NS + int(run.called * MS), "duration_ns": MS // 5}
        name = {"op_id": number, "name": OPERATORS[run.op], "tid": MAIN_TID, "concrete_inputs": '["","","1","0"]'}
        ops.append({**key, **called, **name})
    trace.makers = table_makers()
    files = sorted({run.rank for run in runs})
    trace.tables["comms"] = Table.from_rows("comms", comms)
    trace.tables["ops"] = Table.from_rows("ops", ops)
    trace.tables["profiles"] = Table.from_rows("profiles", [{"file_id": 10 + rank, "rank": rank} for rank in files])
    return trace


def profiled(times: dict[int, tuple[float, float]]) -> Trace:
    """The calls of PROGRAMS: start and end by number of the call."""
    runs = [Run(rank, OPS[rank][number], 10 + 10 * number, *times[number]) for rank in range(4) for number in times]
    return with_runs(job(PROGRAMS), runs)


def test_a_profiled_call_has_group_peer_and_line_of_its_twin_in_the_recorder() -> None:
    trace = profiled({0: (11, 13), 1: (21, 23), 2: (30.1, 33)})
    told = "SELECT rank, row_id, group_ranks, peer, site FROM calls WHERE source = '{}' ORDER BY rank, row_id"
    by_recorder = trace.sql(told.format("flight_recorder").replace("row_id, g", "row_number() OVER (), g", 1)).rows()
    by_profiler = trace.sql(told.format("kineto")).rows()
    assert [(row[0], *row[2:]) for row in by_profiler] == [(row[0], *row[2:]) for row in by_recorder]
    assert {row[2] for row in by_profiler} == {"[0,2]", "[1,3]", "[0,1]", "[2,3]"}
    assert [row[3] for row in by_profiler if row[3] is not None] == [2, 3, 0, 1]


def test_a_call_that_no_recorder_noted_at_the_time_has_no_twin() -> None:
    trace = with_runs(job(PROGRAMS), [Run(0, "all_reduce", 16, 17, 19)])
    assert trace.sql("SELECT op, group_id, record_id FROM call_twins").rows() == [("all_reduce", None, None)]


def test_of_calls_that_are_in_flight_together_the_group_is_unknown() -> None:
    """Two groups have one call each in flight when the first runs: either may be it. Later ones are clear again."""
    lines = ["dp:1 all_reduce [8] f32 done +10 =20", "tp:2 all_reduce [8] f32 done +11 =20"]
    later = ["dp:1 all_reduce [8] f32 done +30 =34"]
    calls = [(10, 12, 13), (11, 14, 15), (30, 31, 32)]
    trace = with_runs(
        job({rank: [*lines, *later] for rank in range(2)}),
        [Run(rank, "all_reduce", *call) for rank in range(2) for call in calls],
    )
    known = trace.sql("SELECT rank, list(record_id ORDER BY row_id) FROM call_twins GROUP BY ALL ORDER BY ALL").rows()
    assert known == [(rank, [None, None, 2]) for rank in range(2)]
    groups = trace.sql("SELECT row_id % 3, group_name FROM calls WHERE source = 'kineto' ORDER BY rank, row_id").rows()
    assert groups == [(0, None), (1, None), (2, "1")] * 2


def test_what_gloo_runs_as_all_reduce_is_what_was_called() -> None:
    lines = ["dp:1 reduce_scatter [8] f32 done +10 =20", "dp:1 all_reduce [8] f32 done +30 =40"]
    runs = [
        Run(rank, op, at, at + 1, at + 2)
        for rank in range(2)
        for op, at in (("reduce_scatter", 10), ("all_reduce", 30))
    ]
    trace = with_runs(job(dict.fromkeys(range(2), lines)), runs)
    ops = trace.sql("SELECT DISTINCT op, record_id FROM calls WHERE source = 'kineto' ORDER BY ALL").rows()
    assert ops == [("all_reduce", 1), ("reduce_scatter", 0)]


@pytest.mark.parametrize("source", ["flight_recorder", "kineto"])
def test_segments_are_equal_on_ranks_that_made_the_same_calls(source: str) -> None:
    trace = profiled({0: (11, 13), 1: (21, 23), 2: (30.1, 33)})
    rows = trace.sql(
        f"SELECT segment_key, list(rank ORDER BY rank), min(before_site), min(after_site), min(end_ns - start_ns) "
        f"FROM segments WHERE source = '{source}' AND after_op = 'all_reduce' GROUP BY 1 ORDER BY 2"
    ).rows()
    between = (6 if source == "flight_recorder" else 8) * MS
    sites = [(before.partition(" ")[0], after.partition(" ")[0]) for _, _, before, after, _ in rows]
    assert [(row[1], row[4]) for row in rows] == [([0, 1], between), ([2, 3], between)]
    assert sites == [("loop.py:10", "loop.py:11")] * 2


def test_the_last_segment_of_a_rank_is_open() -> None:
    trace = job(PROGRAMS)
    trace.makers = table_makers()
    rows = trace.sql("SELECT rank, before_op, end_ns FROM segments WHERE after_row_id IS NULL ORDER BY rank").rows()
    assert rows == [(0, "send", None), (1, "send", None), (2, "recv", None), (3, "recv", None)]


def test_groups_of_the_profiler_are_those_of_the_recorder() -> None:
    trace = profiled({0: (11, 13), 1: (21, 23), 2: (30.1, 33)})
    groups = trace.sql("SELECT name, ranks, is_inferred FROM comm_groups ORDER BY name").rows()
    assert groups == [
        ("1", "[0, 2]", False),
        ("2", "[1, 3]", False),
        ("3", "[0, 1]", False),
        ("4", "[2, 3]", False),
    ]
