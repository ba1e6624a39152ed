"""Worlds that were alive side by side, each with ranks from 0: all are judged in one run, whatever told them apart."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

import rankscope
from rankscope import pipeline
from rankscope.model.finding import Report
from rankscope.simulate.profiler import ProfileFault, ProfileSpec, simulate_profile
from rankscope.simulate.spec import Fault
from read.test_mixed_dumps import HOUR, MINUTE, STUCK, diagnosed, errors, finding, job, save, write

OTHER = Fault("op", rank=2, step=3)
LATER = 7_000_000  # worlds do not start at the same nanosecond


def by_world(report: Report) -> set[tuple[str, str, tuple[int, ...]]]:
    names = {world.number: world.name for world in report.capture.worlds}
    return {
        (names[each.evidence.capture or 0], each.rule, each.ranks)
        for each in report.findings
        if each.severity == "error"
    }


def write_named(folder: Path, prefix: str, simulation: Any, later_ns: int = 0) -> None:
    write(simulation, folder / "aside", later_ns)
    for path in sorted((folder / "aside").iterdir()):
        path.rename(folder / path.name.replace("nccl_", prefix))
    (folder / "aside").rmdir()


def test_worlds_in_folders_are_both_judged(tmp_path: Path) -> None:
    """Defect: one was judged, and the other, which may be the one that hangs, only named in a warning."""
    write(job(1, STUCK), tmp_path / "trainer")
    write(job(2, OTHER), tmp_path / "rollout", LATER)
    report = diagnosed(tmp_path)
    assert by_world(report) == {("trainer", "rank-stuck", (1,)), ("rollout", "op-mismatch", (2,))}
    assert all(each.code != "D910" for each in report.findings)
    assert report.findings[0].evidence.capture == report.capture.world
    for number in (1, 2):
        chosen = diagnosed(tmp_path, capture=number)
        assert len(errors(chosen)) == 1
        assert chosen.capture.worlds == ()
        assert finding(chosen, "D910").evidence.facts["not_judged"]


def test_worlds_of_two_prefixes_and_of_two_sizes(tmp_path: Path) -> None:
    write_named(tmp_path / "names", "trainer_", job(1, STUCK))
    write_named(tmp_path / "names", "rollout_", job(2), LATER)
    assert by_world(diagnosed(tmp_path / "names")) == {("trainer", "rank-stuck", (1,))}
    write_named(tmp_path / "sizes", "a_", job(1, STUCK))
    write_named(tmp_path / "sizes", "b_", job(2, Fault("stuck", rank=6, step=4), dp=8), LATER)
    assert by_world(diagnosed(tmp_path / "sizes")) == {("a", "rank-stuck", (1,)), ("b", "rank-stuck", (6,))}


def write_profiles(folder: Path, seed: int, fault: ProfileFault | None = None) -> None:
    folder.mkdir(parents=True)
    simulate_profile(ProfileSpec(data_parallel=2, n_steps=6, n_layers=1, seed=seed), fault).write(folder)


def test_worlds_of_which_there_are_only_profiles_are_kept_apart(tmp_path: Path) -> None:
    """Defect: the calls of two jobs were one match, and the delay of one was told as twice as long in both."""
    write_profiles(tmp_path / "jobs" / "trainer", 3, ProfileFault("slow-kernels", rank=1))
    write_profiles(tmp_path / "jobs" / "rollout", 4)
    worlds = pipeline.load([tmp_path / "jobs"])
    report = pipeline.diagnose(worlds)
    alone = pipeline.diagnose(pipeline.load([tmp_path / "jobs" / "trainer"]))
    assert [world.name for world in report.capture.worlds] == ["rollout", "trainer"]
    (late,) = (each for each in report.findings if each.code == "S202")
    (late_alone,) = (each for each in alone.findings if each.code == "S202")
    assert late.title == f"trainer: {late_alone.title}"
    assert late.evidence.cost_ns == late_alone.evidence.cost_ns
    assert all(each.code != "D908" for each in report.findings)
    for world in (worlds, *worlds.beside):
        assert world.sql("SELECT count(DISTINCT file_id), max(n_ranks) FROM call_matches, calls").rows() == [(2, 2)]


def test_folders_of_one_rank_each_and_copies_are_one_world(tmp_path: Path) -> None:
    write_profiles(tmp_path / "a", 3)
    for rank in range(2):
        (tmp_path / "hosts" / f"node{rank}").mkdir(parents=True)
        copy = tmp_path / "hosts" / f"node{rank}" / f"kineto_trace_{rank}.json.gz"
        copy.hardlink_to(next((tmp_path / "a").glob(f"*_{rank}.json.gz")))
    assert pipeline.load([tmp_path / "hosts"]).beside == []
    assert pipeline.load([tmp_path]).beside == []


def test_healthy_worlds_get_no_word(tmp_path: Path) -> None:
    for number, name in enumerate(("trainer", "rollout", "eval")):
        write(job(number), tmp_path / name, number * LATER)
    report = diagnosed(tmp_path)
    assert report.findings == ()
    assert {world.name for world in report.capture.worlds} == {"trainer", "rollout", "eval"}


@pytest.mark.parametrize("later_ns", [HOUR, 20 * MINUTE])
def test_attempts_one_after_the_other_are_not_worlds(tmp_path: Path, later_ns: int) -> None:
    write(job(1, STUCK), tmp_path / "first")
    write(job(2, OTHER), tmp_path / "second", later_ns)
    report = diagnosed(tmp_path)
    assert errors(report) == [("op-mismatch", (2,))]
    assert report.capture.worlds == ()
    assert finding(report, "D910").severity == "info"


def test_copies_of_one_job_are_not_worlds(tmp_path: Path) -> None:
    write(job(1, STUCK), tmp_path / "dumps")
    write(job(1, STUCK), tmp_path / "backup")
    report = diagnosed(tmp_path)
    assert errors(report) == [("rank-stuck", (1,))]
    assert report.capture.worlds == ()


def test_a_few_ranks_of_another_job_are_named_and_not_judged(tmp_path: Path) -> None:
    write(job(1, STUCK), tmp_path / "trainer")
    write(job(2, dp=8), tmp_path / "rollout", LATER, ranks=(0, 1))
    report = diagnosed(tmp_path)
    assert errors(report) == [("rank-stuck", (1,))]
    assert finding(report, "D910").severity == "warning"


def write_stacks(folder: Path, rank: int, moment_ns: int, *frames: str, name: str = "stacks_{}.txt") -> None:
    moment = datetime.datetime.fromtimestamp(moment_ns / 1e9, datetime.timezone.utc).isoformat()
    header = (
        f"=== rankscope stacks: rank {rank}, pid {100 + rank}, {moment}, reason: no collective has finished for 9 s ==="
    )
    lines = "".join(f"  File {frame}\n" for frame in frames)
    text = f"{header}\nCurrent thread 0x0000000000000001 (most recent call first):\n{lines}"
    (folder / name.format(rank)).write_text(text)


IN_RAY = (
    '"/usr/lib/python3/site-packages/ray/_private/worker.py", line 900 in get',
    '"/job/train.py", line 7 in fetch',
)
IN_LOADER = ('"/job/data.py", line 3 in read', '"/job/train.py", line 9 in load')


@pytest.fixture(params=[True, False], ids=["folders", "names"])
def stacked(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Rank 1 of the trainer waits in ray.get, rank 1 of the rollout in its own code."""
    for number, name in enumerate(("trainer", "rollout")):
        simulation = job(number, STUCK)
        if request.param:
            write(simulation, tmp_path / name, number * LATER)
        else:
            write_named(tmp_path, f"{name}_", simulation, number * LATER)
    last = max(world.last_ns or 0 for world in diagnosed(tmp_path).capture.worlds) + MINUTE
    for name, frames in (("trainer", IN_RAY), ("rollout", IN_LOADER)):
        if request.param:
            write_stacks(tmp_path / name, 1, last, *frames)
        else:
            write_stacks(tmp_path, 1, last, *frames, name=f"{name}_stacks_{{}}.txt")
    return tmp_path


