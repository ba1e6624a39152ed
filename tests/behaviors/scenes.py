"""Captures that the commands of this folder's pages are typed on, each under the name by which commands mention it."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from behaviors.compile_scenes import COMPILE_SCENES
from behaviors.dump_scenes import DUMP_SCENES
from demo_captures import demo
from read.collected_files import START_NS
from read.metric_files import csv_log, json_log, tfevents, wandb_history, wandb_log

Builder = Callable[[Path], object]


def _hung(folder: Path) -> None:
    demo(folder, "op", 8)


def _healthy(folder: Path) -> None:
    demo(folder, "none", 8)


def _compiled(folder: Path) -> None:
    demo(folder, "recompiles", 2)


def _pairs(folder: Path) -> None:
    demo(folder, "data-loading", 2, "--steps", "3", "--execution-traces")


def _recorded(folder: Path) -> None:
    """As `rankscope record` leaves it: profiles of steps without the observer beside the pairs."""
    _pairs(folder)
    with tempfile.TemporaryDirectory() as clean:
        demo(Path(clean) / "clean", "data-loading", 2, "--steps", "3")
        for path in (Path(clean) / "clean").glob("kineto_trace_*"):
            shutil.copy(path, folder / path.name.replace("kineto_trace_", "kineto_clean_"))


def _train(script: Path) -> None:
    script.write_text(TRAINING_SCRIPT)


def _infer(script: Path) -> None:
    script.write_text(INFERENCE_SCRIPT)


def _numbers(folder: Path) -> None:
    """Four ranks that slow down, as the loader of one does, until the loss of another is none."""
    folder.mkdir()
    for rank in range(4):
        lines: list[dict[str, object]] = [{"schema": "rankscope.metrics/1", "rank": rank}]
        for step in range(1, 401):
            wait = 0.01 + (0.4 if step > 150 and rank == 1 else 0.0)
            loss = float("nan") if step >= 200 + (rank != 2) else 2 / step
            told = {"step_time_s": 0.5 + (0.4 if step > 150 else 0.0), "loader_wait_s": wait, "loss": loss}
            at = {"time_ns": START_NS + step * 10**9, "step": step}
            lines += [{**at, "name": name, "value": value} for name, value in told.items()]
        (folder / f"metrics_{rank}.jsonl").write_text(json_log(lines))


def _logged(folder: Path) -> None:
    """What a job logs by itself, in four forms."""
    folder.mkdir()
    values = [(step, {"train/loss": 1 / (step + 1)}) for step in range(30)]
    rows = [{"step": step, **told} for step, told in values]
    (folder / "events.out.tfevents.1763294400.gpu-1.4711.0").write_bytes(tfevents(values))
    (folder / "run-abc.wandb").write_bytes(wandb_log([wandb_history(step, told) for step, told in values]))
    (folder / "metrics.csv").write_text(csv_log(rows))
    (folder / "log.jsonl").write_text(json_log(rows))


SCENES: dict[str, Builder] = {
    "hung": _hung,
    "healthy": _healthy,
    "compiled": _compiled,
    "pairs": _pairs,
    "recorded": _recorded,
    "train.py": _train,
    **COMPILE_SCENES,
    **DUMP_SCENES,
    "infer.py": _infer,
    "numbers": _numbers,
    "logged": _logged,
}

TRAINING_SCRIPT = """
import torch

model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(24):
    loss = model(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

INFERENCE_SCRIPT = """
import torch

model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).eval()
with torch.inference_mode():
    for batch in range(24):
        model(torch.randn(8, 16)).argmax()
"""


class Stage:
    """Builds each scene once and copies it to where a behavior is tried."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set_up(self, commands: Sequence[str], folder: Path) -> None:
        for name, build in SCENES.items():
            if any(re.search(rf"(?<![\w./-]){re.escape(name)}(?![\w-])", command) for command in commands):
                self._place(name, build, folder / name)

    def _place(self, name: str, build: Builder, target: Path) -> None:
        original = self._folder / name
        if not original.exists():
            build(original)
        if original.is_dir():
            shutil.copytree(original, target)
        else:
            shutil.copy(original, target)
