"""Each simulated fault shows in the traces in the way that gives it away, and in no other."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import median

import pytest

from rankscope.errors import UsageError
from rankscope.simulate.profiler import (
    PROFILE_FAULT_HELP,
    PROFILE_FAULTS,
    ProfileFault,
    ProfileNoise,
    ProfileSimulation,
    ProfileSpec,
    simulate_profile,
)
from simulate.profile_reading import (
    Event,
    complete,
    compute_kernels,
    covered_ns,
    end_of,
    exact_events,
    inside,
    named,
    steps_of,
)

SPEC = ProfileSpec(data_parallel=4, n_steps=2, n_layers=2, n_microbatches=2, ranks_per_host=2)
PIPELINE = replace(SPEC, stages=3, data_parallel=2)
CULPRIT, PEER = 1, 2
MILLISECOND = 1_000_000


@cache
def struck(kind: str, spec: ProfileSpec = SPEC) -> ProfileSimulation:
    return simulate_profile(spec, ProfileFault(kind, rank=CULPRIT))


@cache
def seen(kind: str, rank: int, spec: ProfileSpec = SPEC) -> list[Event]:
    return exact_events(struck(kind, spec), rank)


def longest_gap_ns(events: list[Event], step: int) -> int:
    """The longest time in which the main thread runs no operator, up to its wait at the end of the step."""
    around = steps_of(events)[step]
    operators = [event for event in inside(complete(events, "cpu_op"), around) if event["tid"] == around["tid"]]
    gaps, reached = [0], around["ts"]
    for event in sorted(operators, key=lambda event: event["ts"]):
        gaps.append(event["ts"] - reached)
        reached = max(reached, end_of(event))
    return max(gaps)


@pytest.mark.parametrize("kind", PROFILE_FAULTS)
def test_a_fault_costs_time_and_its_culprits_come_last(kind: str) -> None:
    spec = replace(PIPELINE, n_steps=4) if kind == "stage-imbalance" else replace(SPEC, n_steps=4)
    truth = struck(kind, spec).truth
    assert truth.cause == kind
    lost_ns = sum(truth.step_ns[step] - truth.healthy_step_ns[step] for step in truth.steps)
    assert lost_ns > 0.05 * sum(truth.healthy_step_ns[step] for step in truth.steps)
    if kind not in ("slow-link", "stage-imbalance"):
        assert truth.ranks == (CULPRIT,)
        assert truth.last_arrivals(2 * MILLISECOND).most_common(1)[0][0] == CULPRIT


def test_slow_kernels_are_slow_on_one_rank_alone() -> None:
    durations = {rank: [e["dur"] for e in compute_kernels(seen("slow-kernels", rank))] for rank in (CULPRIT, PEER)}
    ratios = [slow / usual for slow, usual in zip(durations[CULPRIT], durations[PEER], strict=True)]
    assert median(ratios) == pytest.approx(1.3, rel=0.03)


def test_a_slow_host_leaves_its_device_idle() -> None:
    truth = struck("host-bound").truth
    slow, usual = truth.rank_steps[CULPRIT, 1], truth.rank_steps[PEER, 1]
    assert slow.compute_ns == pytest.approx(usual.compute_ns, rel=0.02)
    assert slow.idle_ns > usual.idle_ns + 3 * MILLISECOND
    assert slow.communication_ns < usual.communication_ns
    launches = {rank: named(complete(seen("host-bound", rank), "cuda_runtime"), "cuda") for rank in (CULPRIT, PEER)}
    assert covered_ns(launches[CULPRIT][:100]) > 5 * covered_ns(launches[PEER][:100])


def test_slow_data_loading_is_in_the_loader() -> None:
    waits = {
        rank: named(complete(seen("data-loading", rank), "user_annotation"), "enumerate(DataLoader)#")
        for rank in (CULPRIT, PEER)
    }
    assert len(waits[CULPRIT]) == len(waits[PEER]) == SPEC.n_steps
    assert all(28 * MILLISECOND < event["dur"] < 33 * MILLISECOND for event in waits[CULPRIT])
    assert all(event["dur"] < MILLISECOND for event in waits[PEER])


@pytest.mark.parametrize("with_stack", [True, False])
def test_garbage_collection_is_a_hole_between_operators(with_stack: bool) -> None:
    spec = replace(SPEC, with_stack=with_stack)
    events, peer = (seen("garbage-collection", rank, spec) for rank in (CULPRIT, PEER))
    assert struck("garbage-collection", spec).truth.steps == (1,)
    assert longest_gap_ns(events, 1) > 75 * MILLISECOND
    assert longest_gap_ns(events, 2) < 20 * MILLISECOND
    assert longest_gap_ns(peer, 1) < 20 * MILLISECOND
    frames = named(events, "<built-in function collect>")
    assert [frame["dur"] > 75 * MILLISECOND for frame in frames] == [True] * with_stack
    assert not named(peer, "<built-in function collect>")


def test_more_work_means_larger_tensors_and_as_many_kernels() -> None:
    kernels = {rank: compute_kernels(seen("more-work", rank)) for rank in (CULPRIT, PEER)}
    assert [e["name"] for e in kernels[CULPRIT]] == [e["name"] for e in kernels[PEER]]
    gemms = [[e["dur"] for e in kernels[rank] if e["name"].startswith("nvjet")] for rank in (CULPRIT, PEER)]
    assert median(more / usual for more, usual in zip(*gemms, strict=True)) == pytest.approx(1.4, rel=0.03)
    shapes = [named(seen("more-work", rank), "aten::addmm")[0]["args"]["Input Dims"][1] for rank in (CULPRIT, PEER)]
    assert shapes == [[5734, 2048], [4096, 2048]]


def test_longer_sequences_pass_through_all_stages() -> None:
    assert struck("more-work", PIPELINE).truth.ranks == (1, 3, 5)


def test_compiling_shows_as_what_dynamo_leaves() -> None:
    truth = struck("compile").truth
    (step,) = truth.steps
    events = seen("compile", CULPRIT)
    (compiling,) = named(complete(events, "cpu_op"), "entire_frame_compile")
    assert compiling["dur"] > 200 * MILLISECOND
    assert inside([compiling], steps_of(events)[step])
    assert named(inside(events_with_duration(events), compiling), "OutputGraph.call_user_compiler (dynamo_timed)")
    assert not named(seen("compile", PEER), "entire_frame_compile")


def events_with_duration(events: list[Event]) -> list[Event]:
    return [event for event in events if event["ph"] == "X"]


def test_a_slow_link_slows_the_groups_of_its_host() -> None:
    spec = replace(PIPELINE, ranks_per_host=2)
    simulation = struck("slow-link", spec)
    truth, healthy = simulation.truth, simulate_profile(spec).truth
    assert truth.ranks == (0, 1)
    transfers = {
        name: median(met.transfer_ns for met in of.collectives if (met.group in truth.groups) == is_slow)
        for name, of, is_slow in (
            ("slow", truth, True),
            ("usual", truth, False),
            ("slow before", healthy, True),
            ("usual before", healthy, False),
        )
    }
    assert transfers["slow"] == pytest.approx(5 * transfers["slow before"], rel=0.2)
    assert transfers["usual"] == pytest.approx(transfers["usual before"], rel=0.1)


def test_stages_out_of_balance_make_the_others_wait() -> None:
    spec = replace(PIPELINE, n_microbatches=6)
    truth, healthy = struck("stage-imbalance", spec).truth, simulate_profile(spec).truth
    assert truth.ranks == (4, 5)
    ratio = truth.rank_steps[4, 1].compute_ns / healthy.rank_steps[4, 1].compute_ns
    assert ratio == pytest.approx(1.5, rel=0.05)
    assert truth.rank_steps[0, 1].compute_ns == pytest.approx(healthy.rank_steps[0, 1].compute_ns, rel=0.001)
    assert truth.rank_steps[0, 1].bubble_ns > 1.5 * healthy.rank_steps[0, 1].bubble_ns
    with pytest.raises(UsageError, match="one stage"):
        struck("stage-imbalance")


def test_pauses_can_be_put_into_chosen_steps() -> None:
    fault = ProfileFault("garbage-collection", rank=0, seconds=0.5, steps=(2,))
    truth = simulate_profile(SPEC, fault).truth
    assert truth.steps == (2,)
    assert truth.step_ns[1] == truth.healthy_step_ns[1]
    assert truth.step_ns[2] - truth.healthy_step_ns[2] == pytest.approx(0.5e9, rel=0.1)


def test_compiling_happens_where_all_ranks_record() -> None:
    spec = replace(SPEC, n_steps=4)
    simulation = simulate_profile(spec, ProfileFault("compile"), ProfileNoise(window_offset=2))
    (step,) = simulation.truth.steps
    assert all(first <= step <= last for first, last in simulation.truth.windows.values())


def test_the_culprit_is_drawn_from_the_seed() -> None:
    drawn = {
        simulate_profile(replace(SPEC, seed=seed, n_steps=1), ProfileFault("slow-kernels")).truth.ranks
        for seed in range(6)
    }
    assert len(drawn) > 1


@pytest.mark.parametrize(
    "arguments",
    [{"kind": "gremlins"}, {"kind": "slow-kernels", "factor": 0.0}, {"kind": "compile", "seconds": -1.0}],
    ids=str,
)
def test_an_impossible_fault_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        ProfileFault(**arguments)  # type: ignore[arg-type]


def test_a_culprit_outside_the_job_is_refused() -> None:
    with pytest.raises(UsageError, match="no rank 9"):
        simulate_profile(SPEC, ProfileFault("slow-kernels", rank=9))


def test_every_fault_is_explained() -> None:
    assert set(PROFILE_FAULT_HELP) == set(PROFILE_FAULTS)
    assert all(len(text) > 20 for text in PROFILE_FAULT_HELP.values())
