"""Durations from clean steps: the median of what corresponds, and nothing where nothing does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from analyze.link.recordings import Call, Run, observed, profiled, trace_of, training
from rankscope.analyze.link.links import transplanted_links

CLEAN = 5


def timed(n_steps: int, takes: Sequence[int], *, more: Sequence[str] = (), first_number: int = 1) -> list[Call]:
    """Steps of two operators, of which the inner one takes so many nanoseconds in each of them."""
    run = Run(first_number)
    for number in range(n_steps):
        with run.step(number):
            with run.call("aten::linear", seq=first_number + number):
                run.leaf("aten::addmm", takes=takes[number])
            for name in more:
                run.leaf(name)
            run.leaf("aten::sum")
            run.leaf("Optimizer.step#SGD.step")
    return run.calls


def links_with(calls: list[Call], *clean: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The links of each name, in the order of time."""
    trace = trace_of(observed(calls), profiled(calls), *clean)
    files = {row["file_id"] for part in clean for row in part["profiles"]}
    names = {row["node_id"]: row["name"] for row in trace.table("et_nodes").rows()}
    found: dict[str, list[dict[str, Any]]] = {}
    for row in transplanted_links(trace, files).rows():
        found.setdefault(names[row["node_id"]], []).append(row)
    return found


def test_durations_are_the_median_of_the_clean_steps() -> None:
    clean = profiled(timed(3, [90_000, 10_000, 20_000], first_number=1000), file_id=CLEAN, ids="zero")
    links = links_with(timed(2, [500_000, 600_000]), clean)
    assert [row["duration_ns"] for row in links["aten::addmm"]] == [21_000, 21_000]
    assert [row["duration_ns"] for row in links["aten::linear"]] == [23_000, 23_000]
    assert [row["own_ns"] for row in links["aten::linear"]] == [2000, 2000]
    assert [row["own_ns"] for row in links["aten::addmm"]] == [21_000, 21_000]
    assert {row["duration_from"] for row in links["aten::addmm"]} == {CLEAN}
    assert not any(row["is_inflated"] for rows in links.values() for row in rows)


def test_marks_of_steps_and_annotations_are_transplanted_too() -> None:
    clean = profiled(timed(1, [10_000], first_number=1000), file_id=CLEAN, ids="zero")
    links = links_with(timed(2, [500_000, 600_000]), clean)
    assert links["ProfilerStep#1"][0]["duration_from"] == CLEAN
    assert links["ProfilerStep#1"][0]["duration_ns"] == links["ProfilerStep#0"][0]["duration_ns"]
    assert links["Optimizer.step#SGD.step"][1]["duration_from"] == CLEAN


def test_beginnings_and_partners_stay_as_recorded() -> None:
    calls = timed(2, [500_000, 600_000])
    trace = trace_of(observed(calls), profiled(calls), profiled(timed(1, [10_000]), file_id=CLEAN, ids="zero"))
    before, after = trace.table("et_links"), transplanted_links(trace, {CLEAN})
    for column in ("start_ns", "profile_id", "op_id", "tid", "step"):
        assert before.array(column).tolist() == after.array(column).tolist()
    assert trace.table("et_links") is before


def test_what_has_no_counterpart_stays_inflated() -> None:
    clean = profiled(timed(3, [10_000] * 3, first_number=1000), file_id=CLEAN, ids="zero")
    links = links_with(timed(1, [500_000], more=["only_here"]), clean)
    [alone] = links["only_here"]
    assert (alone["duration_from"], alone["is_inflated"], alone["duration_ns"]) == (0, True, 1000)
    assert links["aten::addmm"][0]["duration_ns"] == 11_000
    assert not links["aten::sum"][0]["is_inflated"]


def test_steps_that_do_the_same_count_before_those_that_do_more() -> None:
    more = timed(3, [70_000] * 3, more=["checkpoint"], first_number=1000)
    same = [replace(call, step=call.step + 10) for call in timed(1, [10_000], first_number=2000)]
    for call in same:
        call.start, call.end = call.start + more[-1].end, call.end + more[-1].end
    links = links_with(timed(1, [500_000]), profiled([*more, *same], file_id=CLEAN, ids="zero"))
    assert links["aten::addmm"][0]["duration_ns"] == 11_000


def test_steps_of_another_model_give_nothing() -> None:
    calls = timed(2, [500_000, 600_000])
    other = profiled(training(n_layers=20, first_number=1000).calls, file_id=CLEAN, ids="zero")
    links = links_with(calls, other)
    assert {row["duration_from"] for row in links["aten::addmm"]} == {0}
    assert all(row["is_inflated"] for row in links["aten::linear"])


@pytest.mark.parametrize(("rank", "ids"), [(1, "zero"), (0, "same")])
def test_another_rank_or_a_profile_with_the_observer_gives_nothing(rank: int, ids: str) -> None:
    clean = profiled(timed(2, [10_000] * 2, first_number=1000), file_id=CLEAN, rank=rank, ids=ids)
    links = links_with(timed(2, [500_000, 600_000]), clean)
    assert {row["duration_from"] for rows in links.values() for row in rows} == {0, -1}


def test_threads_of_another_process_are_found_by_what_they_do() -> None:
    calls = training(2).calls
    clean = training(2, first_number=1000).calls
    for call in clean:
        call.ran_on = {1: 42, 2: 41}[call.thread]
    links = links_with(calls, profiled(clean, file_id=CLEAN, ids="zero", pid=77))
    assert {row["duration_from"] for name in ("aten::mm", "aten::addmm") for row in links[name]} == {CLEAN}


def test_several_clean_files_are_taken_together() -> None:
    first = profiled(timed(1, [10_000], first_number=1000), file_id=CLEAN, ids="zero")
    second = profiled(timed(2, [30_000, 50_000], first_number=2000), file_id=CLEAN + 1, ids="zero")
    links = links_with(timed(1, [500_000]), second, first)
    assert (links["aten::addmm"][0]["duration_ns"], links["aten::addmm"][0]["duration_from"]) == (31_000, CLEAN)


def test_without_marks_of_steps_all_is_one() -> None:
    def unmarked(calls: list[Call]) -> list[Call]:
        return [replace(call, step=-1) for call in calls if not call.name.startswith("ProfilerStep")]

    clean = profiled(unmarked(timed(2, [10_000, 20_000], first_number=1000)), file_id=CLEAN, ids="zero")
    links = links_with(unmarked(timed(2, [500_000, 600_000])), clean)
    assert [row["duration_ns"] for row in links["aten::addmm"]] == [11_000, 21_000]
