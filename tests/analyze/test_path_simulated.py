"""The critical path through all ranks of simulated jobs: it leads through the culprit."""

from __future__ import annotations

from pathlib import Path

import pytest

import rankscope
from rankscope.analyze.metric import METRICS, Selection
from rankscope.simulate.profiler import ProfileFault, ProfileNoise, ProfileSpec, simulate_profile

SPEC = ProfileSpec(data_parallel=4, ranks_per_host=2, n_steps=2, n_layers=2, n_microbatches=2)
# What the path consists of on the rank that holds up the others.
CULPRIT_KIND = {
    "slow-kernels": "kernel",
    "more-work": "kernel",
    "host-bound": "host",
    "data-loading": "data-loading",
    "garbage-collection": "host",
    "compile": "host",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CULPRIT_KIND)
def test_path_leads_through_the_culprit(kind: str, tmp_path: Path) -> None:
    fault = ProfileFault(kind, rank=2, seconds=0.1 if kind == "data-loading" else None)
    simulation = simulate_profile(SPEC, fault, ProfileNoise(clock_skew_ms=5.0))
    simulation.write(tmp_path, gzip=False)
    trace = rankscope.load(tmp_path)
    path = METRICS["critical_path"].compute(trace)
    start, duration = path.array("start_ns"), path.array("duration_ns")
    assert (start[:-1] + duration[:-1] == start[1:]).all()
    truth = simulation.truth
    assert duration.sum() == pytest.approx(sum(truth.step_ns.values()), rel=0.02)
    steps = path.array("step")
    for step, step_ns in truth.step_ns.items():
        assert duration[steps == step].sum() == pytest.approx(step_ns, rel=0.02)
    summary = list(METRICS["path_summary"].compute(trace, Selection(steps=truth.steps)).rows())
    assert (summary[0]["rank"], summary[0]["kind"]) == (2, CULPRIT_KIND[kind])
