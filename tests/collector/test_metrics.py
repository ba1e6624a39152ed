"""Metrics become whole lines of standard JSON, whatever the job tells and however it ends."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope.collect import metrics as module
from rankscope.collect import run as run_module
from rankscope.collect.metrics import Metrics
from rankscope.collect.run import Run
from rankscope.collect.settings import Settings
from rankscope.model.tables import Trace
from rankscope.pipeline import load

NANOSECONDS = 10**9


class Clock:
    """Time as the test wants it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100 * NANOSECONDS
        monkeypatch.setattr("rankscope.collect.metrics.time.monotonic_ns", lambda: self.now)

    def go_on(self, seconds: float) -> None:
        self.now += int(seconds * NANOSECONDS)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(run_module, "PARTS", (("rankscope.collect.metrics", "Metrics", ("metrics",)),))
    monkeypatch.setattr(run_module, "TICK_SECONDS", 3600)  # the test ticks
    return Clock(monkeypatch)


def begun(folder: Path, **settings: Any) -> tuple[Run, Metrics]:
    run = Run(Settings(str(folder), **settings))
    run.begin(3, 8, 3)
    part = run.part("metrics")
    assert isinstance(part, Metrics)
    return run, part


def lines(folder: Path) -> list[dict[str, Any]]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    text = (folder / "metrics_3.jsonl").read_text()
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def values(folder: Path, name: str) -> list[tuple[int, float | None]]:
    return [(line["step"], line["value"]) for line in lines(folder)[1:] if line.get("name") == name]


def problems(run: Run) -> str:
    return json.dumps(run.describe()["problems"])


def test_the_first_line_tells_who_it_was(clock: Clock, tmp_path: Path) -> None:
    run, _ = begun(tmp_path)
    run.finish()
    header = lines(tmp_path)[0]
    assert {name: header[name] for name in ("schema", "rank", "world_size", "host")} == {
        "schema": "rankscope.metrics/1",
        "rank": 3,
        "world_size": 8,
        "host": run.host,
    }
    assert not list(tmp_path.glob("*.partial"))


def test_steps_are_timed_from_one_end_to_the_next(clock: Clock, tmp_path: Path) -> None:
    run, part = begun(tmp_path)
    for seconds, samples in ((7, None), (0.5, None), (0.25, 64)):
        clock.go_on(seconds)
        run.step(samples)
    clock.go_on(2)
    part.leave_out(2 * NANOSECONDS)  # the collector's own work
    clock.go_on(0.125)
    run.step()
    run.finish()
    assert values(tmp_path, "step_time_s") == [(2, 0.5), (3, 0.25), (4, 0.125)]
    assert values(tmp_path, "samples_per_s") == [(3, 256.0)]


def test_speed_and_memory_are_sampled_by_the_collectors_thread(clock: Clock, tmp_path: Path) -> None:
    run, part = begun(tmp_path)
    for _ in range(6):
        clock.go_on(0.5)
        run.step()
    part.tick()
    clock.go_on(0.5)
    part.tick()  # too early for another sample
    run.finish()
    assert values(tmp_path, "steps_per_s") == [(6, 2.0)]
    assert [step for step, _ in values(tmp_path, "host_memory_bytes")] == [6, 6]
    assert all(value and value > 1 << 20 for _, value in values(tmp_path, "host_memory_bytes"))


