"""Simulated profiler traces have the form of real ones, whatever happens in the job."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from rankscope.errors import UsageError
from rankscope.simulate.profiler import LAYOUTS, ProfileFault, ProfileNoise, ProfileSpec, simulate_profile
from simulate.profile_reading import (
    DEVICE_CATEGORIES,
    Event,
    by_row,
    complete,
    end_of,
    exact_events,
    is_communication,
    named,
    steps_of,
)

DATA_PARALLEL = ProfileSpec(data_parallel=2, n_steps=2, n_layers=2, n_microbatches=2)
PIPELINE = replace(DATA_PARALLEL, stages=3, with_stack=True)
TINY = replace(DATA_PARALLEL, n_steps=1, n_layers=1, n_microbatches=1)
BOTH = pytest.mark.parametrize("spec", [DATA_PARALLEL, PIPELINE], ids=["data-parallel", "pipeline"])


@cache
def recorded(spec: ProfileSpec, rank: int = 1) -> list[Event]:
    return exact_events(simulate_profile(spec), rank)


def by_correlation(events: list[Event], *categories: str) -> dict[int, Event]:
    return {event["args"]["correlation"]: event for event in complete(events, *categories)}


def trace_of(spec: ProfileSpec, rank: int = 0) -> dict[str, Any]:
    return simulate_profile(spec).trace(rank)


def test_equal_arguments_give_equal_traces() -> None:
    arguments = (DATA_PARALLEL, ProfileFault("slow-kernels"), ProfileNoise(drift_ppm=10, drop_collectives=0.3))
    first, second = simulate_profile(*arguments), simulate_profile(*arguments)
    assert first.text(1) == second.text(1)
    assert first.truth == second.truth
    assert first.text(1) != simulate_profile(replace(DATA_PARALLEL, seed=1), *arguments[1:]).text(1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_layouts_hold_the_same_events(layout: str) -> None:
    simulation = simulate_profile(PIPELINE)
    offset = 1_000_000 if layout == "wide" else 0
    events = exact_events(simulation, 1, layout)
    for event in named(events, "Stream Sync"):
        assert event["tid"] == event["args"]["stream"] + offset

    def identities(events: list[Event]) -> Counter[str]:
        # The rows of synchronizations differ on purpose, and so do the names of rows.
        kept = [event for event in events if event["ph"] != "M"]
        rows = [event["tid"] % 1_000_000 if isinstance(event["tid"], int) else event["tid"] for event in kept]
        return Counter(json.dumps({**event, "tid": row}, sort_keys=True) for event, row in zip(kept, rows, strict=True))

    assert identities(events) == identities(recorded(PIPELINE))


def test_layouts_look_as_they_should() -> None:
    simulation = simulate_profile(TINY)
    texts = {layout: simulation.text(0, layout) for layout in LAYOUTS}
    assert texts["classic"].count('\n  {\n    "ph": "X", "cat": ') == texts["wide"].count('\n  {\n    "ph": "X",\n')
    assert '\n  {\n    "name": "thread_name", "ph": "M", "ts": ' in texts["classic"]
    assert '\n  {\n    "ph": "M",\n    "name": "thread_name",\n    "ts": ' in texts["wide"]
    assert "\n" not in texts["minified"]
    assert '{"ph":"X","cat":"kernel","name":"' in texts["minified"]
    with pytest.raises(UsageError, match="pretty"):
        simulation.text(0, "pretty")


@BOTH
def test_work_on_a_stream_never_overlaps(spec: ProfileSpec) -> None:
    for rank in range(spec.world_size):
        for row in by_row(complete(recorded(spec, rank), *DEVICE_CATEGORIES)):
            assert all(end_of(before) <= after["ts"] for before, after in pairwise(row))


@BOTH
def test_work_starts_after_its_launch(spec: ProfileSpec) -> None:
    events = recorded(spec)
    launches = by_correlation(events, "cuda_runtime")
    work = by_correlation(events, *DEVICE_CATEGORIES)
    assert len(work) == len(complete(events, *DEVICE_CATEGORIES)) > 100
    for correlation, event in work.items():
        launch = launches[correlation]
        assert end_of(launch) < event["ts"]
        assert launch["args"].get("External id") == event["args"].get("External id")


@BOTH
def test_arrows_join_launches_and_work(spec: ProfileSpec) -> None:
    events = recorded(spec)
    ends = {phase: {e["id"]: e for e in events if e["ph"] == phase and e["cat"] == "ac2g"} for phase in "sf"}
    assert set(ends["s"]) == set(ends["f"])
    launches = by_correlation(events, "cuda_runtime")
    started = by_correlation(events, *DEVICE_CATEGORIES, "cuda_sync")
    assert set(ends["s"]) == set(started)
    for correlation, event in started.items():
        for flow, target in ((ends["s"][correlation], launches[correlation]), (ends["f"][correlation], event)):
            assert (flow["pid"], flow["tid"], flow["ts"]) == (target["pid"], target["tid"], target["ts"])


@BOTH
def test_arrows_join_forward_and_backward(spec: ProfileSpec) -> None:
    events = recorded(spec)
    flows = [event for event in events if event["ph"] in "sf" and event["cat"] == "fwdbwd"]
    ends = {phase: {event["id"]: event for event in flows if event["ph"] == phase} for phase in "sf"}
    assert set(ends["s"]) == set(ends["f"])
    assert len(flows) == 2 * len(ends["s"])
    assert len(ends["s"]) > 50
    assert all(start["ts"] < ends["f"][number]["ts"] for number, start in ends["s"].items())


@BOTH
def test_spans_of_a_thread_are_nested(spec: ProfileSpec) -> None:
    for row in by_row(complete(recorded(spec), "cpu_op", "user_annotation", "python_function", "cuda_runtime")):
        around: list[int] = []
        for event in row:
            while around and around[-1] <= event["ts"]:
                around.pop()
            assert not around or end_of(event) <= around[-1]
            around.append(end_of(event))


@BOTH
def test_launches_lie_in_the_operator_that_they_name(spec: ProfileSpec) -> None:
    events = recorded(spec)
    operators = {event["args"]["External id"]: event for event in complete(events, "cpu_op", "user_annotation")}
    assert len(operators) == len(complete(events, "cpu_op", "user_annotation"))
    for call in complete(events, "cuda_runtime"):
        if "External id" in call["args"]:
            operator = operators[call["args"]["External id"]]
            assert operator["tid"] == call["tid"]
            assert operator["ts"] <= call["ts"] <= end_of(call) <= end_of(operator)


@BOTH
def test_streams_wait_for_recorded_events(spec: ProfileSpec) -> None:
    events = recorded(spec)
    calls = by_correlation(events, "cuda_runtime")
    waits = named(complete(events, "cuda_sync"), "Stream Wait Event")
    assert {wait["args"]["stream"] for wait in waits} >= {7, 40}
    for wait in waits:
        recording = calls[wait["args"]["wait_on_cuda_event_record_corr_id"]]
        assert recording["name"] == "cudaEventRecord"
        assert recording["ts"] < calls[wait["args"]["correlation"]]["ts"]
        assert wait["args"]["wait_on_stream"] != wait["args"]["stream"]


@BOTH
def test_a_step_ends_when_its_device_is_done(spec: ProfileSpec) -> None:
    events = recorded(spec)
    work = complete(events, *DEVICE_CATEGORIES)
    (*_, last_sync) = named(complete(events, "cuda_sync"), "Stream Sync")
    assert end_of(last_sync) > max(end_of(event) for event in work)
    for event in work:
        assert any(step["ts"] <= event["ts"] and end_of(event) <= end_of(step) for step in steps_of(events).values())


def test_annotations_reach_over_what_they_started_on_the_device() -> None:
    events = recorded(DATA_PARALLEL)
    for row in by_row(named(complete(events, "gpu_user_annotation"), "nccl:all_reduce")):
        kernels = sorted(filter(is_communication, complete(events, "kernel")), key=lambda event: event["ts"])
        assert [(e["ts"] + 1, e["dur"] - 2) for e in row] == [(e["ts"], e["dur"]) for e in kernels]


@pytest.mark.parametrize("groups", ["pair", "line"])
def test_transfers_name_their_peer(groups: str) -> None:
    spec = replace(PIPELINE, data_parallel=2, pipeline_groups=groups)
    kernels = named(complete(recorded(spec, 3), "kernel"), "ncclDevKernel_SendRecv")
    peers = Counter(
        (e["args"]["Collective name"], e["args"].get("Src Rank", e["args"].get("Dst Rank"))) for e in kernels
    )
    expected = spec.n_steps * spec.n_microbatches
    assert peers == {("recv", 1): expected, ("send", 5): expected, ("recv", 5): expected, ("send", 1): expected}
    assert {e["args"]["Process Group Ranks"] for e in kernels} == (
        {"[1, 3]", "[3, 5]"} if groups == "pair" else {"[1, 3, 5]"}
    )


def test_comms_ids_use_all_64_bits() -> None:
    ids = {
        event["args"]["Comms Id"]
        for rank in range(PIPELINE.world_size)
        for event in complete(recorded(PIPELINE, rank), "kernel")
        if is_communication(event)
    }
    assert any(number >= 1 << 63 for number in ids)
    assert all(0 <= number < 1 << 64 for number in ids)


def test_the_ranks_of_a_large_group_are_cut_short_on_its_kernels() -> None:
    trace = trace_of(replace(TINY, data_parallel=32))
    (kernel,) = [event for event in complete(trace["traceEvents"], "kernel") if is_communication(event)]
    assert kernel["args"]["Process Group Ranks"].endswith("28, 29, ...]")
    assert trace["distributedInfo"]["pg_config"][0]["ranks"] == list(range(32))


@pytest.mark.parametrize("with_seq", [True, False])
def test_sequence_numbers_can_be_left_out(with_seq: bool) -> None:
    events = recorded(replace(TINY, with_seq=with_seq))
    marked = [event for event in complete(events, "kernel", "cpu_op") if "Seq" in event["args"]]
    assert len(marked) == 2 * with_seq
    assert len(marked) == sum("Comms Id" in event["args"] for event in complete(events, "kernel", "cpu_op"))


def test_metadata_can_be_left_out() -> None:
    trace = trace_of(replace(TINY, with_metadata=False))
    assert set(trace["distributedInfo"]) == {"backend", "rank", "world_size"}
    assert not any("Collective name" in event.get("args", {}) for event in trace["traceEvents"])


@pytest.mark.parametrize(
    ("flag", "category", "start"),
    [
        ("with_sync", "cuda_sync", ""),
        ("with_stack", "python_function", ""),
        ("with_steps", "user_annotation", "ProfilerStep#"),
    ],
)
def test_what_was_not_asked_for_is_not_recorded(flag: str, category: str, start: str) -> None:
    def seen(is_wanted: bool) -> list[Event]:
        flags: dict[str, Any] = {flag: is_wanted}
        return named(complete(recorded(replace(TINY, **flags)), category), start)

    assert seen(True)
    assert not seen(False)


def test_recording_more_changes_nothing_else() -> None:
    plain, full = (
        simulate_profile(replace(TINY, with_stack=wanted, with_sync=wanted, with_steps=wanted)).truth
        for wanted in (False, True)
    )
    assert plain == full


@pytest.mark.parametrize(
    "changes",
    [{"data_parallel": 1}, {"n_steps": 0}, {"n_layers": 0}, {"stages": 0}, {"pipeline_groups": "ring"}],
    ids=str,
)
def test_an_impossible_job_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        replace(DATA_PARALLEL, **changes)
