"""Ranks that left no dump together: a node, a host or a group, not one rank that microseconds chose."""

from __future__ import annotations

from pathlib import Path

import pytest

import rankscope
from analyze.building import Setting, findings, job, root_cause
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


def job_of_pairs(hosts: dict[int, str]) -> rankscope.Trace:
    """Eight ranks wait in one call; ranks 2 and 3 left no dump, and each of the others waits for them."""
    waiting = ["dp:1 all_reduce done", "dp:1 all_reduce"]
    ranks = [rank for rank in range(8) if rank not in (2, 3)]
    setting = Setting(config={"1": [tuple(range(8))]}, hosts=hosts)
    return job(dict.fromkeys(ranks, waiting), setting)


@pytest.mark.parametrize(("per_host", "is_proven"), [(2, True), (1, False), (4, False), (0, False)])
def test_two_ranks_are_called_a_host_only_if_the_hosts_of_the_others_prove_it(per_host: int, is_proven: bool) -> None:
    hosts = {rank: f"gpu-{rank // per_host}" for rank in range(8)} if per_host else {}
    lost = root_cause(job_of_pairs(hosts))
    assert (lost.rule, lost.ranks) == ("rank-lost", (2, 3))
    assert ("all 2 ranks of one host" in " ".join(lost.evidence.likely)) == is_proven
    assert ("check the host of ranks 2,3" in lost.help) == is_proven


def test_a_host_of_three_is_told_as_one_though_calls_wait_for_single_ranks() -> None:
    """Each of its ranks holds up another group: without the hosts' names they would be three findings."""
    pairs = {rank: (f"x:{9 + rank % 3} all_reduce done", f"x:{9 + rank % 3} all_reduce") for rank in (0, 1, 2, 6, 7, 8)}
    groups = {str(9 + place): [(place, 3 + place, 6 + place)] for place in range(3)}
    hosts = {rank: f"gpu-{rank // 3}" for rank in range(9)}
    assert root_cause(job(pairs, Setting(config=groups, hosts=hosts))).ranks == (3, 4, 5)
    lost = [finding for finding in findings(job(pairs, Setting(config=groups))) if finding.rule == "rank-lost"]
    assert [finding.ranks for finding in lost] == [(3,), (4,), (5,)]


def test_one_dump_alone_accuses_nobody(tmp_path: Path) -> None:
    report = report_without(set(range(64)) - {59}, tmp_path)
    first = report.findings[0]
    assert first.title.startswith("only 1 of 64 ranks left a dump here: rank 59 is waiting in ")
    assert (first.rule, first.certainty) == ("rank-lost", "possible")
    assert first.evidence.notes == ("only rank 59 can be judged: what the other 63 ranks did is unknown",)
    assert "left no dump" not in first.title
