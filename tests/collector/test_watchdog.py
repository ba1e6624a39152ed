"""When a job counts as standing still."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.collect.dumps import watchdog
from rankscope.collect.dumps.recorder import Counts
from rankscope.collect.part import Part
from rankscope.collect.run import Run
from rankscope.collect.settings import Settings

STALL_S = 30.0


class Tracker(Part):
    NAME = "desync"
    progress: float | None = None

    def last_progress(self) -> float | None:
        return self.progress


class Job:
    """A watchdog, the job that it looks at, and the clock."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.counts: Counts | None = Counts()
        self.is_initialized = True
        self.dumps: list[str] = []
        self.run = Run(Settings(folder=str(folder), stall_seconds=STALL_S))
        self.run.rank = 3
        self.tracker = Tracker(self.run)
        self.dog = watchdog.Watchdog(self.run)
        monkeypatch.setattr(self.run, "dump", self._dump)
        monkeypatch.setattr(watchdog, "count_calls", lambda: self.counts)
        monkeypatch.setattr(watchdog, "is_initialized", lambda: self.is_initialized)
        monkeypatch.setattr("rankscope.collect.dumps.watchdog.time.monotonic", lambda: self.now)
        monkeypatch.setattr(self.run, "part", lambda name: self.tracker if name == "desync" else None)

    def _dump(self, reason: str) -> None:
        self.dumps.append(reason)
        self.run.publish("stacks", "stacks_3.txt", lambda path: path.write_text("x" * len(self.dumps)), replace=True)

    def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds * 4)):
            self.now += 0.25
            self.dog.tick()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(tmp_path, monkeypatch)


@pytest.mark.parametrize("n_enqueued", [7, 8])  # a rank that does not come, and one that waits
def test_it_dumps_once_when_nothing_finishes_and_says_where(
    job: Job, n_enqueued: int, capfd: pytest.CaptureFixture[str]
) -> None:
    job.counts = Counts(n_enqueued, 7)
    job.pass_time(3 * STALL_S)
    assert job.dumps == ["no collective has finished for 30 s"]
    told = f"no collective has finished for 30 s: wrote stacks_3.txt to {job.run.folder}"
    assert capfd.readouterr().err == f"rankscope: rank 3: {told}\n"


def test_not_while_calls_finish(job: Job) -> None:
    for number in range(10):
        job.counts = Counts(number + 1, number + 1)
        job.pass_time(STALL_S / 2)
    assert job.dumps == []


def test_before_the_first_call_has_finished(job: Job) -> None:
    job.counts = Counts(1, 0)
    job.pass_time(3 * STALL_S)
    assert job.dumps == ["no collective has finished for 30 s"]


def test_again_after_progress(job: Job) -> None:
    job.counts = Counts(7, 7)
    job.pass_time(2 * STALL_S)
    job.counts = Counts(8, 8)
    job.pass_time(2 * STALL_S)
    assert len(job.dumps) == 2


def test_not_once_the_groups_are_destroyed(job: Job) -> None:
    job.counts = Counts(7, 7)
    job.pass_time(STALL_S / 2)
    job.is_initialized = False
    job.pass_time(3 * STALL_S)
    assert job.dumps == []


def test_calls_that_only_the_tracker_sees_are_progress(job: Job) -> None:
    job.counts = Counts(7, 7)
    for _ in range(10):
        job.tracker.progress = job.now
        job.pass_time(STALL_S / 2)
    assert job.dumps == []
    job.pass_time(STALL_S)
    assert len(job.dumps) == 1


def test_it_can_be_switched_off(tmp_path: Path, job: Job) -> None:
    job.run.settings = Settings(folder=str(tmp_path), stall_seconds=0)
    job.dog = watchdog.Watchdog(job.run)
    job.counts = Counts(7, 7)
    job.pass_time(3 * STALL_S)
    assert job.dumps == []


@pytest.mark.parametrize(
    ("is_joining", "has_joined", "reason"),
    [
        (False, False, "torch.distributed has not been initialized for 30 s"),
        (True, False, "init_process_group has not returned for 30 s"),
        (False, True, "the process has not ended for 30 s since destroy_process_group"),
    ],
)
def test_outside_of_the_groups_life(job: Job, is_joining: bool, has_joined: bool, reason: str) -> None:
    job.run.world_size, job.run.is_joining, job.is_initialized = 2, is_joining, False
    if has_joined:
        job.dog.joined()
    job.pass_time(3 * STALL_S)
    assert job.dumps == [reason]


def test_a_process_that_is_alone_may_take_its_time(job: Job) -> None:
    job.is_initialized = False
    job.pass_time(3 * STALL_S)
    assert job.dumps == []
