"""A run calls its parts, and nothing that a part does reaches the job."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rankscope.collect import run as run_module
from rankscope.collect.part import Part
from rankscope.collect.run import Run
from rankscope.collect.settings import Settings


class Recording(Part):
    NAME = "recording"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.calls: list[Any] = []
        self.ticked = threading.Event()

    def start(self) -> None:
        self.calls.append("start")

    def step(self, number: int) -> None:
        self.calls.append(number)

    def tick(self) -> None:
        self.ticked.set()

    def dump(self, reason: str) -> None:
        self.calls.append(reason)
        self.run.publish(self.NAME, "state.txt", lambda path: path.write_text(reason), replace=True)

    def close(self) -> None:
        self.calls.append("close")


class Failing(Part):
    NAME = "failing"
    fails_in = ""
    n_calls = 0

    def _fail(self, method: str) -> None:
        if method == Failing.fails_in:
            Failing.n_calls += 1
            raise OSError(28, "No space left on device")

    def start(self) -> None:
        self._fail("start")

    def step(self, number: int) -> None:
        self._fail("step")

    def dump(self, reason: str) -> None:
        self._fail("dump")

    def close(self) -> None:
        self._fail("close")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = (
        (__name__, "Failing", ("recorder",)),
        (__name__, "Recording", ("recorder",)),
        (__name__, "Nowhere", ("recorder",)),
        (__name__, "Recording", ("desync",)),
    )
    monkeypatch.setattr(run_module, "PARTS", chosen)
    monkeypatch.setattr(Failing, "n_calls", 0)


def begun(folder: Path) -> tuple[Run, Recording]:
    run = Run(Settings(str(folder)))
    run.begin(3, 8, 1)
    part = run.part("recording")
    assert isinstance(part, Recording)
    return run, part


def manifest_of(folder: Path) -> dict[str, Any]:
    (only,) = json.loads((folder / "manifest.json").read_text())["ranks"]
    assert isinstance(only, dict)
    return only


@pytest.mark.usefixtures("parts")
def test_parts_are_called_in_the_order_of_a_job(tmp_path: Path) -> None:
    run, part = begun(tmp_path / "new" / "folder")
    run.begin(0, 1, 0)  # changes nothing
    run.step()
    assert part.ticked.wait(60)
    run.request_dump("because")
    deadline = time.monotonic() + 60
    while "because" not in part.calls and time.monotonic() < deadline:
        time.sleep(0.01)
    run.step()
    run.finish()
    run.finish()
    run.step()
    run.dump("late")
    assert part.calls == ["start", 1, "because", 2, "exit", "close"]
    told = manifest_of(run.folder)
    assert (told["rank"], told["world_size"], told["local_rank"], told["n_steps"]) == (3, 8, 1, 2)
    assert told["got"] == [{"what": "recording", "file": "state.txt", "n_bytes": 4}]
    assert told["ended_ns"] >= told["started_ns"]
    assert [problem["what"] for problem in told["problems"]] == ["Nowhere"]


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("method", ["start", "step", "dump", "close"])
def test_a_part_that_fails_is_told_and_harms_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(Failing, "fails_in", method)
    run, part = begun(tmp_path)
    for _ in range(3):
        run.step()
    run.dump("because")
    run.finish()
    assert part.calls == ["start", 1, 2, 3, "because", "exit", "close"]
    (problem,) = [problem for problem in manifest_of(tmp_path)["problems"] if problem["what"] == "failing"]
    assert "No space left" in problem["problem"]
    assert "free disk space" in problem["hint"]
    assert Failing.n_calls == {"start": 1, "step": 1, "dump": 2, "close": 1}[method]


@pytest.mark.usefixtures("parts")
def test_the_folder_may_go_away(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "traces"
    run, _ = begun(folder)
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()
    run.step()
    run.dump("because")
    run.finish()
    assert "cannot write its manifest" in capfd.readouterr().err


@pytest.mark.usefixtures("parts")
def test_a_folder_that_cannot_be_made_is_told_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    run = Run(Settings(str(tmp_path / "file" / "traces")))
    run.begin(0, 1, 0)
    run.step()
    run.dump("because")
    run.finish()
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("rankscope: nothing is collected on rank 0: cannot write to ")


@pytest.mark.usefixtures("parts")
def test_a_forked_child_is_not_the_rank(tmp_path: Path) -> None:
    run, part = begun(tmp_path)
    child = os.fork()
    if child == 0:
        run.step()
        run.dump("by the child")
        run.finish()
        os._exit(len(part.calls))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1  # start, and nothing else
    run.finish()