def test_how_long_threads_wait_for_a_core_is_sampled(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([{"1": 100}, {"1": 100 + NANOSECONDS, "2": NANOSECONDS // 2}, {"1": 5}])  # 2 is new, then has ended
    monkeypatch.setattr("rankscope.collect.metrics._waited_for_a_core", lambda: next(looks))
    run, part = begun(tmp_path)
    clock.go_on(2)
    part.tick()
    clock.go_on(1)
    run.finish()
    assert [value for _, value in values(tmp_path, "threads_without_core")] == [0.75, 0.0]


def test_what_is_no_number_stays_standard_json_and_comes_back(clock: Clock, tmp_path: Path) -> None:
    run, part = begun(tmp_path)
    told: list[Any] = [1.5, 3, True, np.float32(0.25), math.nan, math.inf, -math.inf, 1e300]
    for number, value in enumerate(told):
        part.tell('loss "a"', value, number)
    run.finish()
    assert [line["name"] for line in lines(tmp_path)[1:9]] == ['loss "a"'] * 8
    trace = load([tmp_path / "metrics_3.jsonl"])
    assert read_back(trace, 'loss "a"') == pytest.approx([float(value) for value in told], nan_ok=True)


def read_back(trace: Trace, name: str) -> list[float]:
    table = trace.tables["metrics"]
    return [float(value) for value in table.array("value")[table.text("name").equals(name)]]


def test_after_many_steps_only_some_are_kept_but_no_nan_is_missed(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_N_STEPS_KEPT", 3)
    run, part = begun(tmp_path)
    for step in range(1, 101):
        clock.go_on(0.01)
        loss = math.nan if step >= 50 else 1.0
        monkeypatch.setattr(part._training, "take", lambda number, loss=loss: {"loss": loss, "learning_rate": 0.1})
        run.step()
    run.finish()
    assert len(values(tmp_path, "step_time_s")) == 99
    told = [(line["step"], line["values"]) for line in lines(tmp_path)[1:] if "loss" in line.get("values", ())]
    assert [step for step, _ in told[:3]] == [2, 3, 8]
    assert [step for step, each in told if each["loss"] is None][:2] == [50, 55]
    assert [step for step, each in told if "learning_rate" in each] == [2]


def test_what_the_job_tells_itself_is_not_measured_as_well(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, part = begun(tmp_path)
    monkeypatch.setattr(part._training, "take", lambda number: {"loss": 2.0, "grad_norm": 3.0})
    for step in (1, 2, 3):
        clock.go_on(0.5)
        if step == 3:
            part.tell("loss", 0.25, step)
        run.step()
    run.finish()
    told = [(line["step"], line["values"]) for line in lines(tmp_path)[1:] if "grad_norm" in line.get("values", ())]
    assert told == [(2, {"loss": 2, "grad_norm": 3}), (3, {"grad_norm": 3})]
    assert values(tmp_path, "loss") == [(3, 0.25)]


class OnDevice:
    """As a tensor of an accelerator: to read it is to wait."""

    device = "cuda:1"

    def __float__(self) -> float:
        raise AssertionError("waited for the device")


@pytest.mark.parametrize("value", [OnDevice(), "three", None, np.zeros(2), [1.0]])
def test_values_that_cannot_be_had_at_once_are_told_once(clock: Clock, tmp_path: Path, value: Any) -> None:
    run, part = begun(tmp_path)
    part.tell("loss", value, 0)
    part.tell("loss", value, 0)
    run.finish()
    assert values(tmp_path, "loss") == []
    assert problems(run).count("metric 'loss' was dropped") == 1


def test_numbers_are_on_disk_after_a_few_seconds_and_at_every_dump(clock: Clock, tmp_path: Path) -> None:
    run, part = begun(tmp_path)
    partial = next(tmp_path.glob("metrics_3.jsonl.*.partial"))
    part.tell("loss", 1, 0)
    part.tick()
    assert b"loss" not in partial.read_bytes()
    clock.go_on(10)
    part.tick()
    assert partial.read_bytes().count(b'"loss"') == 1
    part.tell("loss", 2, 0)
    run.dump("SIGUSR2")
    assert partial.read_bytes().count(b'"loss"') == 2
    assert partial.read_bytes().endswith(b"}\n")
    run.finish()


def test_memory_and_file_are_bounded(clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_WAITING", 10)
    run, part = begun(tmp_path, max_bytes=2000)
    for number in range(11):
        part.tell("loss", number, 0)
    run.dump("now")
    assert "numbers came at once" in problems(run)
    for number in range(50):
        part.tell("loss", number, 0)
        run.dump("now")
    run.finish()
    assert (tmp_path / "metrics_3.jsonl").stat().st_size <= 2000
    assert "reached 2,000 bytes" in problems(run)
    assert len(values(tmp_path, "loss")) > 15


class FullDisk:
    """Takes half of what is written."""

    def __init__(self, file: Any, fails: bool) -> None:
        self._file, self._fails = file, fails

    def write(self, content: bytes) -> int:
        if self._fails:
            raise OSError(28, "No space left on device")
        n_written: int = self._file.write(content[: len(content) // 2])
        return n_written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.mark.parametrize("fails", [True, False])
def test_a_full_disk_ends_the_file_at_a_whole_line(clock: Clock, tmp_path: Path, fails: bool) -> None:
    run, part = begun(tmp_path)
    part.tell("loss", 1, 0)
    run.dump("now")
    part._file = FullDisk(part._file, fails)  # type: ignore[assignment]
    part.tell("loss", 2, 0)
    run.dump("now")
    run.finish()
    assert values(tmp_path, "loss") == [(0, 1.0)]
    assert "metrics_3.jsonl ends early" in problems(run)
