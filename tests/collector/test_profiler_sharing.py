"""The job's own profilers never suffer from the collector's."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.profiled_job import ALL_FILES, Job, profiled_job, user_profiler

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("default")]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with profiled_job(tmp_path) as job:
        yield job


def test_a_profiler_of_the_job_that_runs_already_is_waited_for(job: Job) -> None:
    with user_profiler() as profiler:
        job.begin()
        job.train(5)
    assert sum(event.name == "aten::addmm" for event in profiler.events()) == 10
    job.train(8)
    job.end()
    assert job.files() == ALL_FILES
    assert job.steps_in("kineto_trace_0.json") == [8, 9]
    assert "waited for the job's own profiler" in job.problems()


def test_a_profiler_that_the_job_starts_meanwhile_gets_all_its_steps(job: Job) -> None:
    job.begin()
    job.train(2)
    job.forward_and_backward()
    with user_profiler() as profiler:  # amid the first step that is recorded
        job.optimizer.step()
        job.train(2)
    assert sum(event.name == "aten::addmm" for event in profiler.events()) == 4
    job.train(8)
    job.end()
    assert job.files() == ALL_FILES
    assert job.steps_in("torch_et_0.json") == job.steps_in("kineto_trace_0.json") == [8, 9]
    assert "the job started its own profiler in step 3" in job.problems()


@pytest.mark.parametrize("n_before", range(8))
def test_a_scheduled_profiler_of_the_job_never_notices(job: Job, tmp_path: Path, n_before: int) -> None:
    """It begins before, amid and after each phase of the collector's, with an observer of its own."""
    path = tmp_path / "own_et.txt"
    n_seen: list[int] = []
    job.begin()
    job.train(n_before)
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(path))
    with user_profiler(
        schedule=torch.profiler.schedule(wait=1, warmup=2, active=2, repeat=1),
        on_trace_ready=lambda ready: n_seen.append(sum(event.name == "aten::addmm" for event in ready.events())),
        execution_trace_observer=observer,
    ) as profiler:
        for _ in range(6):
            job.train(1)
            profiler.step()
    assert n_seen == [4]
    assert len(re.findall('"ProfilerStep#', path.read_text())) == 2
    job.train(8)
    job.end()
    assert job.files() == ALL_FILES
    assert job.steps_in("torch_et_0.json") == job.steps_in("kineto_trace_0.json")


def test_an_observer_of_the_job_that_was_there_before_is_left_alone(job: Job, tmp_path: Path) -> None:
    path = tmp_path / "own_et.txt"
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(path))
    job.begin()
    job.train(3)
    observer.start()
    job.train(2)
    observer.stop()
    observer.unregister_callback()
    assert len(re.findall('"Optimizer.step', path.read_text())) == 2
    job.train(8)
    job.end()
    assert job.files() == ALL_FILES


def test_a_profiler_that_only_waits_when_the_run_begins_is_known(job: Job) -> None:
    n_seen: list[int] = []
    profiler = user_profiler(
        schedule=torch.profiler.schedule(wait=0, warmup=4, active=1, repeat=1),
        on_trace_ready=lambda ready: n_seen.append(sum(event.name == "aten::addmm" for event in ready.events())),
    )
    with profiler:
        job.begin()
        for _ in range(6):
            job.train(1)
            profiler.step()
    assert n_seen == [2]
    job.train(8)


@pytest.mark.parametrize("kind", ["profile", "emit_itt"])
def test_older_profilers_have_their_way_too(job: Job, kind: str) -> None:
    job.begin()
    for _ in range(3):
        job.train(2)
        with getattr(torch.autograd.profiler, kind)():
            job.train(1)
    job.train(8)
    job.end()
    assert job.files() == ALL_FILES


@pytest.mark.parametrize("n_before", [2, 3, 5])
def test_a_profiler_in_another_thread_waits_for_the_step_to_end(job: Job, n_before: int) -> None:
    """While ours is prepared, while it records, and while it records the clean steps."""
    n_seen: list[int] = []

    def profile_elsewhere() -> None:
        with user_profiler() as profiler:
            torch.ones(3).add(1)
        n_seen.append(sum(event.name == "aten::add" for event in profiler.events()))

    job.begin()
    job.train(n_before)
    thread = threading.Thread(target=profile_elsewhere)
    thread.start()
    while thread.is_alive():
        job.train(1)
    thread.join()
    job.train(12)
    job.end()
    assert n_seen == [1]
    assert job.files() == ALL_FILES
    assert job.steps_in("torch_et_0.json") == job.steps_in("kineto_trace_0.json")


def test_a_profiler_in_another_thread_does_not_wait_for_ever(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.collect.profile.session._SECONDS_TO_GIVE_WAY", 0.01)
    n_seen: list[int] = []

    def train_and_profile() -> None:
        """Ours is bound to this thread, whose state no other test gets."""
        job.begin()
        job.train(3)
        thread = threading.Thread(target=profile_elsewhere)
        thread.start()
        thread.join()
        job.train(8)

    def profile_elsewhere() -> None:
        with user_profiler() as profiler:
            torch.ones(3).add(1)
        n_seen.append(sum(event.name == "aten::add" for event in profiler.events()))

    training = threading.Thread(target=train_and_profile)
    training.start()
    training.join()
    job.end()
    assert n_seen == [1]
    assert job.files() == set()
