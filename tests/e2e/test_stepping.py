"""Loops of every kind are recorded in whole steps: both traces have the same ones, each with its operators."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from collected_jobs import Script, collected, environment, manifest_of, problems_of, run_scripts

from rankscope.collect.settings import Settings

pytest.importorskip("torch")
pytestmark = pytest.mark.e2e

JOB = "stepping"
MARK = "ProfilerStep#"
# The loop, the sign that its steps show, and the steps that are recorded by the usual schedule.
LOOPS = {
    "trains_by_itself": ("backward", [7, 8, 9]),
    "accumulates": ("optimizer", [7, 8, 9]),
    "plays_against_itself": ("optimizer", [7, 8, 9]),
    "has_several_optimizers": ("optimizer", [7, 8, 9]),
    "infers": ("forward", [7, 8, 9]),
    "evaluates": ("forward", [7, 8, 9]),
    "only_loads": ("loader", [7, 8, 9]),
    "compiles_its_optimizer": ("backward", [10, 11, 12]),
    "compiles_its_model": ("forward", [7, 8, 9]),
    "profiles_itself": ("optimizer", [7, 8, 9]),
    "names_its_ranges": ("optimizer", [7, 8, 9]),
}
SCHEDULES: list[tuple[dict[str, int], list[int]]] = [
    ({"wait": 0, "warmup": 0, "active": 1}, [2]),
    ({"wait": 0, "warmup": 5, "active": 1}, [7]),
    ({"wait": 0, "warmup": 0, "active": 3}, [2, 3, 4]),
    ({"skip_first": 2, "wait": 1, "warmup": 1, "active": 2, "clean": 0, "repeat": 2}, [5, 6]),
]


class Recorded(NamedTuple):
    folder: Path

    def steps(self, name: str) -> dict[int, set[int]]:
        """The operators of each step, by the numbers that both kinds of trace give them."""
        content = json.loads((self.folder / name).read_text())
        return _steps_of_nodes(content["nodes"]) if "nodes" in content else _steps_of_events(content["traceEvents"])

    def check(self, numbers: list[int], folder: str = "") -> None:
        """Whole steps: the same in both, all with as many operators as the others have, all of them linked."""
        observed, profiled = (self.steps(f"{folder}{name}_0.json") for name in ("torch_et", "kineto_trace"))
        assert list(observed) == list(profiled) == numbers
        assert len({len(operators) for operators in observed.values()}) == 1
        for number in numbers:
            assert len(observed[number]) > 1
            assert observed[number] <= profiled[number]


def _steps_of_nodes(nodes: list[dict[str, Any]]) -> dict[int, set[int]]:
    """By their parents."""
    by_id = {node["id"]: node for node in nodes}
    steps: dict[int, set[int]] = defaultdict(set)
    for node in nodes:
        attributes = {attribute["name"]: attribute["value"] for attribute in node["attrs"]}
        above = node
        while not above["name"].startswith(MARK) and above["ctrl_deps"] in by_id and above["ctrl_deps"] != above["id"]:
            above = by_id[above["ctrl_deps"]]
        if above["name"].startswith(MARK) and attributes["op_schema"]:
            steps[int(above["name"].removeprefix(MARK))].add(attributes["rf_id"])
    return dict(sorted(steps.items()))


def _steps_of_events(events: list[dict[str, Any]]) -> dict[int, set[int]]:
    """By their time."""
    marks = [event for event in events if event.get("cat") == "user_annotation" and event["name"].startswith(MARK)]
    return {
        int(mark["name"].removeprefix(MARK)): {
            event["args"]["Record function id"]
            for event in events
            if event.get("cat") == "cpu_op" and mark["ts"] <= event["ts"] < mark["ts"] + mark["dur"]
        }
        for mark in sorted(marks, key=lambda mark: float(mark["ts"]))
    }


def record(scratch: Path, *arguments: str, **settings: Any) -> Recorded:
    """Also sees that the job's user could not tell it from one that is not recorded."""
    wanted = Settings(str(scratch / "traces"), run_id="test", compile_log=False, **settings)
    recorded = Script(JOB, arguments, collected(wanted, environment()))
    without, with_it = run_scripts(scratch, [Script(JOB, arguments), recorded])
    assert (with_it.code, with_it.out) == (without.code, without.out)
    assert with_it.code == 0
    assert problems_of(scratch / "traces") == []
    return Recorded(scratch / "traces")


@pytest.mark.parametrize(("loop", "sign", "numbers"), [(loop, *expected) for loop, expected in LOOPS.items()])
def test_every_loop_has_steps(loop: str, sign: str, numbers: list[int], tmp_path: Path) -> None:
    recorded = record(tmp_path, loop)
    recorded.check(numbers)
    (rank,) = manifest_of(recorded.folder)["ranks"]
    assert list(rank["steps_by"]) == [sign]


def test_a_job_that_evaluates_first_is_recorded_while_it_trains(tmp_path: Path) -> None:
    recorded = record(tmp_path, "evaluates_before_it_trains")
    (rank,) = manifest_of(recorded.folder)["ranks"]
    assert list(rank["steps_by"]) == ["forward", "optimizer"]
    first = rank["steps_by"]["forward"] + 7
    recorded.check([first, first + 1, first + 2])
    assert "Optimizer.step" in (recorded.folder / "torch_et_0.json").read_text()


@pytest.mark.parametrize(("schedule", "numbers"), SCHEDULES)
def test_every_schedule_has_whole_steps(schedule: dict[str, int], numbers: list[int], tmp_path: Path) -> None:
    recorded = record(tmp_path, "trains", **schedule)
    recorded.check(numbers)
    if schedule.get("repeat") == 2:
        recorded.check([9, 10], "cycle_2/")
