"""The host sampler sees where the main thread is and how long it pauses, and takes back everything that it hooked."""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path

import pytest

from rankscope.collect import run as run_module
from rankscope.collect.host.sampler import Host
from rankscope.collect.run import Run
from rankscope.collect.settings import Settings
from rankscope.pipeline import load

torch = pytest.importorskip("torch")

LIMIT_S = 60


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Run, Host]:
    monkeypatch.setattr(run_module, "PARTS", (("rankscope.collect.host.sampler", "Host", ("host",)),))
    run = Run(Settings(folder=str(tmp_path), host=True))
    run.begin(3, 4, 3)
    part = run.part("host")
    assert isinstance(part, Host)
    return run, part


def wait_for_sample(part: Host) -> int:
    """The line of this function in which a sample has found the main thread."""
    deadline = time.monotonic() + LIMIT_S
    place = (sys._getframe().f_code, sys._getframe().f_lineno + 2)
    while place not in {stack[0] for stack in list(part._stacks.known) if stack} and time.monotonic() < deadline:
        time.sleep(0.2)
    return place[1]


def test_samples_have_the_line_and_marks_their_times(host: tuple[Run, Host], tmp_path: Path) -> None:
    run, part = host
    garbage: list[list[object]] = [[] for _ in range(300_000)]
    for item in garbage:
        item.append(item)
    del garbage, item
    gc.collect()
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    optimizer.step()
    line = wait_for_sample(part)
    run.finish()
    trace = load([tmp_path / "host_3.jsonl"])
    samples = list(trace.table("host_samples").rows())
    assert f"{__file__}:{line} in wait_for_sample" in {sample["site"] for sample in samples}
    assert {sample["rank"] for sample in samples} == {3}
    assert {"S"} & {sample["state"] for sample in samples}
    collections = [mark for mark in trace.table("host_marks").rows() if mark["kind"] == "gc"]
    assert any(mark["name"] == "generation 2" and mark["end_ns"] > mark["start_ns"] for mark in collections)
    assert "n_cores" in {row["name"] for row in trace.table("host_machine").rows()}


def test_all_hooks_are_taken_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = torch.save, list(gc.callbacks)
    monkeypatch.setattr(run_module, "PARTS", (("rankscope.collect.host.sampler", "Host", ("host",)),))
    run = Run(Settings(folder=str(tmp_path), host=True))
    run.begin(0, 1, 0)
    assert torch.save is not before[0]
    run.finish()
    assert (torch.save, list(gc.callbacks)) == before


def test_the_file_stays_small_and_samples_do_not_stop(host: tuple[Run, Host]) -> None:
    run, part = host
    part._file.n_bytes = 1 << 30
    assert part._pause(time.monotonic()) == 5.0
    part._file.n_bytes = 0
    part._steps, part._usual, part._step_began = [0.1] * 3, 0.1, time.monotonic() - 1
    assert part._pause(time.monotonic()) == 0.005
    part._n_fast = 10_000
    assert part._pause(part._began + 1) == 0.02
    assert part._pause(part._began + 60) == 0.05
    run.finish()
