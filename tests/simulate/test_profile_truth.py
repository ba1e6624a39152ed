"""The truth about a simulated job agrees with the traces, and with what is known of such jobs."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import pytest

from rankscope.errors import UsageError
from rankscope.simulate.profiler import ProfileFault, ProfileNoise, ProfileSimulation, ProfileSpec, simulate_profile
from simulate.profile_reading import (
    DEVICE_CATEGORIES,
    Event,
    complete,
    compute_kernels,
    covered_ns,
    end_of,
    exact_events,
    inside,
    is_communication,
    steps_of,
)

pytestmark = pytest.mark.slow

DATA_PARALLEL = ProfileSpec(data_parallel=4, n_steps=2, n_layers=2, n_microbatches=2, ranks_per_host=2)
PIPELINE = replace(DATA_PARALLEL, data_parallel=2, stages=3)
TINY = replace(DATA_PARALLEL, n_steps=1, n_layers=1, n_microbatches=1)
TRUE_CLOCK = ProfileNoise(clock_skew_ms=0)
BOTH = pytest.mark.parametrize("spec", [DATA_PARALLEL, PIPELINE], ids=["data-parallel", "pipeline"])


def communication(events: list[Event]) -> list[Event]:
    return [event for event in complete(events, "kernel") if is_communication(event)]


@BOTH
@pytest.mark.parametrize("fault", [None, ProfileFault("slow-kernels", rank=1)], ids=["healthy", "slow-kernels"])
def test_times_of_a_step_are_those_of_its_events(spec: ProfileSpec, fault: ProfileFault | None) -> None:
    simulation = simulate_profile(spec, fault, TRUE_CLOCK)
    for rank in simulation.ranks:
        events = exact_events(simulation, rank)
        for number, step in steps_of(events).items():
            truth = simulation.truth.rank_steps[rank, number]
            device = inside(complete(events, *DEVICE_CATEGORIES), step)
            computing, talking = compute_kernels(device), communication(device)
            assert truth.compute_ns == covered_ns(computing)
            assert truth.communication_ns == covered_ns(talking)
            assert truth.memory_ns == covered_ns(complete(device, "gpu_memcpy", "gpu_memset"))
            assert truth.compute_ns + truth.communication_ns - truth.overlap_ns == covered_ns(computing + talking)
            assert truth.duration_ns - truth.idle_ns == covered_ns(device)
            assert truth.start_ns == step["ts"]
            assert 0 <= truth.end_ns - end_of(step) < 50_000  # the profiler's own step


@BOTH
def test_a_collective_is_seen_on_all_its_members(spec: ProfileSpec) -> None:
    simulation = simulate_profile(spec, noise=ProfileNoise(drift_ppm=20))
    seen: dict[tuple[str, int, bool, int], Event] = {}
    for rank in simulation.ranks:
        for event in communication(exact_events(simulation, rank)):
            is_p2p = event["args"]["Collective name"] != "allreduce"
            seen[event["args"]["Process Group Name"], event["args"]["Seq"], is_p2p, rank] = event
    recorded = [met for met in simulation.truth.collectives if met.step > 0]
    assert len(seen) == sum(len(met.ranks) for met in recorded)
    for met in recorded:
        members = [seen[met.group, seq, met.is_p2p, rank] for rank, seq in zip(met.ranks, met.seqs, strict=True)]
        names = [event["args"]["Collective name"] for event in members]
        assert names == (["send", "recv"] if met.is_p2p else [met.op] * len(met.ranks))
        for rank, event, arrival, end in zip(met.ranks, members, met.arrivals_ns, met.ends_ns, strict=True):
            clock = simulation.truth.clocks[simulation.host_of(rank)]
            assert (event["ts"], end_of(event)) == (clock.recorded_ns(arrival), clock.recorded_ns(end))
            assert event["args"]["In msg nelems"] * 2 == met.n_bytes
        assert met.last_arriver in met.ranks
        assert max(met.ends_ns) - min(met.ends_ns) < 30_000
        assert met.transfer_ns > 0


@pytest.mark.parametrize(("groups", "n_ids"), [("pair", 1), ("line", 2)])
def test_the_two_ends_of_a_transfer_count_alike_in_a_group_of_their_own(groups: str, n_ids: int) -> None:
    simulation = simulate_profile(replace(PIPELINE, pipeline_groups=groups))
    transfers = [met for met in simulation.truth.collectives if met.is_p2p]
    assert len(transfers) == 3 * 2 * 2 * 2 * 2  # steps, microbatches, replicas, hops, directions
    assert max(len(set(met.seqs)) for met in transfers) == n_ids
    numbers = Counter(
        (met.group, rank, seq) for met in transfers for rank, seq in zip(met.ranks, met.seqs, strict=True)
    )
    assert set(numbers.values()) == {1}


@BOTH
def test_steps_of_the_job_add_up(spec: ProfileSpec) -> None:
    truth = simulate_profile(spec).truth
    ends = [max(truth.rank_steps[rank, step].end_ns for rank in range(spec.world_size)) for step in range(3)]
    assert truth.step_ns == {1: ends[1] - ends[0], 2: ends[2] - ends[1]}
    assert truth.healthy_step_ns == truth.step_ns


@pytest.mark.parametrize(("stages", "n_microbatches"), [(2, 2), (4, 4), (4, 8), (3, 1), (4, 2)])
def test_bubbles_are_those_of_the_schedule(stages: int, n_microbatches: int) -> None:
    """In a balanced pipeline each stage idles for as many microbatches as there are other stages."""
    spec = ProfileSpec(data_parallel=1, stages=stages, n_steps=2, n_layers=2, n_microbatches=n_microbatches)
    truth = simulate_profile(spec, noise=replace(TRUE_CLOCK, jitter=0)).truth
    for rank in range(stages):
        step = truth.rank_steps[rank, 2]
        expected_ns = (stages - 1) * step.compute_ns / n_microbatches
        assert step.bubble_ns == pytest.approx(expected_ns, rel=0.1)
        assert step.bubble_ns == step.wait_ns


@BOTH
def test_a_step_is_made_of_its_parts(spec: ProfileSpec) -> None:
    """The compute stream computes, copies, waits for others or for data, or has nothing to do."""
    truth = simulate_profile(spec, ProfileFault("slow-kernels", rank=0)).truth
    for step in truth.rank_steps.values():
        parts = step.compute_ns + step.memory_ns + step.wait_ns + step.transfer_ns + step.idle_ns
        assert parts == pytest.approx(step.duration_ns, rel=0.02)


def test_without_a_pipeline_there_are_no_bubbles() -> None:
    truth = simulate_profile(DATA_PARALLEL, ProfileFault("slow-kernels", rank=1)).truth
    assert all(step.bubble_ns == 0 for step in truth.rank_steps.values())
    assert truth.rank_steps[0, 1].wait_ns > 2_000_000
    assert truth.rank_steps[1, 1].wait_ns < 100_000


def test_clocks_differ_by_host_alone() -> None:
    spec = replace(TINY, data_parallel=32, ranks_per_host=1)
    skewed = simulate_profile(spec, noise=ProfileNoise(clock_skew_ms=5, drift_ppm=15))
    clocks = skewed.truth.clocks
    assert len(clocks) == 32
    assert 3e6 < pstdev(clock.offset_ns for clock in clocks.values()) < 7e6
    assert 9 < pstdev(clock.drift_ppm for clock in clocks.values()) < 21
    exact = simulate_profile(spec, noise=TRUE_CLOCK)
    assert skewed.truth.collectives == exact.truth.collectives
    for rank in (0, 5):
        clock = clocks[skewed.host_of(rank)]
        shown, true = (complete(exact_events(of, rank), "cpu_op", "kernel") for of in (skewed, exact))
        assert [event["ts"] for event in shown] == [clock.recorded_ns(event["ts"]) for event in true]
        spans_ns = [events[-1]["ts"] - events[0]["ts"] for events in (shown, true)]
        gained_ppm = (spans_ns[0] - spans_ns[1]) / spans_ns[1] * 1e6
        assert gained_ppm == pytest.approx(clock.drift_ppm, abs=0.5)
    assert clocks["node00"].recorded_ns(clocks["node00"].at_ns) == clocks["node00"].at_ns + clocks["node00"].offset_ns


def test_ranks_of_a_host_share_its_clock() -> None:
    simulation = simulate_profile(replace(TINY, ranks_per_host=2))
    assert [simulation.host_of(rank) for rank in simulation.ranks] == ["node00", "node00", "node01", "node01"]
    assert set(simulation.truth.clocks) == {"node00", "node01"}
    assert simulation.trace(3)["host_name"] == "node01"


def test_ranks_may_record_other_steps() -> None:
    simulation = simulate_profile(replace(TINY, n_steps=3), noise=ProfileNoise(window_offset=2))
    windows = simulation.truth.windows
    assert len(set(windows.values())) > 1
    for rank, (first, last) in windows.items():
        assert list(steps_of(exact_events(simulation, rank))) == list(range(first, last + 1))
        assert first >= 1
        assert last == first + 2 <= 5
    assert set(simulation.truth.step_ns) == {1, 2, 3, 4, 5}


def test_bases_may_differ() -> None:
    plain, mixed = (simulate_profile(TINY, noise=ProfileNoise(mixed_bases=wanted)) for wanted in (False, True))
    bases = [mixed.trace(rank)["baseTimeNanoseconds"] for rank in mixed.ranks]
    assert len(set(bases)) == 2
    assert [event["ts"] for event in exact_events(mixed, 1)] == [event["ts"] for event in exact_events(plain, 1)]


def test_communication_kernels_may_be_missing() -> None:
    spec = replace(TINY, n_steps=6, n_layers=4)
    counts = []
    for dropped in (0.0, 0.4):
        simulation = simulate_profile(spec, noise=ProfileNoise(drop_collectives=dropped))
        events = [exact_events(simulation, rank) for rank in simulation.ranks]
        counts.append(mean(len(communication(of_rank)) for of_rank in events))
        assert len({len(compute_kernels(of_rank)) for of_rank in events}) == 1
    assert counts[0] == 24
    assert 10 < counts[1] < 19


def test_files_are_written(tmp_path: Path) -> None:
    simulation = simulate_profile(TINY, noise=ProfileNoise(lost_ranks=(2,), cut_ranks=(1,)))
    paths = simulation.write(tmp_path)
    assert [path.name for path in paths] == [f"kineto_trace_{rank}.json.gz" for rank in (0, 1, 3)]
    assert gzip.decompress(paths[0].read_bytes()).decode() == simulation.text(0)
    with pytest.raises(EOFError):
        gzip.decompress(paths[1].read_bytes())
    again = simulation.write(tmp_path / "again")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in paths]


def test_files_may_have_other_names_and_no_compression(tmp_path: Path) -> None:
    simulation = simulate_profile(TINY)
    names = "{host}_rank-{rank}.pt.trace.json"
    (path, *_) = simulation.write(tmp_path, gzip=False, names=names, layout="minified")
    assert path.name == "node00_rank-0.pt.trace.json"
    assert json.loads(path.read_text()) == simulation.trace(0)


@pytest.mark.parametrize(
    "noise",
    [{"drop_collectives": 1.5}, {"jitter": -0.1}, {"window_offset": -1}],
    ids=str,
)
def test_impossible_noise_is_refused(noise: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        replace(TRUE_CLOCK, **noise)


def test_noise_on_a_rank_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="no rank 4"):
        simulate_profile(TINY, noise=ProfileNoise(lost_ranks=(4,)))


def test_jitter_does_not_depend_on_the_fault() -> None:
    """Before the fault strikes, the job runs as the healthy one does."""
    noise = ProfileNoise()
    fault = ProfileFault("garbage-collection", rank=1, steps=(2,))
    struck, healthy = simulate_profile(DATA_PARALLEL, fault, noise).truth, simulate_profile(DATA_PARALLEL).truth
    assert struck.healthy_step_ns == healthy.step_ns
    assert struck.step_ns[1] == healthy.step_ns[1]
    assert struck.step_ns[2] > healthy.step_ns[2]


def test_a_job_without_jitter_repeats_itself() -> None:
    truth: ProfileSimulation = simulate_profile(replace(DATA_PARALLEL, n_steps=3), noise=replace(TRUE_CLOCK, jitter=0))
    steps = list(truth.truth.step_ns.values())
    assert all(before == after for before, after in pairwise(steps))
