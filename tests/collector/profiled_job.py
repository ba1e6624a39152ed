"""A small training whose steps are profiled."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rankscope.collect import run as run_module
from rankscope.collect.profile import steps
from rankscope.collect.run import Run
from rankscope.collect.settings import Settings

torch = pytest.importorskip("torch")

QUICK = {"wait": 1, "warmup": 1, "active": 2, "clean": 1}
ALL_FILES = {"torch_et_0.json", "kineto_trace_0.json", "kineto_clean_0.json"}


class Job:
    """A small training with a run that only profiles."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run: Run | None = None
        self.model: Any = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self._remove: Callable[[], None] = lambda: None

    def begin(self, **settings: Any) -> None:
        self.run = Run(Settings(str(self.folder), **{**QUICK, **settings}))
        self.run.begin(0, 1, 0)
        self._remove = steps.install(self.run.step_found)

    def train(self, n_steps: int) -> None:
        for _ in range(n_steps):
            self.forward_and_backward()
            self.optimizer.step()

    def forward_and_backward(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(4, 8)).square().mean().backward()

    def end(self) -> None:
        self._remove()
        if self.run is not None:
            self.run.finish()
            self.run = None

    def files(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.glob("**/*.json*")} - {
            "manifest.json",
            "manifest.d/rank_0.json",
            "metrics_0.jsonl",
        }

    def manifest(self) -> dict[str, Any]:
        (only,) = json.loads((self.folder / "manifest.json").read_text())["ranks"]
        assert isinstance(only, dict)
        return only

    def problems(self) -> str:
        return "\n".join(entry["problem"] for entry in self.manifest()["problems"])

    def steps_in(self, name: str) -> list[int]:
        """Those that the file marks, be it of either kind."""
        return sorted(int(number) for number in re.findall(r'"ProfilerStep#(\d+)"', (self.folder / name).read_text()))


@contextmanager
def profiled_job(folder: Path) -> Iterator[Job]:
    """Nothing is left running in torch, nor lying in the folder, when it has ended."""
    chosen = [part for part in run_module.PARTS if part[1] in ("Profiling", "Metrics")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "PARTS", tuple(chosen))
        job = Job(folder)
        yield job
        job.end()
    assert not torch.autograd._profiler_enabled()
    assert not list(folder.glob("**/*.partial*"))


def user_profiler(**options: Any) -> Any:
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **options)
