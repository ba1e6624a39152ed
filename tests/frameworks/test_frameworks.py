"""Training loops of others under `rankscope record`: the same exit code and losses, all steps, no alarm.

They run where the framework is installed: `make frameworks`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.e2e

JOBS = Path(__file__).parent / "jobs"
LAUNCHER = (sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
STEPS = 40
LIMIT_S = 300
OURS = ("RANK", "TORCH", "WORLD_SIZE", "MASTER")
QUIET = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    ended = subprocess.run(command, env={**inherited, **QUIET}, capture_output=True, text=True, timeout=LIMIT_S)
    print(ended.stdout[:3000], ended.stderr[-3000:], sep="\n")
    return ended


def losses(output: str) -> list[str]:
    """Two ranks write into one output: their lines may come without an end between them."""
    return sorted(re.findall(r"loss \d+ \d+ \d+\.\d{6}", output))


@pytest.mark.parametrize("framework", ["lightning", "transformers", "accelerate", "ignite"])
def test_the_job_is_the_same_and_gets_no_alarm(framework: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed: make frameworks")
    job = [*LAUNCHER, "--nproc-per-node", "2", str(JOBS / f"with_{framework}.py"), str(STEPS)]
    alone = run(job)
    assert alone.returncode == 0
    assert losses(alone.stdout)
    traces = tmp_path / "traces"
    recorded = run([sys.executable, "-m", "rankscope", "record", "-o", str(traces), "--", *job])
    assert recorded.returncode == 0
    assert losses(recorded.stdout) == losses(alone.stdout)
    ranks = json.loads((traces / "manifest.json").read_text())["ranks"]
    assert [rank["n_steps"] for rank in ranks] == [STEPS, STEPS]
    report = json.loads(run([sys.executable, "-m", "rankscope", str(traces), "--json"]).stdout)
    assert [(one["code"], one["title"]) for one in report["findings"] if one["severity"] != "info"] == []
    assert "D909" not in {one["code"] for one in report["findings"]}
