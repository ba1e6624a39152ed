"""Execution trace and Kineto trace cover the same steps, with what was asked for, whenever the job ends."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collector.profiled_job import ALL_FILES, Job, profiled_job, user_profiler
from rankscope.collect.profile.session import is_whole
from rankscope.pipeline import load

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("default")]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with profiled_job(tmp_path) as job:
        yield job


def test_both_traces_cover_the_same_steps_and_link(job: Job) -> None:
    job.begin()
    job.train(8)
    job.end()
    assert job.files() == ALL_FILES
    assert job.steps_in("torch_et_0.json") == job.steps_in("kineto_trace_0.json") == [3, 4]
    assert job.steps_in("kineto_clean_0.json") == [6]
    assert {entry["what"] for entry in job.manifest()["got"]} == {
        "execution_trace",
        "kineto",
        "kineto_clean",
        "metrics",
    }
    assert job.problems() == ""
    assert links(job.folder) == [("torch_et_0.json", "kineto_trace_0.json", "id", 100.0)]


def links(folder: Path) -> list[tuple[str, str, str, float]]:
    """Execution trace, the profiler trace that belongs to it, how it was linked and how much of it."""
    trace = load([folder])
    names = {row["file_id"]: Path(row["path"]).name for row in trace.table("files").rows()}
    pairs = trace.table("et_pairs").rows()
    return [(names[pair["file_id"]], names[pair["profile_id"]], pair["method"], pair["link_pct"]) for pair in pairs]


def test_steps_enclose_all_that_happens_in_them(job: Job) -> None:
    job.begin()
    job.train(8)
    job.end()
    nodes = json.loads((job.folder / "torch_et_0.json").read_text())["nodes"]
    names = {node["id"]: node["name"] for node in nodes}
    parents = [names[node["ctrl_deps"]] for node in nodes if node["name"].startswith("Optimizer.step")]
    assert parents == ["ProfilerStep#3", "ProfilerStep#4"]
    roots = [names.get(node["ctrl_deps"]) for node in nodes if node["name"].startswith("ProfilerStep")]
    assert set(roots) == {"[pytorch|profiler|execution_trace|thread]"}


@pytest.mark.parametrize(
    ("settings", "files"),
    [
        ({"execution_trace": False}, {"kineto_trace_0.json"}),
        ({"kineto": False}, {"torch_et_0.json"}),
        ({"clean": 0}, {"torch_et_0.json", "kineto_trace_0.json"}),
        ({"wait": 0, "warmup": 0}, ALL_FILES),
        ({"repeat": 2}, {*ALL_FILES, *(f"cycle_2/{name}" for name in ALL_FILES)}),
        ({"gzip": True}, {f"{name}.gz" for name in ALL_FILES}),
    ],
)
def test_settings_choose_what_is_recorded(job: Job, settings: dict[str, Any], files: set[str]) -> None:
    job.begin(**settings)
    job.train(16)
    job.end()
    assert job.files() == files
    assert job.problems() == ""
    for name in files:
        content = (job.folder / name).read_bytes()
        json.loads(gzip.decompress(content) if name.endswith(".gz") else content)


def test_the_first_step_can_be_recorded(job: Job) -> None:
    job.begin(wait=0, warmup=0)
    job.train(4)
    job.end()
    assert job.steps_in("kineto_trace_0.json") == job.steps_in("torch_et_0.json") == [1, 2]
    assert job.steps_in("kineto_clean_0.json") == [3]


def test_details_are_recorded_on_request(job: Job) -> None:
    job.begin(with_stack=True, memory=True, shapes=True, execution_trace=False)
    job.train(5)
    job.end()
    text = (job.folder / "kineto_trace_0.json").read_text()
    assert all(word in text for word in ('"Input Dims"', "[memory]", "python_function", "test_profiling.py"))


def test_two_optimizers_make_one_step(job: Job) -> None:
    other = torch.optim.Adam([torch.nn.Parameter(torch.ones(3), requires_grad=True)])
    job.begin()
    for _ in range(8):
        job.train(1)
        other.step()
    job.end()
    assert job.steps_in("kineto_trace_0.json") == job.steps_in("torch_et_0.json") == [3, 4]


def test_a_compiled_model_is_recorded_and_linked(job: Job) -> None:
    job.model = torch.compile(job.model, backend="aot_eager")
    job.begin()
    job.train(8)
    job.end()
    assert links(job.folder) == [("torch_et_0.json", "kineto_trace_0.json", "id", 100.0)]
    assert job.problems() == ""


def test_a_job_that_ends_early_keeps_what_was_recorded(job: Job) -> None:
    job.begin(active=50)
    job.train(5)
    job.end()
    assert job.files() == {"torch_et_0.json", "kineto_trace_0.json"}
    assert job.steps_in("torch_et_0.json") == job.steps_in("kineto_trace_0.json") == [3, 4, 5]
    assert '"ProfilerTail#6"' in (job.folder / "torch_et_0.json").read_text()  # not whole: no step
    assert "kineto_trace_0.json cover 3 complete steps" in job.problems()


@pytest.mark.parametrize(
    ("n_steps", "told"),
    [
        (0, "no training steps detected"),
        (1, "ended after 1 step,"),
        (2, "ended after 2 steps"),
        (4, "before the requested steps"),
    ],
)
def test_a_job_with_too_few_steps_is_told_why_nothing_is_there(job: Job, n_steps: int, told: str) -> None:
    job.begin()
    job.train(n_steps)
    job.end()
    assert told in job.problems()
    assert job.manifest()["problems"][0]["hint"]


def test_a_trace_without_operators_is_a_problem(job: Job) -> None:
    """Steps in which nothing runs: both files are kept, and both are told."""
    job.begin(clean=0)
    for _ in range(6):
        assert job.run is not None
        job.run.step()
    job.end()
    assert job.files() == {"torch_et_0.json", "kineto_trace_0.json"}
    told = {entry["what"]: entry["problem"] for entry in job.manifest()["problems"]}
    assert told == {
        "execution_trace": "torch_et_0.json has no operators: nothing ran in the steps that it covers",
        "kineto": "kineto_trace_0.json has no operators: nothing ran in the steps that it covers",
    }


def test_files_beyond_the_limit_are_not_kept(job: Job) -> None:
    job.begin(max_bytes=5000)
    job.train(8)
    job.end()
    assert job.files() == set()
    assert "exceeds the limit of 5,000 bytes" in job.problems()


def test_a_file_that_lacks_its_end_is_not_kept(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_half(_: Any, path: str) -> None:
        Path(f"{path}.tmp").write_text("left by Kineto")
        Path(path).write_text('{"traceEvents": [{"name": "x", "args": {"Input Dims": [[4, 8]]}}')

    monkeypatch.setattr(torch.profiler._KinetoProfile, "export_chrome_trace", write_half)
    job.begin()
    job.train(8)
    job.end()
    assert job.files() == {"torch_et_0.json"}
    assert "kineto_trace_0.json was not written" in job.problems()


def test_the_end_of_a_file_tells_whether_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for text, expected in (
        ('{"traceEvents": [\n{"a": [1]}\n],"traceName": "/x/y.json" }', True),
        ('{"nodes": [{"a": []}\n  ],\n  "finish_ts": 4673\n}', True),
        ('{"nodes": [{"a": []}\n  ]\n}\n', True),
        ('{"nodes": [{"a": []}, {"b": 1}', False),
        ('{"nodes": [{"a": []}\n  ],\n  "finish', False),
        ("", False),
    ):
        path.write_text(text)
        assert is_whole(path) is expected, text
    assert not is_whole(tmp_path / "nothing.json")


def test_a_failure_leaves_no_profiler_running(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.autograd.profiler.record_function, "__enter__", None)
    job.begin(wait=0, warmup=0)
    monkeypatch.undo()
    assert not torch.autograd._profiler_enabled()
    with user_profiler() as profiler:
        job.train(3)
    assert len(profiler.events()) > 0
    job.end()
    assert job.files() == set()
    assert "start failed: TypeError" in job.problems()


def test_the_time_of_the_collector_is_not_the_time_of_a_step(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    left_out: list[int] = []
    monkeypatch.setattr(
        "rankscope.collect.metrics.Metrics.leave_out", lambda _, nanoseconds: left_out.append(nanoseconds)
    )
    job.begin()
    job.train(3)
    job.end()
    assert len(left_out) == 4
    assert min(left_out) > 0


def test_steps_in_another_thread_do_not_touch_the_profiler(job: Job) -> None:
    job.begin()
    job.train(2)
    thread = threading.Thread(target=job.train, args=(3,))
    thread.start()
    thread.join()
    job.train(8)
    job.end()
    assert job.files() == ALL_FILES


def test_torch_is_as_before_when_all_is_recorded(job: Job) -> None:
    before = {name: getattr(torch.autograd.profiler, name) for name in ("_prepare_profiler", "_enable_profiler")}
    job.begin()
    assert all(getattr(torch.autograd.profiler, name) is not function for name, function in before.items())
    job.train(8)
    assert all(getattr(torch.autograd.profiler, name) is function for name, function in before.items())
