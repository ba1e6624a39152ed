"""Folders with more than one story: other jobs and attempts, dumps of other moments, clocks that are off."""

from __future__ import annotations

import pickle
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

import rankscope
from rankscope.model.finding import Finding, Report
from rankscope.simulate.simulation import Simulation, simulate
from rankscope.simulate.spec import Fault, JobSpec, Mesh

MINUTE = 60 * 10**9
HOUR = 60 * MINUTE
TIMES = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")
PREFIX = "nccl_trace_rank_"


def job(seed: int, fault: Fault | None = None, dp: int = 4, tp: int = 1) -> Simulation:
    return simulate(JobSpec(mesh=Mesh(dp=dp, tp=tp, pp=1), seed=seed, steps=6), fault)


def write(simulation: Simulation, folder: Path, later_ns: int = 0, ranks: Collection[int] | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for rank, dump in simulation.dumps():
        if ranks is None or rank in ranks:
            for entry in dump["entries"]:
                entry.update({name: entry[name] + later_ns for name in TIMES if entry[name]})
            save(dump, folder, rank)


def save(dump: dict[str, Any], folder: Path, rank: int, prefix: str = PREFIX) -> None:
    (folder / f"{prefix}{rank}").write_bytes(pickle.dumps(dump, 2))


def cut_to(dump: dict[str, Any], n_entries: int) -> dict[str, Any]:
    """The dump as it would have been taken earlier."""
    entries = dump["entries"][:n_entries]
    newest: dict[int, int] = {}
    for entry in entries:
        newest[entry["pg_id"]] = entry["collective_seq_id"]
    status = {
        pg_id: {name: min(value, newest.get(int(pg_id), -1)) for name, value in counters.items()}
        for pg_id, counters in dump["pg_status"].items()
    }
    return {**dump, "entries": entries, "pg_status": status}


def diagnosed(folder: Path, **settings: Any) -> Report:
    return rankscope.diagnose(rankscope.load(str(folder), **settings))


def errors(report: Report) -> list[tuple[str, tuple[int, ...]]]:
    return [(finding.rule, finding.ranks) for finding in report.findings if finding.severity == "error"]


def finding(report: Report, code: str) -> Finding:
    return next(each for each in report.findings if each.code == code)


STUCK = Fault("stuck", rank=1, step=4)


@pytest.mark.parametrize("later_ns", [-24 * HOUR, -HOUR, HOUR])
@pytest.mark.parametrize("seed", range(4))
def test_a_file_of_another_run_is_not_judged(tmp_path: Path, later_ns: int, seed: int) -> None:
    write(job(seed, STUCK), tmp_path, ranks=(0, 1, 2))
    write(job(seed + 100), tmp_path, later_ns, ranks=(3,))
    report = diagnosed(tmp_path)
    assert errors(report) == [("rank-stuck", (1,))]
    assert finding(report, "D911").ranks == (3,)


@pytest.mark.parametrize("tp", [1, 2])
def test_yesterdays_dump_of_the_culprit_makes_it_a_lost_rank(tmp_path: Path, tp: int) -> None:
    """Defect: "Found no problem", or the three that wait were blamed, for certain."""
    hung = job(1, STUCK, tp=tp)
    write(hung, tmp_path, ranks=set(range(hung.world_size)) - {1})
    write(job(2, tp=tp), tmp_path, -24 * HOUR, ranks=(1,))
    report = diagnosed(tmp_path)
    assert errors(report) == [("rank-lost", (1,))]
    assert report.findings[0].certainty == "likely"
    assert "left no current dump" in report.findings[0].title
    assert finding(report, "D911").ranks == (1,)
    assert all(each.code != "D901" for each in report.findings)


def test_half_of_the_files_are_yesterdays(tmp_path: Path) -> None:
    write(job(1, STUCK), tmp_path, ranks=(0, 1))
    write(job(2), tmp_path, -24 * HOUR, ranks=(2, 3))
    report = diagnosed(tmp_path)
    assert finding(report, "D911").ranks == (2, 3)
    assert all(not set(ranks) & {2, 3} or rule == "rank-lost" for rule, ranks in errors(report))


@pytest.mark.parametrize("seed", range(4))
def test_a_dump_of_an_attempt_minutes_before_is_not_judged(tmp_path: Path, seed: int) -> None:
    write(job(seed, STUCK), tmp_path, ranks=(0, 1, 2))
    write(job(seed + 100), tmp_path, -3 * MINUTE, ranks=(3,))
    report = diagnosed(tmp_path)
    assert errors(report) == [("rank-stuck", (1,))]
    assert finding(report, "D911").ranks == (3,)


@pytest.mark.parametrize("later_ns", [-5 * MINUTE, 3 * MINUTE])
@pytest.mark.parametrize("seed", range(4))
def test_a_clock_that_is_off_is_no_other_run(tmp_path: Path, later_ns: int, seed: int) -> None:
    hung = job(seed, STUCK)
    write(hung, tmp_path, ranks=(0, 1, 2))
    write(hung, tmp_path, later_ns, ranks=(3,))
    report = diagnosed(tmp_path)
    assert errors(report) == [("rank-stuck", (1,))]
    assert all(each.code != "D911" for each in report.findings)
    # Defect: "waiting 5 min" was the clock's offset.
    assert (report.findings[0].evidence.waiting_ns or 0) < MINUTE


@pytest.mark.parametrize("seed", range(4))
def test_a_healthy_job_dumped_rank_after_rank_gets_no_error(tmp_path: Path, seed: int) -> None:
    """Defect: an error, "certain", against the ranks that were dumped first."""
    for rank, dump in job(seed).dumps():
        save(cut_to(dump, len(dump["entries"]) - 7 * rank), tmp_path, rank)
    report = diagnosed(tmp_path)
    assert errors(report) == []
    assert finding(report, "D911").ranks == (1, 2, 3)


@pytest.mark.parametrize("seed", range(4))
def test_a_rank_that_stopped_is_not_taken_for_a_stale_one(tmp_path: Path, seed: int) -> None:
    """All that its peers completed it completed too: it is the culprit, not its file."""
    write(job(seed, STUCK), tmp_path)
    report = diagnosed(tmp_path)
    assert errors(report) == [("rank-stuck", (1,))]
    assert [each.code for each in report.findings if each.code.startswith("D9")] == []


def test_two_jobs_in_one_tree_are_told_apart_and_the_newest_is_judged(tmp_path: Path) -> None:
    """Defect: per rank the newest file won, and one deadlock was made of two jobs."""
    write(job(1, STUCK), tmp_path / "good", -HOUR)
    write(job(2, Fault("op", rank=2, step=3)), tmp_path / "bad")
    report = diagnosed(tmp_path)
    assert errors(report) == [("op-mismatch", (2,))]
    assert "--capture 2" in finding(report, "D910").help
    assert errors(diagnosed(tmp_path, capture=2)) == [("rank-stuck", (1,))]


def test_attempts_in_folders_below_those_of_the_hosts(tmp_path: Path) -> None:
    for attempt, simulation in enumerate((job(1, STUCK), job(2, Fault("op", rank=2, step=3)))):
        for host in range(2):
            folder = tmp_path / f"node{host}" / f"attempt_{attempt}"
            write(simulation, folder, attempt * HOUR, ranks=(2 * host, 2 * host + 1))
    assert errors(diagnosed(tmp_path)) == [("op-mismatch", (2,))]
    assert errors(diagnosed(tmp_path, capture=2)) == [("rank-stuck", (1,))]


def test_hosts_in_folders_of_their_own_stay_one_capture(tmp_path: Path) -> None:
    hung = job(1, STUCK)
    for rank in range(4):
        write(hung, tmp_path / f"node{rank}", ranks=(rank,))
    report = diagnosed(tmp_path)
    assert errors(report) == [("rank-stuck", (1,))]
    assert len(report.capture.ranks) == 4
    assert all(each.code != "D910" for each in report.findings)


def test_jobs_of_different_size_in_one_folder(tmp_path: Path) -> None:
    write(job(1, STUCK), tmp_path)
    write(job(2, dp=8), tmp_path, -HOUR, ranks=(4, 5, 6, 7))
    report = diagnosed(tmp_path)
    assert errors(report) == [("rank-stuck", (1,))]
    assert report.capture.ranks == (0, 1, 2, 3)


def test_two_prefixes_in_one_folder_are_two_captures(tmp_path: Path) -> None:
    write(job(1, STUCK), tmp_path)
    for rank, dump in job(2).dumps():
        for entry in dump["entries"]:
            entry.update({name: entry[name] - HOUR for name in TIMES if entry[name]})
        save(dump, tmp_path, rank, prefix="eval_trace_rank_")
    report = diagnosed(tmp_path)
    assert errors(report) == [("rank-stuck", (1,))]
    assert finding(report, "D910").severity == "info"


@pytest.mark.parametrize("kind", ["op", "stuck", "size"])
def test_replicas_that_count_from_0_are_told_apart(tmp_path: Path, kind: str) -> None:
    """Defect: "Found no problem". torchft names the files by global ranks, and the members by those of the replica."""
    for first, fault in ((0, None), (4, Fault(kind, rank=1))):
        for rank, dump in simulate(JobSpec(Mesh(dp=2, tp=2)), fault).dumps():
            save(dump, tmp_path, first + rank)
    report = diagnosed(tmp_path)
    assert [ranks for _, ranks in errors(report)] == [(5,)]
    assert finding(report, "D912").evidence.facts["replica_size"] == 4
    assert all(each.code not in ("D910", "D911") for each in report.findings)


def test_members_that_fit_no_replica_are_told(tmp_path: Path) -> None:
    for rank, dump in simulate(JobSpec(Mesh(dp=2, tp=2))).dumps():
        dump["pg_config"]["0"]["ranks"] = "[0, 2]"
        save(dump, tmp_path, rank)
    report = diagnosed(tmp_path)
    assert finding(report, "D912").severity == "warning"
    assert "--group-world-size" in finding(report, "D912").help
