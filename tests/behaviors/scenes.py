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