def test_a_world_in_ray_get_is_an_effect_of_the_one_that_hangs(stacked: Path) -> None:
    report = diagnosed(stacked)
    assert by_world(report) == {("rollout", "rank-stuck", (1,))}
    first = report.findings[0]
    assert first.location is not None
    assert first.location.file == "/job/data.py"
    assert first.evidence.likely[-1] == (
        "trainer waits for this world: its rank 1 is waiting in ray.get, in get (worker.py:900)"
    )
    (effect,) = [each for each in report.effects if each.severity == "error"]
    assert effect.title.startswith("trainer: rank 1 never reached")
    trace = rankscope.load(str(stacked))
    shown = pipeline.shown_world(trace, rankscope.diagnose(trace))
    assert shown.world is not None
    assert shown.world.name == "rollout"


def test_two_worlds_in_ray_get_may_wait_for_each_other(stacked: Path) -> None:
    path = next(path for path in stacked.rglob("*stacks_1.txt") if "rollout" in str(path))
    header = path.read_text().partition("\n")[0]
    frames = "".join(f"  File {frame}\n" for frame in IN_RAY)
    path.write_text(f"{header}\nCurrent thread 0x0000000000000001 (most recent call first):\n{frames}")
    report = diagnosed(stacked)
    assert {name for name, _, _ in by_world(report)} == {"trainer", "rollout"}
    assert all("may be waiting for each other" in each.evidence.likely[0] for each in report.findings[:2])


def test_stacks_that_could_be_of_either_world_are_not_used(tmp_path: Path) -> None:
    write_named(tmp_path, "trainer_", job(1, STUCK))
    write_named(tmp_path, "rollout_", job(2), LATER)
    write_stacks(tmp_path, 1, 2 * 10**18, *IN_LOADER)
    trace = rankscope.load(str(tmp_path))
    (row,) = [row for row in trace.table("files").rows() if row["path"].endswith("stacks_1.txt")]
    assert row["status"] == "ignored"
    assert "could be from any of the worlds" in row["problem"]
    assert not trace.has("thread_stacks")


def test_a_group_that_two_worlds_share(tmp_path: Path) -> None:
    """The rollout waits in the group for the trainer, of which nothing else is known."""
    for number, name in enumerate(("trainer", "rollout")):
        for rank, dump in job(number, dp=2).dumps():
            last = max(dump["entries"], key=lambda entry: entry["time_created_ns"])
            shared = {**last, "process_group": ("weight_sync", "undefined"), "pg_name": "weight_sync", "pg_id": 90}
            shared["time_created_ns"] += 10**6 + number * LATER
            joins = rank == 0 or name == "rollout"
            n_calls = 2 if name == "rollout" else 1
            for seq in range(1, n_calls + 1) if joins else ():
                is_open = (
                    {"state": "scheduled", "retired": False, "time_discovered_completed_ns": None} if seq == 2 else {}
                )
                times = {"time_created_ns": shared["time_created_ns"] + seq, "record_id": last["record_id"] + seq}
                dump["entries"].append({**shared, **times, **is_open, "collective_seq_id": seq, "op_id": seq})
            (tmp_path / name).mkdir(exist_ok=True)
            save(dump, tmp_path / name, rank)
    report = diagnosed(tmp_path)
    assert by_world(report) == {("trainer", "rank-stuck", (0,))}
    assert "that ranks 0,1 of rollout are waiting in" in report.findings[0].title
