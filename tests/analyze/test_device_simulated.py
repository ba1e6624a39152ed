"""Simulated jobs of known truth: the time of each step, and rules that are silent unless all ranks suffer."""

from __future__ import annotations

from pathlib import Path

import pytest

import rankscope
from analyze.device_tables import findings, rows_of
from rankscope.analyze.metric import Selection
from rankscope.model.tables import Trace
from rankscope.simulate.profiler import ProfileFault, ProfileNoise, ProfileSpec, simulate_profile

pytestmark = pytest.mark.slow  # simulated jobs, read and diagnosed

RULES = ("P301", "P302", "P303", "P304", "P305", "P306")
SPEC = ProfileSpec(data_parallel=4, n_steps=2)


@pytest.mark.parametrize(
    "spec", [SPEC, ProfileSpec(data_parallel=2, stages=2, n_layers=2, n_steps=2)], ids=["dp", "pp"]
)
def test_steps_and_overlap_equal_the_truth_to_the_nanosecond(spec: ProfileSpec, tmp_path: Path) -> None:
    simulation = simulate_profile(spec, noise=ProfileNoise(clock_skew_ms=5.0))
    simulation.write(tmp_path)
    trace = rankscope.load(tmp_path)
    truth = simulation.truth.rank_steps
    steps = rows_of(trace, "steps")
    assert len(steps) == spec.n_steps * simulation.world_size
    for row in steps:
        expected = truth[row["rank"], row["step"]]
        assert row["kernel_ns"] == expected.compute_ns
        assert row["memcpy_ns"] + row["memset_ns"] <= expected.memory_ns
    for number in {row["step"] for row in steps}:
        for row in rows_of(trace, "overlap", Selection(steps=[number])):
            expected = truth[row["rank"], number]
            assert (row["comm_ns"], row["overlap_ns"]) == (expected.communication_ns, expected.overlap_ns)
            assert row["compute_ns"] == expected.compute_ns


def simulated(folder: Path, fault: str | None) -> Trace:
    simulate_profile(SPEC, fault=ProfileFault(fault) if fault else None).write(folder)
    return rankscope.load(folder)


@pytest.mark.parametrize("fault", [None, "data-loading", "more-work"])
def test_silent_on_healthy_jobs_and_where_one_rank_is_to_blame(fault: str | None, tmp_path: Path) -> None:
    trace = simulated(tmp_path, fault)
    assert [finding.title for code in RULES for finding in findings(trace, code)] == []


def test_a_slow_link_shows_as_communication_that_nothing_hides(tmp_path: Path) -> None:
    [finding] = findings(simulated(tmp_path, "slow-link"), "P302")
    assert finding.ranks == (0, 1, 2, 3)
    assert finding.certainty == "likely"
