"""What orders the nodes of a linked trace among each other."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from analyze.link.edge_traces import Memory, Observed, assert_sound, edges_in, edges_of, trace_of
from analyze.path_traces import BACKWARD, MAIN
from rankscope.analyze import table_makers
from rankscope.model.tables import Trace

RUNNER = 200
USER, BACKWARD_FUNCTION = 7, 1


def test_without_an_execution_trace_there_is_nothing() -> None:
    assert len(Trace(("none",), makers=table_makers()).table("et_edges")) == 0


def test_calls_come_from_the_parent_unless_that_is_a_root() -> None:
    process = Observed()
    outer = process.node("aten::linear", 0, 30)
    first = process.node("aten::t", 1, 9, parent=outer)
    inner = process.node("aten::transpose", 2, 8, parent=first)
    second = process.node("aten::addmm", 10, 29, parent=outer)

    assert edges_of(process, kind="call") == [(outer, first), (outer, second), (first, inner)]


def test_parents_that_cannot_be_are_left_out() -> None:
    process = Observed()
    first = process.node("a", 0, 9, parent=11)
    second = process.node("b", 1, 8, parent=first)  # each is said to be the parent of the other
    process.node("c", 10, 11, parent=4711)
    process.node("d", 12, 13, parent=13)
    process.node("e", 14, 15, parent=15)
    process.node("f", 16, 17)  # began later than what it is said to have called

    assert second == 11
    assert edges_of(process, kind="call") == [(first, second)]


def test_what_gloo_left_on_the_stack_has_called_nothing() -> None:
    """The observer takes what is done next for a call of what is still open, or of what ended meanwhile."""
    process = Observed()
    caller = process.node("c10d::allreduce_", 0, 10)
    runner = process.node("gloo:all_reduce", 5, 90, parent=caller, tid=RUNNER, scope=USER)
    copy = process.node("aten::copy_", 6, 80, parent=runner, tid=RUNNER)
    process.node("aten::mm", 20, 30, parent=caller)
    process.node("aten::add", 40, 50, parent=runner)

    assert edges_of(process, kind="call") == [(caller, runner), (runner, copy)]


def test_threads_are_those_of_the_profiler() -> None:
    process = Observed()
    caller = process.node("c10d::allreduce_", 0, 10)
    runner = process.node("gloo:all_reduce", 5, 90, tid=RUNNER, scope=USER)
    following = process.node("aten::mm", 20, 30)
    later = process.node("gloo:broadcast", 95, 96, tid=RUNNER, scope=USER)

    assert edges_of(process, kind="thread") == [(caller, following), (runner, later)]


def test_what_was_not_found_stands_on_its_thread_by_number() -> None:
    process = Observed()
    numbers = [
        process.node("before", 0, 1, is_seen=False),
        process.node("outer", 2, 20),
        process.node("inner", 3, 4, is_seen=False),
        process.node("last", 21, 22),
        process.node("after", 23, 24, is_seen=False),
    ]
    other = [process.node("x", 25, 26, is_seen=False, thread=2), process.node("y", 27, 28, is_seen=False, thread=2)]

    expected = [*pairwise(numbers), tuple(other)]
    assert edges_of(process, kind="thread") == expected


def test_without_a_profiler_the_order_of_the_file_is_enough() -> None:
    process = Observed()
    outer = process.node("c10d::allreduce_", 0, 10, is_seen=False)
    runner = process.node("gloo:all_reduce", 5, 30, parent=outer, is_seen=False, scope=USER)
    inner = process.node("aten::mm", 6, 7, parent=outer, is_seen=False)
    last = process.node("aten::add", 20, 25, is_seen=False)

    trace = trace_of(process)
    assert_sound(trace)
    assert edges_in(trace, "thread") == [(outer, inner), (inner, last)]
    assert edges_in(trace, "call") == [(outer, runner), (outer, inner)]


def test_a_number_that_a_damaged_file_has_twice_leads_not_to_itself() -> None:
    process = Observed()
    process.node("a", 0, 10)
    process.node("b", 1, 2, parent=10, node_id=10)
    process.node("c", 3, 4, parent=10, node_id=12)

    assert assert_sound(trace_of(process))["thread"] == 1


@pytest.mark.parametrize("seed", range(5))
def test_a_file_of_nonsense_gives_sound_edges(seed: int) -> None:
    """Parents in circles, ends in any order, times that contradict the numbers, kernels from anywhere."""
    chance = random.Random(seed)
    process = Observed()
    for _ in range(80):
        start = chance.uniform(0, 100)
        columns: dict[str, Any] = {
            "thread": chance.randint(1, 3), "tid": chance.choice([MAIN, BACKWARD]), "is_seen": chance.random() < 0.7,
            "parent": chance.randint(1, 100), "scope": chance.choice([0, BACKWARD_FUNCTION, USER]), "fw_thread": 1,
            "seq_id": chance.randint(-1, 3), "node_id": chance.randint(10, 200),
            "takes": [Memory(chance.randint(1, 3))], "gives": [Memory(chance.randint(1, 3))],
        }  # fmt: skip
        process.node(chance.choice(["aten::add_", "gloo:x", "c10d::x"]), start, chance.uniform(0, 200), **columns)
        launch = chance.uniform(0, 100)
        process.kernel("k", launch + chance.uniform(-20, 20), launch + 30, launch, op_id=chance.randint(-1, 200))
        process.synchronize(launch, launch + chance.uniform(0, 90))

    n_edges = assert_sound(trace_of(process))
    assert {"thread", "launch", "stream", "sync", "data"} <= set(n_edges)


def test_backward_functions_come_from_the_operator_of_their_number() -> None:
    """Of nested ones from the innermost, which made it; a number means something on its thread only."""
    process = Observed()
    process.node("aten::square", 0, 10, seq_id=5)
    power = process.node("aten::pow", 1, 9, parent=10, seq_id=5)
    process.node("aten::mul", 10, 11, seq_id=5, thread=3, tid=300)
    columns = {"tid": BACKWARD, "thread": 2, "scope": BACKWARD_FUNCTION, "fw_thread": 1}
    process.node("evaluate_function", 20, 30, tid=BACKWARD, thread=2)
    function = process.node("PowBackward0", 21, 29, seq_id=5, **columns)
    process.node("MulBackward0", 31, 35, seq_id=6, **columns)

    assert edges_of(process, kind="backward") == [(power, function)]


def test_links_of_the_profiler_come_before_numbers() -> None:
    process = Observed()
    forward = process.node("aten::mm", 0, 10, seq_id=5)
    process.node("aten::mm", 11, 12, seq_id=6)
    columns = {"scope": BACKWARD_FUNCTION, "fw_thread": 1}
    linked = process.node("MmBackward0", 20, 30, seq_id=6, **columns)
    numbered = process.node("MmBackward0", 31, 35, seq_id=5, **columns)
    for is_start, start in ((True, 0), (False, 20)):
        process.add("flows", start, start, flow_id=1, is_start=is_start, tid=MAIN)
        flow = process.rows["flows"][-1]
        flow["time_ns"] = flow.pop("start_ns")

    assert edges_of(process, kind="backward") == [(forward, linked), (forward, numbered)]


def test_a_thread_is_released_by_the_one_that_ran_meanwhile() -> None:
    """The forward pass releases the thread of the backward pass, and that the main thread, be it within a step."""
    process = Observed()
    process.node("ProfilerStep#1", 0, 100, scope=USER)
    process.node("aten::mm", 1, 5)
    loss = process.node("aten::mean", 6, 10)
    first = process.node("evaluate_function", 12, 20, tid=BACKWARD, thread=2)
    process.node("aten::mm", 13, 15, parent=first, tid=BACKWARD, thread=2)
    last = process.node("evaluate_function", 21, 30, tid=BACKWARD, thread=2)
    step = process.node("Optimizer.step", 33, 50, scope=USER)
    process.node("aten::add_", 34, 40, parent=step)

    assert edges_of(process, kind="handover") == [(loss, first), (last, step)]


def test_threads_that_work_side_by_side_release_nobody() -> None:
    process = Observed()
    process.node("aten::mm", 0, 10)
    process.node("aten::pin_memory", 5, 25, tid=BACKWARD, thread=2)
    process.node("aten::mm", 11, 20)
    process.node("aten::mm", 30, 40)

    # The second thread has begun to work when the first one ran an operator; the first one never waited for it.
    assert edges_of(process, kind="handover") == [(10, 11)]


def test_a_runner_is_released_by_the_call_of_its_collective() -> None:
    process = Observed()
    caller = process.node("c10d::allreduce_", 0, 10)
    runner = process.node("gloo:all_reduce", 15, 90, tid=RUNNER, scope=USER)
    process.node("aten::mm", 11, 14)
    process.ran(caller, runner)
    process.ran(caller, caller)

    assert edges_of(process, kind="handover") == [(caller, runner)]


def test_collectives_lead_from_who_joined_last_to_all_others() -> None:
    processes = [Observed(rank) for rank in range(3)]
    for process in processes:
        called = process.node("c10d::allreduce_", 0, 10)
        process.ran(called, process.node("gloo:all_reduce", 5, 90, tid=RUNNER, scope=USER), match=3)
    trace = trace_of(*processes, matches=({"match_id": 3, "last_rank": 1},))

    rows = [row for row in trace.table("et_edges").rows() if row["kind"] == "collective"]
    assert sorted((row["from_rank"], row["source_id"], row["rank"], row["target_id"]) for row in rows) == [
        (1, 11, 0, 11),
        (1, 11, 2, 11),
    ]
    assert_sound(trace)


def reduced(
    op: dict[int, list[str]], match: dict[tuple[int, int], int], first_seq: dict[int, int] | None = None
) -> list[tuple[int, ...]]:
    """Ranks that make calls of some kinds, of which some were tied otherwise: from whom to whom edges lead."""
    processes = [Observed(rank) for rank in op]
    for rank, process in enumerate(processes):
        for place, name in enumerate(op[rank]):
            start = 100 * place + rank
            caller = process.node("c10d::call", start, start + 10)
            runner = process.node("gloo:call", start + 5, start + 90, tid=RUNNER, scope=USER)
            process.ran(caller, runner, match.get((rank, place), -1))
            numbers = (
                {"seq": first_seq[rank] + place, "place": first_seq[rank] + place} if first_seq else {"place": place}
            )
            process.rows["et_collectives"][-1] |= {"op": name, **numbers}
    matches = tuple({"match_id": number, "last_rank": 0} for number in set(match.values()))
    trace = trace_of(*processes, matches=matches)
    assert_sound(trace)
    rows = (row for row in trace.table("et_edges").rows() if row["kind"] == "collective")
    return sorted((row["from_rank"], row["source_id"], row["rank"], row["target_id"]) for row in rows)


def test_calls_that_nothing_ties_are_tied_by_their_place_in_the_group() -> None:
    same = ["all_reduce", "broadcast"]
    by_number = {(0, 0): 7, (1, 0): 7}

    assert reduced({0: same, 1: same}, {}) == [(1, 11, 0, 11), (1, 13, 0, 13)]
    assert reduced({0: same, 1: same}, by_number) == [(0, 11, 1, 11), (1, 13, 0, 13)]
    assert reduced({0: same, 1: same[1:]}, {}, first_seq={0: 4, 1: 5}) == [(0, 13, 1, 11)]


def test_calls_are_not_tied_by_place_where_ranks_differ() -> None:
    same, other = ["all_reduce", "broadcast"], ["broadcast", "all_reduce"]

    assert reduced({0: same, 1: other}, {}) == []
    assert reduced({0: same, 1: same[:1]}, {}) == []
    # What is tied by number shows that one of them was recorded from later on.
    assert reduced({0: ["all_reduce"] * 3, 1: ["all_reduce"] * 3}, {(0, 1): 7, (1, 0): 7}) == [(0, 13, 1, 11)]


def test_durations_of_other_steps_change_no_edge() -> None:
    """They may be longer than the time until the next node began."""
    process = Observed()
    outer = process.node("a", 0, 10, gives=[Memory(7)])
    process.node("b", 1, 4, parent=outer, gives=[Memory(6)])
    process.node("c", 5, 9, parent=outer, takes=[Memory(6)])
    process.node("d", 11, 12, takes=[Memory(6), Memory(7)])
    trace = trace_of(process)
    assert edges_in(trace, "data") == [(10, 13), (11, 12), (11, 13)]
    links = trace.table("et_links")
    expected = list(trace.table("et_edges").rows())

    for factor in (0, 1000):
        again = trace_of(process)
        again.tables["et_links"] = links.replaced({"duration_ns": links.array("duration_ns") * factor})
        assert list(again.table("et_edges").rows()) == expected
