"""What-if: replays by hand and against simulated jobs that were run again without their fault; and its rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rankscope
from analyze.path_traces import COMPUTE, NCCL, Process, trace_of
from rankscope.analyze.metric import METRICS, Selection
from rankscope.analyze.whatif import rules as whatif_rules
from rankscope.errors import UsageError
from rankscope.model.finding import Finding
from rankscope.model.tables import Trace
from rankscope.simulate.profiler import ProfileFault, ProfileNoise, ProfileSpec, ProfileTruth, simulate_profile

pytestmark = pytest.mark.slow


def training_rank(
    rank: int, compute: float, *, slowest: float = 300, host_us: float = 0, moves_us: tuple[float, ...] = (20, 20)
) -> Process:
    """Computes, reduces with the others, of whom the slowest needs so long before, and waits; its host may launch late.

    Data move for so long, one number per step: with 20 us a step takes the slowest's time and 52 us."""
    process = Process(rank)
    at: float = 0
    for step, moves in enumerate(moves_us):
        kernel_end, all_end = at + 20 + host_us + compute, at + 22 + slowest + moves
        process.step(step, at, all_end + 10)
        process.op("aten::mm", at + 5, at + 25 + host_us)
        process.kernel("gemm", at + 20 + host_us, kernel_end, launch=at + 10 + host_us, step=step)
        process.event_wait(NCCL, COMPUTE, recorded=at + 26 + host_us, told=at + 28 + host_us)
        process.collective(step, kernel_end + 2, all_end, launch=at + 30 + host_us, step=step)
        process.synchronize(at + 40 + host_us, all_end + 3)
        at = all_end + 10
    return process


def answers(trace: Trace, **selection: Any) -> dict[str, dict[str, Any]]:
    rows = METRICS["whatif"].compute(trace, Selection(**selection)).rows()
    return {row["what"] if row["kind"] in ("rank", "type", "stage") else row["kind"]: row for row in rows}


def test_slower_kernels_of_one_rank() -> None:
    found = answers(trace_of(training_rank(0, 100), training_rank(1, 300), training_rank(2, 100)))
    assert {name: row["step_ns"] for name, row in found.items()} == {
        "recorded": 352_000,
        "replayed": 352_000,
        "all": 152_000,
        "ranks": 152_000,
        "host": 352_000,
        "forward": 152_000,
        "backward": 352_000,
        "optimizer": 352_000,
        "collectives": 352_000,
        "transfers": 352_000,
        "worst-ranks": 152_000,
        "rank 0": 352_000,
        "rank 1": 152_000,
        "rank 2": 352_000,
    }
    assert found["all"]["slowdown"] == pytest.approx(352 / 152)
    assert (found["rank 1"]["share_pct"], found["rank 0"]["share_pct"]) == (100, 0)
    assert found["rank 1"]["slowdown"] == pytest.approx(352 / 152)
    assert found["worst-ranks"]["rank"] == 1
    assert found["rank 1"]["saved_ns"] == 200_000


def test_host_of_one_rank_launches_late() -> None:
    found = answers(trace_of(training_rank(0, 100), training_rank(1, 100, host_us=200), training_rank(2, 100)))
    assert found["replayed"]["step_ns"] == 352_000
    assert found["host"]["step_ns"] == pytest.approx(152_000, abs=1000)
    assert found["forward"]["step_ns"] == 352_000
    assert found["rank 1"]["step_ns"] == pytest.approx(152_000, abs=1000)


def test_mean_of_the_peers() -> None:
    processes = [training_rank(rank, compute) for rank, compute in enumerate((100, 300, 100, 100))]
    assert answers(trace_of(*processes), settings={"ideal": "mean"})["ranks"]["step_ns"] == 202_000


def test_of_two_peers_the_faster_counts() -> None:
    assert answers(trace_of(training_rank(0, 100), training_rank(1, 300)))["ranks"]["step_ns"] == 152_000


def test_slow_collective() -> None:
    """One of three equal collectives takes longer: the others show how long it should."""
    found = answers(trace_of(*(training_rank(rank, 300, moves_us=(20, 220, 20)) for rank in range(2))))
    assert found["replayed"]["step_ns"] == pytest.approx(352_000 + 200_000 / 3, abs=1)
    assert found["collectives"]["step_ns"] == 352_000
    assert found["ranks"]["saved_ns"] == 0
    assert found["collectives"]["share_pct"] == 100


def test_time_between_two_steps_belongs_to_the_host() -> None:
    """Two of three steps begin 5 us after the one before, so that this is what is usual."""
    processes = [training_rank(rank, 300, moves_us=(20, 20, 20)) for rank in range(2)]
    for process in processes:
        for row in process.rows["steps"]:
            row["duration_ns"] -= 5_000
    found = answers(trace_of(*processes))
    assert found["replayed"]["step_ns"] == found["recorded"]["step_ns"] == 350_333
    assert found["host"]["saved_ns"] == pytest.approx(-5_000 / 3, abs=1)


def test_a_single_rank_is_compared_with_its_own_steps() -> None:
    found = answers(trace_of(training_rank(0, 300)))
    assert "rank 0" not in found
    assert "worst-ranks" not in found
    assert found["all"]["step_ns"] == 352_000


