"""Runs small Python programs as the processes of a job that is recorded, with a torch that costs nothing to import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankscope.collect import manifest
from rankscope.collect.launching import folders
from rankscope.collect.launching.environment import job_environment
from rankscope.collect.settings import Settings

# As much of torch as the collector asks before it has found a rank.
FAKE_TORCH = {
    "__init__.py": "__version__ = '2.13.0'\nfrom torch import distributed, optim\n",
    "compiler.py": "def is_compiling(): return False\n",
    "distributed/__init__.py": """
import os
_rank = None
def is_available(): return True
def is_initialized(): return _rank is not None
def get_rank(): return _rank[0]
def get_world_size(): return _rank[1]
def init_process_group(backend=None, rank=None, world_size=None):
    global _rank
    _rank = (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])) if rank is None else (rank, world_size)
""",
    "distributed/run.py": "",
    "optim/__init__.py": "from torch.optim import optimizer\n",
    "optim/optimizer.py": """
hooks = []
class Handle:
    def remove(self): pass
def register_optimizer_step_post_hook(hook):
    hooks.append(hook)
    return Handle()
class Optimizer:
    def step(self):
        for hook in hooks: hook(self, (), {})
""",
}
STEP = "import torch.optim.optimizer as o; o.Optimizer().step()"


class Job:
    """A folder with a fake torch, where programs run as `rankscope record` would run them."""

    def __init__(self, base: Path, **settings: Any) -> None:
        self.base = base
        self.folder = base / "traces"
        self.folder.mkdir(parents=True)
        kinds = dict.fromkeys(("execution_trace", "kineto", "recorder", "stacks", "metrics", "compile_log"), False)
        self.settings = Settings(folder=str(self.folder), run_id="test", **{**kinds, **settings})
        for name, text in FAKE_TORCH.items():
            path = base / "lib" / "torch" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def python(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RANK", "PYTHON", "TORCH"))}
        given = {**kept, "PYTHONPATH": str(self.base / "lib"), **(env or {})}
        variables = job_environment(self.settings, given).variables
        return subprocess.run(
            [sys.executable, *arguments],
            env=variables,
            capture_output=True,
            text=True,
            cwd=self.base,
            timeout=60,
            check=False,
        )

    def ranks(self) -> dict[str, list[int]]:
        """Who has claimed to be a rank, by folder: '' and attempt_<k>."""
        return {
            "" if place == self.folder else place.name: [part["rank"] for part in manifest.read_parts(place)]
            for place in folders.places(self.folder)
        }

    def part(self, rank: int = 0) -> dict[str, Any]:
        part: dict[str, Any] = json.loads((self.folder / manifest.PARTS / f"rank_{rank}.json").read_text())
        return part
