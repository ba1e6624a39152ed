"""new_group in another order on one rank: the same number is another group there."""

from __future__ import annotations

import pickle
from pathlib import Path

import rankscope
from rankscope.simulate.simulation import simulate
from rankscope.simulate.spec import Fault, JobSpec, Mesh


def write(folder: Path, swapped: set[int], fault: Fault | None) -> rankscope.Report:
    for rank, dump in simulate(JobSpec(mesh=Mesh(dp=4, tp=1, pp=1)), fault).dumps():
        names = sorted(dump["pg_config"], key=int)[:2]
        members = dump["pg_config"][names[0]]["ranks"]
        for name, desc in zip(names, ("dp", "ep") if rank in swapped else ("ep", "dp"), strict=True):
            dump["pg_config"][name].update(desc=desc, ranks=members)
            for entry in dump["entries"]:
                if entry["process_group"][0] == name:
                    entry["process_group"] = (name, desc)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, 2))
    return rankscope.diagnose(rankscope.load(str(folder)))


def test_the_rank_with_another_order_is_named(tmp_path: Path) -> None:
    report = write(tmp_path, {3}, Fault("size", rank=3))
    first = report.findings[0]
    assert (first.code, first.ranks) == ("H114", (3,))
    assert 'is "dp" there, not "ep"' in first.title
    assert [finding.code for finding in report.findings if finding.severity == "error"] == ["H114"]


def test_the_same_order_everywhere_is_no_finding(tmp_path: Path) -> None:
    assert all(finding.code != "H114" for finding in write(tmp_path, set(), Fault("size", rank=3)).findings)


def test_a_job_that_runs_is_left_alone(tmp_path: Path) -> None:
    assert all(finding.code != "H114" for finding in write(tmp_path, {3}, None).findings)


def test_a_group_of_another_number_is_told_before_the_others_used_theirs(tmp_path: Path) -> None:
    """Defect: an order-deadlock, as no number had two meanings yet."""
    simulate(JobSpec(mesh=Mesh(dp=4, tp=2, pp=1), experts=True), Fault("groups", rank=2)).write(tmp_path)
    report = rankscope.diagnose(rankscope.load(str(tmp_path)))
    assert [(finding.code, finding.ranks) for finding in report.findings if finding.severity == "error"] == [
        ("H114", (2,))
    ]
    assert '"ep" is group' in report.findings[0].title


def test_experts_with_groups_in_the_same_order_are_no_finding(tmp_path: Path) -> None:
    simulate(JobSpec(mesh=Mesh(dp=4, tp=2, pp=1), experts=True), Fault("stuck", rank=2)).write(tmp_path)
    assert all(finding.code != "H114" for finding in rankscope.diagnose(rankscope.load(str(tmp_path))).findings)
