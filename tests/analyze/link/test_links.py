"""et_links: numbers join under equal names only, and durations without what was called on the same thread."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analyze.link.recordings import (
    BACKWARD,
    EPOCH_NS,
    Run,
    found_calls,
    links_of,
    observed,
    pair_of,
    profiled,
    trace_of,
    training,
)
from rankscope.analyze.link.nodes import nodes_of


def test_every_node_has_a_row_and_every_operator_its_event() -> None:
    calls = training().calls
    trace = trace_of(observed(calls), profiled(calls))
    assert len(trace.table("et_links")) == len(trace.table("et_nodes"))
    assert found_calls(trace) == {call.number: place for place, call in enumerate(calls)}
    roots = [row for row in trace.table("et_links").rows() if row["node_id"] < 100]
    assert {(row["how"], row["profile_id"], row["duration_ns"], row["is_inflated"]) for row in roots} == {
        ("none", -1, -1, False)
    }


def test_times_thread_step_and_kind_are_those_of_the_event() -> None:
    calls = training().calls
    links = links_of(trace_of(observed(calls), profiled(calls)))
    for place, call in enumerate(calls):
        link = links[call.number]
        ids = (-1, place) if "#" in call.name else (place, -1)
        assert (link["op_id"], link["annotation_id"]) == ids
        assert (link["start_ns"], link["duration_ns"]) == (EPOCH_NS + call.start, call.end - call.start)
        assert (link["tid"], link["step"], link["how"]) == (7000 + call.thread, call.step, "id")
        assert link["is_inflated"]
        assert link["duration_from"] == link["profile_id"] == 0


def test_own_time_is_without_calls_on_the_same_thread_only() -> None:
    run = Run()
    with run.call("c10d::allreduce_"):
        run.leaf("aten::empty", takes=4000)
        run.leaf("gloo:all_reduce", takes=9000, ran_on=50)
    links = links_of(trace_of(observed(run.calls), profiled(run.calls)))
    caller, inner, gloo = (links[number] for number in (1, 2, 3))
    assert (inner["own_ns"], gloo["own_ns"]) == (inner["duration_ns"], gloo["duration_ns"]) == (5000, 10000)
    assert caller["own_ns"] == caller["duration_ns"] - 5000
    assert gloo["tid"] != caller["tid"]


def test_what_reaches_beyond_its_caller_takes_no_more_than_lies_in_it() -> None:
    run = Run()
    with run.call("outer"):
        run.leaf("inner")
    outer, inner = run.calls
    longer = replace(inner, end=outer.end + 5000)
    assert links_of(trace_of(observed(run.calls), profiled([outer, longer])))[1]["own_ns"] == inner.start - outer.start


def test_what_lies_under_a_node_that_was_not_found_counts_for_the_one_around_it() -> None:
    run = Run()
    with run.call("outer"), run.call("lost"):
        run.leaf("inner", takes=7000)
    outer, _lost, inner = run.calls
    links = links_of(trace_of(observed(run.calls), profiled([outer, inner])))
    assert links[2]["how"] == "none"
    assert links[1]["own_ns"] == links[1]["duration_ns"] - 8000


def test_a_thread_spends_its_time_once() -> None:
    """gloo may begin a call before another one is over, and end it after the operator that asked for it."""
    run = Run()
    with run.call("c10d::send"):
        run.leaf("gloo:send", takes=4000, ran_on=50)
        run.leaf("gloo:recv", takes=4000, ran_on=50)
    asked, sent, received = run.calls
    overlapping = [asked, replace(sent, end=received.start + 2000), replace(received, end=asked.end + 9000)]
    links = links_of(trace_of(observed(run.calls), profiled(overlapping)))
    assert links[1]["own_ns"] == links[1]["duration_ns"]
    span = asked.end + 9000 - sent.start
    assert 0 < links[2]["own_ns"] + links[3]["own_ns"] <= span
    assert links[3]["own_ns"] <= links[3]["duration_ns"]


def test_nothing_is_linked_where_there_is_nothing() -> None:
    calls = training().calls
    assert len(trace_of(profiled(calls)).table("et_links")) == 0
    assert len(trace_of(profiled(calls)).table("et_pairs")) == 0
    assert found_calls(trace_of(observed(calls))) == {}


def test_a_parent_that_is_not_there_is_none() -> None:
    rows = observed(training(1).calls)
    rows["et_nodes"][5]["parent_id"] = 10**15
    nodes = nodes_of(trace_of(rows))
    parents = [nodes.node_id[place] if place >= 0 else -1 for place in nodes.parent.tolist()]
    assert parents == [row.get("parent_id", -1) if row.get("parent_id") != 10**15 else -1 for row in rows["et_nodes"]]


@pytest.mark.parametrize("ids", ["zero", "absent"])
def test_numbers_that_are_zero_or_missing_join_nothing(ids: str) -> None:
    run = Run()
    run.leaf("aten::mm")
    run.leaf("aten::mm")
    others = [replace(call, name="aten::bmm") for call in run.calls]
    assert found_calls(trace_of(observed(run.calls), profiled(others, ids=ids))) == {}


def test_a_number_under_another_name_joins_nothing() -> None:
    calls = training(10).calls
    wrong = replace(calls[4], name="aten::else")
    trace = trace_of(observed(calls), profiled([*calls[:4], wrong, *calls[5:]]))
    assert calls[4].number not in found_calls(trace)
    assert len(found_calls(trace)) == len(calls) - 1
    assert pair_of(trace)["n_wrong_names"] == 1


def test_ranks_are_told_apart() -> None:
    calls = training().calls
    slower = [replace(call, end=call.end + 100) for call in calls]
    first = observed(calls, file_id=2, rank=0), profiled(calls, file_id=0, rank=0)
    second = observed(calls, file_id=3, rank=1), profiled(slower, file_id=1, rank=1)
    links = list(trace_of(*first, *second).table("et_links").rows())
    assert {(row["file_id"], row["rank"], row["profile_id"]) for row in links if row["how"] == "id"} == {
        (2, 0, 0),
        (3, 1, 1),
    }


def test_each_node_is_linked_to_the_profile_that_has_it() -> None:
    calls = training(4).calls
    half = len(calls) // 2
    trace = trace_of(observed(calls, file_id=2), profiled(calls[:half]), profiled(calls[half:], file_id=1))
    links = links_of(trace)
    assert [links[call.number]["profile_id"] for call in calls] == [0] * half + [1] * (len(calls) - half)


def test_of_two_that_have_a_node_the_one_with_more_of_them_is_taken() -> None:
    calls = training().calls
    trace = trace_of(observed(calls, file_id=2), profiled(calls[:5]), profiled(calls, file_id=1))
    assert {row["profile_id"] for row in links_of(trace).values()} == {1}


def test_threads_of_the_observer_need_not_be_those_of_the_profiler() -> None:
    run = Run()
    with run.call("backward", thread=BACKWARD):
        run.leaf("gloo:broadcast", thread=BACKWARD, ran_on=9)
    links = links_of(trace_of(observed(run.calls), profiled(run.calls)))
    assert [links[number]["tid"] for number in (1, 2)] == [7000 + BACKWARD, 7009]
