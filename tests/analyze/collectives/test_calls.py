"""Calls of several sources in one table, and the time between them."""

from __future__ import annotations

import numpy as np
import pytest

from analyze.building import MS, START_NS, job
from rankscope.analyze.stages import table_makers
from rankscope.model.tables import MISSING, Table, Trace

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


def profiled(times: dict[int, tuple[int, int]], tids: tuple[int, ...] = (1, 2, 9)) -> Trace:
    """The same calls as a profiler sees them: start and end in milliseconds by number of the call."""
    trace = job(PROGRAMS)
    trace.makers = table_makers()
    rows = [
        {
            "file_id": 10 + rank,
            "rank": rank,
            "comm_id": number,
            "op": OPS[rank][number],
            "is_p2p": number == 2,
            "dtype": "Float",
            "n_in": 8,
            "n_out": 8,
            "n_bytes": 32,
            "tid": tids[number],
            "start_ns": START_NS + start * MS,
            "duration_ns": (end - start) * MS,
        }
        for rank in range(4)
        for number, (start, end) in times.items()
    ]
    trace.tables["comms"] = Table.from_rows("comms", rows)
    trace.tables["profiles"] = Table.from_rows("profiles", [{"file_id": 10 + rank, "rank": rank} for rank in range(4)])
    return trace


def test_a_profiled_call_has_group_peer_and_line_of_its_twin_in_the_recorder() -> None:
    trace = profiled({0: (11, 13), 1: (21, 23), 2: (31, 33)})
    told = "SELECT rank, row_id, group_ranks, peer, site FROM calls WHERE source = '{}' ORDER BY rank, row_id"
    by_recorder = trace.sql(told.format("flight_recorder").replace("row_id, g", "row_number() OVER (), g", 1)).rows()
    by_profiler = trace.sql(told.format("kineto")).rows()
    assert [(row[0], *row[2:]) for row in by_profiler] == [(row[0], *row[2:]) for row in by_recorder]
    assert {row[2] for row in by_profiler} == {"[0,2]", "[1,3]", "[0,1]", "[2,3]"}
    assert [row[3] for row in by_profiler if row[3] is not None] == [2, 3, 0, 1]


def test_a_call_outside_of_all_recorded_ones_has_no_twin() -> None:
    trace = profiled({0: (15, 19)})
    assert not trace.sql("FROM call_twins").rows()


def test_the_thread_decides_where_two_calls_are_possible_at_the_time() -> None:
    trace = profiled({0: (11, 13), 1: (21, 23)})
    calls = trace.table("collectives")
    ends = calls.array("completed_ns").copy()
    ends[calls.text("group_desc").equals("dp") & ~calls.array("is_p2p")] = START_NS + 24 * MS
    trace.tables["collectives"] = calls.replaced({"completed_ns": ends})
    twins = trace.sql("SELECT comm_id, description FROM call_twins JOIN groups USING (group_id) ORDER BY ALL").rows()
    assert twins == [(0, "dp")] * 4 + [(1, "tp")] * 4


@pytest.mark.parametrize(
    ("made_ms", "is_known"), [((10, 20, 40), True), ((8, 9, 40), False)], ids=["one by one", "ahead"]
)
def test_without_recorded_ends_the_newest_call_is_the_twin_if_none_was_made_ahead(
    made_ms: tuple[int, ...], is_known: bool
) -> None:
    line = "dp:1 all_reduce [8] f32 done gloo @loop.py:10 +{}"
    trace = job({rank: [line.format(at) for at in made_ms] for rank in range(2)})
    times = {0: (11, 13), 1: (21, 23), 2: (41, 43)}
    rows = [
        {
            "file_id": 10 + rank,
            "rank": rank,
            "comm_id": number,
            "op": "all_reduce",
            "n_in": 8,
            "n_out": 8,
            "n_bytes": 32,
            "tid": 1,
            "start_ns": START_NS + start * MS,
            "duration_ns": (end - start) * MS,
        }
        for rank in range(2)
        for number, (start, end) in times.items()
    ]
    calls = trace.table("collectives")
    trace.tables["collectives"] = calls.replaced({"completed_ns": np.full(len(calls), MISSING)})
    trace.tables["comms"] = Table.from_rows("comms", rows)
    trace.tables["profiles"] = Table.from_rows("profiles", [{"file_id": 10 + rank, "rank": rank} for rank in range(2)])
    twins = trace.sql("SELECT comm_id, record_id FROM call_twins ORDER BY ALL").rows()
    assert twins == [(number, number if is_known else None) for number in range(3) for _ in range(2)]


@pytest.mark.parametrize("source", ["flight_recorder", "kineto"])
def test_segments_are_equal_on_ranks_that_made_the_same_calls(source: str) -> None:
    trace = profiled({0: (11, 13), 1: (21, 23), 2: (31, 33)})
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
    trace = profiled({0: (11, 13), 1: (21, 23), 2: (31, 33)})
    groups = trace.sql("SELECT name, ranks, is_inferred FROM comm_groups ORDER BY name").rows()
    assert groups == [
        ("1", "[0, 2]", False),
        ("2", "[1, 3]", False),
        ("3", "[0, 1]", False),
        ("4", "[2, 3]", False),
    ]
