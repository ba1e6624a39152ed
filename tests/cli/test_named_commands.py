"""Whatever command an answer names can be run on the capture that the answer is about."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from demo_captures import demo
from named_commands import check_named_commands, commands_in, unmarked_commands
from rankscope.simulate import FAULTS
from rankscope.simulate.execution import write_pairs
from rankscope.simulate.profiler import PROFILE_FAULTS, ProfileFault, ProfileSimulation, ProfileSpec, simulate_profile
from read.kineto_text import Event, kernel, launch, span, step, write_trace

DATA = Path(__file__).resolve().parents[1] / "data"
NAMED = ("desync", "execution_trace", "flight_recorder", "kineto", "manifest", "metrics", "nsys", "thread_stacks")
STEP_US = 1000.0


def test_commands_are_found_in_texts() -> None:
    text = "begin with `rankscope metrics PATH\n   overlap`; see also `gather`\nNext: rankscope explain P302"
    assert commands_in(text) == ["rankscope metrics PATH overlap", "rankscope explain P302"]
    assert unmarked_commands(text) == []
    assert unmarked_commands("rankscope metrics PATH overlap shows each rank") != []


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_answers_about_dumps(fault: str, tmp_path: Path) -> None:
    n_ranks = 16 if fault == "node" else 8  # a lost host leaves another one
    check_named_commands(demo(tmp_path / "traces", fault, n_ranks, "--steps", "4", "--cut", "1"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("fault", PROFILE_FAULTS)
def test_answers_about_profiles(fault: str, tmp_path: Path) -> None:
    _simulated(fault, n_stages=2).write(tmp_path / "traces", names="kineto_trace_{rank}.json")
    check_named_commands(tmp_path / "traces", tmp_path)


@pytest.mark.slow
def test_answers_about_linked_traces(tmp_path: Path) -> None:
    write_pairs(_simulated("data-loading"), tmp_path / "traces")
    tried = check_named_commands(tmp_path / "traces", tmp_path)
    assert any(command.startswith("rankscope link ") for command in tried)


@pytest.mark.cases
@pytest.mark.parametrize("name", NAMED)
def test_answers_about_small_captures(name: str, tmp_path: Path) -> None:
    shutil.copytree(DATA / name, tmp_path / name)
    check_named_commands(tmp_path / name, tmp_path)


def test_exposed_communication_without_a_device(tmp_path: Path) -> None:
    """gloo: the finding may not name a metric of kernels."""
    tried = check_named_commands(_job(tmp_path, _gloo_step), tmp_path)
    assert "rankscope metrics job comm_waits" in tried


def test_copies_that_the_device_waits_for(tmp_path: Path) -> None:
    tried = check_named_commands(_job(tmp_path, _copying_step), tmp_path)
    assert "rankscope metrics job bandwidth_summary" in tried


def _simulated(fault: str, n_stages: int = 1) -> ProfileSimulation:
    spec = ProfileSpec(data_parallel=2, stages=n_stages, n_steps=3, n_layers=2, n_microbatches=2)
    return simulate_profile(spec, ProfileFault(fault))


def _gloo_step(start: float, number: int) -> list[Event]:
    return [
        span("cpu_op", "aten::mm", start + 10, 300),
        span("cpu_op", "c10d::allreduce_", start + 320, 5),
        span("user_annotation", "gloo:all_reduce", start + 330, 600, tid=9),
    ]


def _copying_step(start: float, number: int) -> list[Event]:
    copied = {"stream": 7, "device": 0, "bytes": 1 << 20, "correlation": 2 * number}
    return [
        launch(start + 10, 5, 2 * number),
        launch(start + 20, 5, 2 * number + 1),
        span("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", start + 30, 500, **copied),
        kernel("gemm", start + 540, 440, 2 * number + 1),
    ]


def _job(folder: Path, work_of: Callable[[float, int], list[Event]]) -> Path:
    """Two ranks, three steps each."""
    capture = folder / "job"
    capture.mkdir()
    for rank in range(2):
        events: list[Event] = []
        for number in range(1, 4):
            start = number * STEP_US
            events += [step(number, start, STEP_US - 10), *work_of(start, number)]
        about = {"rank": rank, "world_size": 2, "backend": "gloo"}
        write_trace(capture / f"kineto_trace_{rank}.json", events, distributedInfo=about)
    return capture
