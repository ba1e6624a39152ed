"""Groups that are destroyed and made again in one process are groups of their own."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

import rankscope
from rankscope.model.finding import Report
from rankscope.simulate.simulation import Simulation, simulate
from rankscope.simulate.spec import Fault, JobSpec, Mesh, Noise

PAUSE_NS = 5 * 10**9
TIMES = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")


def job(seed: int, fault: Fault | None = None, steps: int = 4) -> Simulation:
    return simulate(JobSpec(mesh=Mesh(dp=4, tp=1, pp=1), seed=seed, steps=steps), fault)


def followed_by(first: dict[str, Any], second: dict[str, Any], *, new_ids: bool) -> dict[str, Any]:
    """One process that runs the second job after the first: the same names, numbers from 1, one ring."""
    second = copy.deepcopy(second)
    n_ids = 1 + max(entry["pg_id"] for entry in first["entries"])
    later_ns = 1 + first["entries"][-1]["time_created_ns"] - second["entries"][0]["time_created_ns"] + PAUSE_NS
    for entry in second["entries"]:
        entry["record_id"] += len(first["entries"])
        entry["pg_id"] += n_ids if new_ids else 0
        entry.update({name: entry[name] + later_ns for name in TIMES if entry[name]})
    status = {str(int(key) + (n_ids if new_ids else 0)): value for key, value in second["pg_status"].items()}
    return {
        **second,
        "entries": first["entries"] + second["entries"],
        "pg_status": {**first["pg_status"], **status},
    }


def write(folder: Path, simulations: list[Simulation], *, new_ids: bool = True, ring: int = 2000) -> Report:
    dumps = [dict(simulation.dumps()) for simulation in simulations]
    for rank in sorted(set().union(*dumps)):
        whole = dumps[0][rank]
        for later in dumps[1:]:
            whole = followed_by(whole, later[rank], new_ids=new_ids) if rank in later else whole
        whole["entries"] = whole["entries"][-ring:] if rank % 2 else whole["entries"]
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(whole, 2))
    return rankscope.diagnose(rankscope.load(str(folder)))


def errors(report: Report) -> list[tuple[str, tuple[int, ...]]]:
    return [(finding.rule, finding.ranks) for finding in report.findings if finding.severity == "error"]


@pytest.mark.parametrize("new_ids", [True, False])
@pytest.mark.parametrize("kind", ["stuck", "op", "size", "skip"])
def test_a_fault_in_the_second_generation_is_found(tmp_path: Path, kind: str, new_ids: bool) -> None:
    """Defect: "every member made the call, a device or the network", or no problem at all."""
    faulty = job(2, Fault(kind, rank=1, step=2))
    report = write(tmp_path, [job(1, steps=6), faulty], new_ids=new_ids)
    assert errors(report) == [(faulty.truth.rule, (1,))]


@pytest.mark.parametrize("ring", [2000, 30])
@pytest.mark.parametrize("new_ids", [True, False])
def test_healthy_generations_are_no_alarm(tmp_path: Path, new_ids: bool, ring: int) -> None:
    report = write(tmp_path, [job(1, steps=6), job(2, steps=3), job(3)], new_ids=new_ids, ring=ring)
    assert report.findings == () or {finding.severity for finding in report.findings} == {"info"}


@pytest.mark.parametrize("ring", [2000, 40])
@pytest.mark.parametrize("seed", range(4))
def test_rings_that_reach_back_differently_far_are_aligned(tmp_path: Path, seed: int, ring: int) -> None:
    faulty = job(seed, Fault("stuck", rank=2, step=3))
    report = write(tmp_path, [job(10 + seed, steps=3), job(20 + seed, steps=5), faulty], ring=ring)
    assert errors(report) == [("rank-stuck", (2,))]


def test_a_rank_that_never_came_to_the_second_generation(tmp_path: Path) -> None:
    """It has ended the first, and waits in nothing; its peers wait in the first call of the second."""
    healthy, second = job(1), job(2, Fault("stuck", rank=1, step=0))
    dumps, later = dict(healthy.dumps()), dict(second.dumps())
    for rank, dump in dumps.items():
        whole = dump if rank == 1 else followed_by(dump, later[rank], new_ids=True)
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(whole, 2))
    report = rankscope.diagnose(rankscope.load(str(tmp_path)))
    assert errors(report) == [("rank-stuck", (1,))]


def test_the_table_of_groups_tells_generations(tmp_path: Path) -> None:
    write(tmp_path, [job(1), job(2)])
    groups = rankscope.load(str(tmp_path)).table("groups")
    assert sorted(groups.array("generation").tolist()) == [0, 0, 1, 1]


@pytest.mark.parametrize("ring", [70, 90, 120])
@pytest.mark.parametrize("kind", ["lost", "node", "stuck"])
def test_the_beginning_of_the_first_generation_is_not_needed_to_tell_the_second(
    tmp_path: Path, kind: str, ring: int
) -> None:
    """Defect: where the ring had dropped the first calls of the first generation, a hung job got the all-clear."""
    spec = JobSpec(Mesh(dp=2, tp=4, pp=1), steps=11, generations=2, ranks_per_host=4)
    faulty = simulate(spec, Fault(kind, step=8), Noise(ring=ring, same_ids=True))
    faulty.write(tmp_path)
    assert errors(rankscope.diagnose(rankscope.load(str(tmp_path)))) == [(faulty.truth.rule, faulty.truth.ranks)]