def test_selection_and_settings() -> None:
    trace = trace_of(training_rank(0, 100), training_rank(1, 300), training_rank(2, 100))
    assert answers(trace, steps=[1])["ranks"]["step_ns"] == 152_000
    assert "rank 2" not in answers(trace, ranks=[0, 1])
    assert answers(trace, steps=[9]) == {}
    with pytest.raises(UsageError, match="ideal=best is not supported"):
        answers(trace, settings={"ideal": "best"})


def test_no_order_no_replay() -> None:
    """Matches that cannot be right: each of two ranks would have to come first to the other's call."""
    first, second = training_rank(0, 100), training_rank(1, 100)
    for row, match in zip(second.rows["comm_calls"], (1, 0), strict=True):
        row["match_id"] = match
    assert answers(trace_of(first, second)) == {}


def test_nothing_traced_gives_nothing() -> None:
    assert answers(trace_of()) == {}


def findings(trace: Trace) -> list[Finding]:
    found = [*whatif_rules.stage_imbalance(trace), *whatif_rules.job_slowed(trace)]
    return [finding for finding in found if isinstance(finding, Finding)]


def test_job_slowed_names_the_rank() -> None:
    [finding] = findings(trace_of(*(training_rank(rank, 300 if rank == 2 else 100) for rank in range(5))))
    assert (finding.code, finding.severity, finding.ranks) == ("P322", "info", (2,))
    assert finding.title == "a step would take 152 us instead of 352 us if rank 2 were as fast as the others"
    assert finding.evidence.facts["slowdown"] == pytest.approx(2.3158)
    assert "forward" in finding.evidence.likely[-1]


def test_equal_ranks_are_silent() -> None:
    assert findings(trace_of(*(training_rank(rank, 300) for rank in range(4)))) == []


def test_steps_that_are_slow_everywhere_are_nobodys_fault() -> None:
    processes = [training_rank(rank, 300, moves_us=(20, 20, 20)) for rank in range(4)]
    for process in processes:
        process.rows["ops"][-1]["duration_ns"] += 2_000_000
        process.rows["steps"][-1]["duration_ns"] += 2_000_000
    assert findings(trace_of(*processes)) == []


PIPELINE = {"data_parallel": 2, "stages": 3, "ranks_per_host": 2, "n_layers": 3, "n_microbatches": 3}
PARALLEL = {"data_parallel": 4, "ranks_per_host": 2, "n_layers": 2, "n_microbatches": 2}
RANK_FAULTS = ("slow-kernels", "host-bound", "data-loading", "garbage-collection", "more-work", "compile")


def simulated(folder: Path, fault: ProfileFault | None, **spec: Any) -> tuple[Trace, ProfileTruth]:
    simulation = simulate_profile(ProfileSpec(n_steps=3, **spec), fault, ProfileNoise())
    simulation.write(folder, gzip=False)
    return rankscope.load(folder, jobs=1), simulation.truth


def mean(steps: dict[int, int]) -> float:
    return sum(steps.values()) / len(steps)


@pytest.mark.slow
@pytest.mark.parametrize("kind", RANK_FAULTS)
@pytest.mark.parametrize("spec", [PARALLEL, {**PIPELINE, "with_sync": False}], ids=["parallel", "pipeline"])
def test_simulated_step_without_the_slow_rank(kind: str, spec: dict[str, Any], tmp_path: Path) -> None:
    trace, truth = simulated(
        tmp_path, ProfileFault(kind, rank=1, seconds=0.1 if kind == "data-loading" else None), **spec
    )
    found = answers(trace)
    assert found["replayed"]["step_ns"] == pytest.approx(mean(truth.step_ns), rel=0.01)
    assert found["ranks"]["step_ns"] == pytest.approx(mean(truth.healthy_step_ns), rel=0.02)
    is_slowed = mean(truth.step_ns) > 1.12 * mean(truth.healthy_step_ns)
    assert [finding.ranks for finding in findings(trace)] == ([truth.ranks] if is_slowed else [])


@pytest.mark.parametrize("kind", ["stage-imbalance", "slow-link"])
def test_simulated_step_without_the_slow_stage_or_link(kind: str, tmp_path: Path) -> None:
    fault = ProfileFault(kind, rank=0) if kind == "slow-link" else ProfileFault(kind, factor=2.0)
    trace, truth = simulated(tmp_path, fault, **PIPELINE)
    found = answers(trace)
    assert found["all"]["step_ns"] == pytest.approx(mean(truth.healthy_step_ns), rel=0.02)
    if kind == "stage-imbalance":
        [finding] = findings(trace)
        assert (finding.code, finding.severity, finding.ranks) == ("P321", "warning", truth.ranks)
        assert found["last-stage"]["share_pct"] > 90
        assert found["replayed"]["step_ns"] > found["balance"]["step_ns"] > found["last-stage"]["step_ns"]
    else:
        assert findings(trace) == []
        assert max(found["transfers"]["saved_ns"], found["collectives"]["saved_ns"]) > 0


@pytest.mark.parametrize("spec", [PARALLEL, PIPELINE], ids=["parallel", "pipeline"])
def test_healthy_simulated_job_is_silent(spec: dict[str, Any], tmp_path: Path) -> None:
    trace, truth = simulated(tmp_path, None, **spec)
    found = answers(trace)
    assert found["all"]["step_ns"] == pytest.approx(mean(truth.healthy_step_ns), rel=0.02)
    assert findings(trace) == []
