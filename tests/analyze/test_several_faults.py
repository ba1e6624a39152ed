"""Independent faults in one job: each is a root cause, none an effect of another."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyze.verdicts import diagnose
from rankscope.simulate import Fault, JobSpec, Mesh, simulate


@pytest.mark.slow
def test_three_culprits_of_1024_are_all_roots(tmp_path: Path) -> None:
    """Defect: one was named, and the others were "effects"."""
    faults = (Fault("stuck", step=1), Fault("op", step=1), Fault("lost", step=1))
    simulation = simulate(JobSpec(Mesh(dp=64, tp=8, pp=2), steps=2, layers=1, seed=11), faults)
    report = diagnose(simulation, tmp_path)
    told = {(finding.rule, finding.ranks) for finding in report.findings if finding.severity == "error"}
    assert told == {(truth.rule, truth.ranks) for truth in simulation.truths}
    culprits = {rank for truth in simulation.truths for rank in truth.ranks}
    assert not [effect.title for effect in report.effects if culprits & set(effect.ranks)]
