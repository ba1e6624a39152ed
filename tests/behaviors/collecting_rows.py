"""Collecting execution traces and Kineto traces of the same steps, and nsys reports."""

from __future__ import annotations

import json
import re
from pathlib import Path

from behaviors.row import Behavior

_RECORD = "rankscope record -o t --no-diagnose"


def _steps(folder: Path, name: str) -> list[int]:
    return sorted(int(number) for number in re.findall(r'"ProfilerStep#(\d+)"', (folder / "t" / name).read_text()))


def _covers(folder: Path, steps: list[int]) -> None:
    """Both traces mark these steps and hold operators."""
    for name in ("torch_et_0.json", "kineto_trace_0.json"):
        assert _steps(folder, name) == steps, f"{name} covers {_steps(folder, name)}"
        assert '"aten::addmm"' in (folder / "t" / name).read_text()


def _one_iteration(folder: Path, printed: str) -> None:
    _covers(folder, [2])


def _after_warm_up(folder: Path, printed: str) -> None:
    _covers(folder, [7])


def _three_iterations(folder: Path, printed: str) -> None:
    _covers(folder, [7, 8, 9])
    content = json.loads((folder / "t" / "kineto_trace_0.json").read_text())
    assert any("Input Dims" in event.get("args", {}) for event in content["traceEvents"])


def _observer_alone(folder: Path, printed: str) -> None:
    assert _steps(folder, "torch_et_0.json") == [7, 8, 9]
    assert not (folder / "t" / "kineto_trace_0.json").exists()


def _nsys_report(folder: Path, _: str) -> None:
    assert (folder / "t" / "nsys_0.nsys-rep").is_file()


COLLECTING = (
    Behavior(
        there="collect torch_et_<rank>.json and kineto_trace_<rank>.json of the same steps at the same time, so that "
        "they can be linked; profile three iterations, to keep the traces small",
        commands=(
            f"{_RECORD} --only execution-trace,kineto --clean 0 -- python train.py",
            'rankscope query t "select rank, method, link_pct from et_pairs"',
        ),
        shows=r"0 +id +100",
        check=_three_iterations,
        needs_torch=True,
    ),
    Behavior(
        there="profile a single iteration: wait=0, warmup=0, active=1",
        commands=(f"{_RECORD} --wait 0 --warmup 0 --active 1 --clean 0 -- python train.py",),
        shows=r"24 steps, counted by optimizer steps",
        check=_one_iteration,
        needs_torch=True,
    ),
    Behavior(
        there="warm the profiler up for five iterations, then record one: wait=0, warmup=5, active=1",
        commands=(f"{_RECORD} --wait 0 --warmup 5 --active 1 --clean 0 -- python train.py",),
        shows=r"kineto +1 rank, 1 file",
        check=_after_warm_up,
        needs_torch=True,
    ),
    Behavior(
        there="set up an ExecutionTraceObserver, register its file, start and stop it, without Kineto, also for "
        "inference",
        commands=(f"{_RECORD} --only execution-trace -- python infer.py",),
        shows=r"24 steps, counted by calls of the model",
        check=_observer_alone,
        needs_torch=True,
    ),
    Behavior(
        there="call prof.step() at the end of each iteration; collect metrics beside the traces",
        commands=(
            f"{_RECORD} --only metrics -- python infer.py",
            'rankscope query t "select steps_by, count(*) from metrics join manifests using (rank) '
            "where name = 'step_time_s' group by all\"",
        ),
        shows=r'\{"forward":24\} +21',  # those of the first three steps are not known: the sign was not yet believed
        needs_torch=True,
    ),
    Behavior(
        there="refuse a schedule that records no step",
        commands=("rankscope record --active 0 -- python train.py",),
        shows=r"--active is 0: no step would be recorded",
        exit_codes=(2,),
    ),
    Behavior(
        there="collect nsys_<rank>.nsys-rep with Nsight Systems",
        commands=("rankscope record -o t --no-diagnose --only metrics --nsys -- python train.py",),
        shows=r"nsys export .*t/nsys_0\.nsys-rep",  # the stand-in of the tests has no export to give
        check=_nsys_report,
        needs_torch=True,
    ),
)
