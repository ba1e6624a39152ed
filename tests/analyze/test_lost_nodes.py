"""Ranks that left no dump together: a node, a host or a group, not one rank that microseconds chose."""

from __future__ import annotations

from pathlib import Path

import pytest

import rankscope
from rankscope.simulate.simulation import simulate
from rankscope.simulate.spec import Fault, JobSpec, Mesh


def report_without(ranks: set[int], folder: Path, seed: int = 0, world: int = 64) -> rankscope.Report:
    simulation = simulate(JobSpec(mesh=Mesh(dp=world // 8, tp=4, pp=2), seed=seed), Fault("lost", rank=min(ranks)))
    for path in simulation.write(folder):
        if int(path.name.rpartition("_")[2]) in ranks:
            path.unlink()
    return rankscope.diagnose(rankscope.load(str(folder)))


@pytest.mark.cases
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("first", [0, 8, 56])
def test_a_node_that_is_gone_is_told_as_one(seed: int, first: int, tmp_path: Path) -> None:
    node = set(range(first, first + 8))
    report = report_without(node, tmp_path, seed)
    lost = report.findings[0]
    assert (lost.rule, set(lost.ranks)) == ("rank-lost", node)
    assert "all 8 ranks of one node" in " ".join(lost.evidence.likely)
    assert [finding.rule for finding in report.findings if finding.severity == "error"] == ["rank-lost"]


def test_ranks_that_have_nothing_in_common_are_not_called_a_node(tmp_path: Path) -> None:
    report = report_without({3, 17, 30}, tmp_path)
    assert "node" not in " ".join(report.findings[0].evidence.likely)


@pytest.mark.parametrize(("schedule", "seed"), [("1f1b", 50012), ("interleaved", 50014)])
def test_ranks_of_the_node_that_nobody_waits_for_belong_to_it(schedule: str, seed: int, tmp_path: Path) -> None:
    """Defect: each rank that a call waited for was an error of its own, and the others were not named."""
    spec = JobSpec(Mesh(dp=3, tp=1, pp=4), steps=5, seed=seed, ranks_per_host=4, schedule=schedule)
    simulation = simulate(spec, Fault("node", rank=8))
    simulation.write(tmp_path)
    report = rankscope.diagnose(rankscope.load(str(tmp_path)))
    told = [(finding.rule, finding.ranks) for finding in report.findings if finding.severity == "error"]
    assert told == [("rank-lost", simulation.truth.ranks)]
