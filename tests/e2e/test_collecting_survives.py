"""The job comes first: whatever happens to the collector, it ends as it would without. And when a rank itself fails,
what is left tells which one and where.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from collected_jobs import (
    TORCHRUN,
    Ended,
    Script,
    collected,
    end,
    environment,
    files_of,
    free_port,
    manifest_of,
    problems_of,
    run_scripts,
    start_record,
)
from launching import JOB_LIMIT_S, JOBS, Diagnosis, code_site, diagnose

from rankscope.collect.launching import leftovers
from rankscope.collect.settings import Settings

pytest.importorskip("torch")
pytestmark = pytest.mark.e2e

JOB = "collected_survivor"
TRAINING = str(JOBS / "collected_training.py")
PROFILED = {"torch_et_0.json", "kineto_trace_0.json", "kineto_clean_0.json"}
MANIFEST = {"manifest.json", "manifest.d/rank_0.json"}
SMALL_DISK = 1 << 16
ALL_FILES = {*PROFILED, *MANIFEST, "metrics_0.jsonl", "host_0.jsonl"}


class Survived(NamedTuple):
    ended: Ended
    folder: Path

    @property
    def problems(self) -> dict[str, str]:
        """The last one of each part."""
        return {what: problem for _, what, problem in problems_of(self.folder)}


def survive(scratch: Path, case: str, *arguments: str, folder: Path | None = None) -> Survived:
    """Runs a case without the collector and with it, and sees that its user could not tell which was which."""
    folder = folder or scratch / "traces"
    settings = Settings(folder=str(folder), run_id="test", desync=True, cpp_stacks=True)
    scripts = []
    for name, variables in (("without", {}), ("with", collected(settings, environment()))):
        own = scratch / name
        own.mkdir()
        scripts.append(Script(JOB, [case, str(own), *arguments], variables))
    without, with_it = run_scripts(scratch, scripts)
    assert (with_it.code, with_it.out) == (without.code, without.out)
    assert contents(scratch / "with") == contents(scratch / "without")
    return Survived(with_it, folder)


def contents(folder: Path) -> dict[str, str]:
    return {name: (folder / name).read_text() for name in files_of(folder)}


def test_a_job_that_trains_is_not_changed(tmp_path: Path) -> None:
    survived = survive(tmp_path, "train")
    assert survived.ended.code == 0
    assert files_of(survived.folder) == ALL_FILES
    assert survived.problems == {}


def test_a_disk_that_takes_no_more(tmp_path: Path) -> None:
    survived = survive(tmp_path, "trains_with_little_space", "3000")
    assert files_of(survived.folder) == {*MANIFEST, "metrics_0.jsonl", "host_0.jsonl"}
    # How much the sampler has to write depends on how long the job takes.
    assert survived.problems.keys() - {"host"} == {"execution_trace", "kineto", "kineto_clean"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    survived = survive(tmp_path, "train", folder=small_disk / "traces")
    assert files_of(survived.folder) >= MANIFEST
    assert not any(name.endswith((".partial", ".tmp")) for name in files_of(survived.folder))
    assert "execution_trace" in survived.problems


def test_a_disk_that_is_full_from_the_start(small_disk: Path, tmp_path: Path) -> None:
    with (small_disk / "filled").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1024))
    survived = survive(tmp_path, "train", folder=small_disk / "traces")
    assert survived.ended.err.startswith("rankscope: nothing is collected on rank 0: ")


def test_a_read_only_disk(small_disk: Path, tmp_path: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    survived = survive(tmp_path, "train", folder=small_disk / "traces")
    assert "Read-only file system" in survived.ended.err


def test_a_folder_that_cannot_be_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    survived = survive(tmp_path, "train", folder=tmp_path / "file" / "traces")
    assert survived.ended.err.count("rankscope: ") == 1
    assert "cannot write to" in survived.ended.err


def test_a_folder_that_is_removed(tmp_path: Path) -> None:
    survived = survive(tmp_path, "trains_while_a_folder_vanishes", str(tmp_path / "traces"))
    assert survived.ended.code == 0
    assert not any(name.endswith(".partial") for name in files_of(survived.folder))


def test_a_job_that_profiles_itself(tmp_path: Path) -> None:
    survived = survive(tmp_path, "profiles_all_steps")
    assert "profiled 13 calls\nobserved 13 calls\n" in survived.ended.out
    assert not PROFILED & files_of(survived.folder)
    assert "profiling" in survived.problems


def test_a_job_that_begins_to_profile_in_the_middle(tmp_path: Path) -> None:
    survived = survive(tmp_path, "profiles_in_the_middle")
    assert "profiled 1 calls\n" in survived.ended.out
    assert "profiling" in survived.problems


def test_an_interrupt(tmp_path: Path) -> None:
    survived = survive(tmp_path, "is_interrupted")
    assert survived.ended.code != 0
    assert survived.ended.err.count("KeyboardInterrupt") == 1
    assert "reason: KeyboardInterrupt" in (survived.folder / "stacks_0.txt").read_text()
    assert files_of(survived.folder) >= {"torch_et_0.json", "kineto_trace_0.json", "metrics_0.jsonl"}


def test_an_interrupt_that_the_job_catches(tmp_path: Path) -> None:
    survived = survive(tmp_path, "catches_an_interrupt")
    assert survived.ended.code == 130
    for stacks in survived.folder.glob("stacks_0.txt"):  # where it was, if it lived on for long enough to write it
        assert re.findall(r"reason: (.*) ===$", stacks.read_text(), re.MULTILINE) == ["SIGINT"]  # no exception got out


def test_handlers_of_the_jobs_own(tmp_path: Path) -> None:
    survived = survive(tmp_path, "has_handlers_of_its_own")
    assert survived.ended.out.splitlines()[1:] == [
        "got SIGUSR2",
        "got SIGTERM",
        "got SIGUSR2",
        "hook got ValueError nobody catches this",
    ]
    stacks = (survived.folder / "stacks_0.txt").read_text()
    assert "reason: ValueError: nobody catches this" in stacks
    assert "reason: SIGUSR2" in stacks


def test_sigterm(tmp_path: Path) -> None:
    survived = survive(tmp_path, "dies_by_sigterm")
    assert survived.ended.code == -15
    assert "reason: SIGTERM" in (survived.folder / "stacks_0.txt").read_text()


@pytest.mark.parametrize(("case", "code"), [("leaves_with_a_code", 3), ("leaves_with_a_text", 1)])
def test_ways_to_leave(case: str, code: int, tmp_path: Path) -> None:
    survived = survive(tmp_path, case)
    assert survived.ended.code == code
    assert files_of(survived.folder) == ALL_FILES


def test_a_job_that_leaves_at_once_has_its_files_completed(tmp_path: Path) -> None:
    survived = survive(tmp_path, "leaves_at_once")
    assert survived.ended.code == 4
    about = {"id": "test", "command": [], "started_ns": 1, "ended_ns": 2, "exit_code": 4}
    leftovers.finish(survived.folder, about)
    assert files_of(survived.folder) == ALL_FILES
    (rank,) = manifest_of(survived.folder)["ranks"]
    assert {got["file"] for got in rank["got"]} == ALL_FILES - MANIFEST
    assert survived.problems == {"rank": leftovers.KILLED}


@pytest.mark.parametrize(("start_method", "n_workers"), [("fork", "2"), ("spawn", "1")])
def test_workers_that_load_data_are_no_ranks(start_method: str, n_workers: str, tmp_path: Path) -> None:
    survived = survive(tmp_path, "loads_with_workers", start_method, n_workers)
    assert "loaded 140\n" in survived.ended.out
    assert files_of(survived.folder) == ALL_FILES


def test_a_job_that_closes_all_files(tmp_path: Path) -> None:
    survived = survive(tmp_path, "closes_all_files")
    assert "Traceback" not in survived.ended.err
    assert files_of(survived.folder) >= {*PROFILED, *MANIFEST}
    assert "metrics" in survived.problems


def test_a_store_that_is_killed(tmp_path: Path) -> None:
    """Rank 0 hosts it."""
    settings = Settings(folder=str(tmp_path / "traces"), run_id="test", desync=True)
    scripts: list[Script] = []
    variables: dict[str, str]
    for variables in ({}, collected(settings, environment())):
        port = free_port()
        for rank in range(2):
            own = tmp_path / f"own_{len(scripts)}"
            own.mkdir()
            scripts.append(Script(JOB, ["loses_its_store", str(own), str(rank), port], variables))
    killed, without, killed_too, with_it = run_scripts(tmp_path, scripts)
    assert killed.code == killed_too.code == -9
    assert (with_it.code, with_it.out) == (without.code, without.out)
    assert with_it.out.endswith("RuntimeError\n")
    found = files_of(tmp_path / "traces")
    assert {"nccl_trace_rank_1", "rankscope_trace_rank_1", "metrics_1.jsonl", "kineto_trace_1.json"} <= found


class Failed(NamedTuple):
    ended: Ended
    folder: Path
    diagnosis: Diagnosis


def fail(tmp_path: Path, process: subprocess.Popen[str], n_ranks: int) -> Failed:
    folder = tmp_path / "traces"
    ended = end(process)
    assert manifest_of(folder)["run"]["exit_code"] == ended.code
    assert [rank["rank"] for rank in manifest_of(folder)["ranks"]] == list(range(n_ranks))
    assert not [name for name in files_of(folder) if name.endswith(".partial")]
    diagnosis = diagnose(folder)
    assert [file for file in diagnosis.report["findings"] if file["code"] == "D901"] == []
    return Failed(ended, folder, diagnosis)


def files_of_ranks(*ranks: int) -> set[str]:
    kinds = ("metrics_{}.jsonl", "nccl_trace_rank_{}", "stacks_{}.txt")
    return {kind.format(rank) for kind in kinds for rank in ranks}


def test_a_rank_that_is_killed(tmp_path: Path) -> None:
    job = (sys.executable, TRAINING, "--forks", "3", "--killed", "1")
    failed = fail(tmp_path, start_record(tmp_path / "traces", ("--desync",), job), 3)
    assert failed.ended.code == 9  # as the job's own parent tells it
    assert files_of(failed.folder) >= {
        *files_of_ranks(0, 2),
        "metrics_1.jsonl",
        "rankscope_trace_rank_0",
        "rankscope_trace_rank_2",
    }
    assert (1, "rank", leftovers.KILLED) in problems_of(failed.folder)
    first = failed.diagnosis.errors[0]
    assert (first["rule"], first["ranks"]) == ("rank-ended", [1])
    assert first["peer_location"] == code_site("collected_training", "exchange", "dist.all_reduce(")
    assert re.search(r"error\[H116\] \(\w+\) rank 1", failed.ended.err)


def test_a_rank_that_raises(tmp_path: Path) -> None:
    job = (sys.executable, TRAINING, "--forks", "3", "--raises", "1")
    failed = fail(tmp_path, start_record(tmp_path / "traces", (), job), 3)
    assert failed.ended.code == 1
    assert files_of(failed.folder) >= files_of_ranks(0, 1, 2)
    first = failed.diagnosis.errors[0]
    assert first["ranks"] == [1]
    assert first["location"] == code_site("collected_training", "fail", "raise RuntimeError(")
    assert "raised RuntimeError: this rank cannot go on" in first["title"]


def test_a_rank_that_sleeps_for_ever(tmp_path: Path) -> None:
    """The watchdog sees it; then the job is ended."""
    job = (*TORCHRUN, "--nproc-per-node", "2", TRAINING, "--sleeps", "1")
    process = start_record(tmp_path / "traces", ("--desync", "--stall", "2"), job)
    stalled = "no collective has finished for 2 s: wrote"
    wait_for(process, " - [0] Timeout at collective: ALLREDUCE, #15\n", f"rank 0: {stalled}", f"rank 1: {stalled}")
    process.send_signal(signal.SIGTERM)
    failed = fail(tmp_path, process, 2)
    assert failed.ended.code == 1  # torchrun's own
    assert files_of(failed.folder) >= {*files_of_ranks(0, 1), "desync_0.txt", "rankscope_trace_rank_1"}
    first = failed.diagnosis.errors[0]
    assert (first["rule"], first["ranks"]) == ("rank-stuck", [1])
    assert first["location"] == code_site("collected_training", "fail", "time.sleep(")
    assert first["peer_location"] == code_site("collected_training", "exchange", "dist.all_reduce(")


def wait_for(process: subprocess.Popen[str], *texts: str) -> None:
    """Until all of them were said on stderr; a job that does not say them is ended."""
    assert process.stderr
    missing = set(texts)
    too_late = threading.Timer(JOB_LIMIT_S, process.terminate)
    too_late.start()
    while missing:
        line = process.stderr.readline()
        assert line, f"the job ended and has not said: {missing}"
        missing = {text for text in missing if text not in line}
    too_late.cancel()
