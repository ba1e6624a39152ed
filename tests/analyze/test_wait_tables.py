"""The tables `waits` and `standings`: who waits for whom, and where everybody stands."""

from __future__ import annotations

from typing import Any

from analyze.building import START_NS, Setting, job
from rankscope.analyze.hangs.wait_tables import standings, waits
from rankscope.model.tables import MISSING, Table, Trace

DONE = "dp:1 all_reduce done @loop.py:10"
NEXT = "dp:1 all_reduce @loop.py:20"


def told(trace: Trace, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in waits(trace).rows()]


def test_one_row_per_call_and_rank_that_holds_it_up() -> None:
    programs = {0: ["dp:1 all_reduce @loop.py:9"], 1: [], 2: ["tp:2 all_reduce", "dp:1 all_reduce"], 3: []}
    trace = job(programs, Setting(config={"1": [(0, 1, 2, 4)], "2": [(2, 3)]}))
    assert told(trace, "waiting", "n_waiting", "holder", "why", "holder_match_id") == [
        ("[0]", 1, 1, "absent", MISSING),
        ("[0]", 1, 2, "behind", 1),
        ("[0]", 1, 4, "unknown", MISSING),
        ("[2]", 1, 3, "absent", MISSING),
    ]
    [first, *_] = waits(trace).rows()
    assert (first["op"], first["seq"], first["is_p2p"], first["since_ns"]) == ("all_reduce", 1, False, START_NS)
    assert trace.table("frames").array("line")[first["site_id"]] == 9


def test_the_root_cause_is_marked() -> None:
    trace = job({0: [DONE, NEXT], 1: [DONE, NEXT], 2: [DONE]})
    assert told(trace, "waiting", "holder", "is_cause") == [("[0,1]", 2, True)]


def test_a_call_that_does_not_fit_holds_its_own_collective_up() -> None:
    odd = "dp:1 all_gather [8]->[24] @loop.py:21"
    trace = job({0: [DONE, NEXT], 1: [DONE, odd], 2: [DONE, NEXT]})
    assert told(trace, "waiting", "holder", "why", "is_cause") == [("[0,1,2]", 1, "mismatch", True)]


def test_a_call_that_all_have_joined_has_no_holder() -> None:
    trace = job({0: [DONE, NEXT], 1: [DONE, NEXT]})
    assert told(trace, "holder", "why", "is_cause") == [(MISSING, "stalled", True)]


def test_a_cycle_is_marked() -> None:
    programs = {0: ["a:1 all_reduce"], 1: ["b:2 all_reduce"], 2: ["c:3 all_reduce"]}
    trace = job(programs, Setting(config={"1": [(0, 1)], "2": [(0, 1)], "3": [(0, 1, 2)]}))
    rows = told(trace, "waiting", "holder", "in_cycle")
    assert sorted(rows) == [("[0]", 1, True), ("[1]", 0, True), ("[2]", 0, False), ("[2]", 1, False)]


def test_the_operation_is_that_of_those_who_wait() -> None:
    trace = job({0: ["pp:1 barrier done", "pp:1 recv<1"], 1: ["pp:1 barrier done"]})
    assert told(trace, "op", "is_p2p", "waiting", "holder") == [("recv", True, "[0]", 1)]


def test_a_transfer_without_another_side_waits_for_nobody_known() -> None:
    trace = job({0: ["pp:1 barrier done", "pp:1 coalesced batch p2p"], 1: ["pp:1 barrier done"]})
    assert told(trace, "match_id", "waiting", "holder", "why", "is_cause") == [
        (MISSING, "[0]", MISSING, "unpaired", True)
    ]


def test_nothing_waits_in_a_job_that_ended() -> None:
    assert len(waits(job({0: [DONE], 1: [DONE]}))) == 0
    assert len(waits(Trace(("traces",)))) == 0


def thread(rank: int, time_ns: int, stack: int, section: int = 0) -> dict[str, Any]:
    place = {"file_id": 90 + rank, "section": section, "time_ns": time_ns, "reason": "SIGUSR2", "is_main": True}
    return {"rank": rank, **place, "stack_id": stack, "site_id": stack + 1}


def placed(trace: Trace) -> list[tuple[Any, ...]]:
    return [(row["rank"], row["source"], row["stack_id"]) for row in standings(trace).rows()]


def test_the_main_thread_tells_where_a_rank_stands_unless_it_has_called_since() -> None:
    trace = job({0: [DONE, NEXT], 1: [DONE, NEXT], 2: [DONE]})
    later = START_NS + 60 * 10**9
    rows = [thread(0, START_NS - 1, 0), thread(1, START_NS, 1), thread(1, later, 0, section=1), thread(7, later, 1)]
    trace.tables["thread_stacks"] = Table.from_rows("thread_stacks", rows)
    assert placed(trace) == [(0, "waiting", 1), (1, "thread", 0), (2, "last", 0), (7, "thread", 1)]


def test_stacks_of_threads_alone_are_enough() -> None:
    trace = Trace(("traces",))
    trace.tables["stacks"] = Table.from_rows("stacks", [{"stack_id": 0, "depth": 0, "frame_id": 0}])
    frame = {"frame_id": 0, "file": "a.py", "line": 1, "function": "f", "is_user": True}
    trace.tables["frames"] = Table.from_rows("frames", [frame])
    trace.tables["thread_stacks"] = Table.from_rows("thread_stacks", [thread(3, 5, 0)])
    assert placed(trace) == [(3, "thread", 0)]


def test_a_rank_without_a_stack_is_left_out() -> None:
    assert placed(job({0: ["dp:1 all_reduce"], 1: []})) == []
