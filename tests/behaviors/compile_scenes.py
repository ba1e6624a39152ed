"""Logs of torch.compile that the commands of tlparse.py are typed on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from cli.running import clean_environment
from demo_captures import demo
from rankscope.simulate.compile_log import TRAIN, LogBuilder, ids_of

DATA = Path(__file__).parents[1] / "data"
JOB_LIMIT_S = 300
# Every option that the guide to TORCH_LOGS lists, as it spells them.
LOG_OPTIONS = (
    *("+all", "+dynamo", "+aot", "+inductor", "dynamic", "graph_breaks", "graph_code", "graph_sizes", "trace_bytecode"),
    *("trace_source", "bytecode", "guards", "recompiles", "recompiles_verbose", "aot_graphs", "aot_joint_graphs"),
    *("output_code", "kernel_code", "schedule", "perf_hints", "fusion"),
)
GRAPHS = (
    *("dynamo_output_graph", "aot_inference_graph", "aot_joint_graph", "aot_forward_graph", "aot_backward_graph"),
    *("inductor_post_grad_graph", "dynamo_cpp_guards_str"),
)
ARTIFACTS = (
    *("before_pre_grad_graph", "after_pre_grad_graph", "before_joint_graph", "after_joint_graph"),
    *("before_post_grad_graph", "fx_graph_runnable"),
)
CACHES = ("aotautograd_cache_miss", "aotautograd_cache_hit", "fx_graph_cache_miss", "fx_graph_cache_hit")
# As the guide lists them, with its own spelling of AOTAutograd's cache.
GUIDE_FILES = (
    *(*GRAPHS, *ARTIFACTS, "inductor_output_code", "compilation_metrics"),
    *("aot_autograd_cache_miss", "aot_autograd_cache_hit", "fx_graph_cache_miss", "fx_graph_cache_hit"),
)


def _catalog(folder: Path) -> None:
    """A log with every file of the guide; [0/0] went well, [1/0] has a graph break, [2/0] failed."""
    log = LogBuilder(None).torch_version("2.13.0").start("0/0")
    for kind in GRAPHS:
        log.record(kind, {}, f"text of {kind}", **ids_of("0/0"))
    for name in ARTIFACTS:
        log.artifact(name, f"text of {name}", "0/0")
    for name in CACHES:
        log.artifact(name, {"key": name, "cache_state": name.rpartition("_")[2]}, "0/0")
    log.record("inductor_output_code", {"filename": "/tmp/c/cabc.py"}, "def call(args): ...", **ids_of("0/0"))
    log.graph("0/0").metrics("0/0").start("1/0").graph_break("1/0", TRAIN, 12, "print").graph("1/0").metrics("1/0")
    log.start("2/0").metrics("2/0", fail_type="RuntimeError", fail_reason="no kernel for this operator")
    log.write(folder)


def _two_runs(folder: Path) -> None:
    for number, name in enumerate(("first", "second")):
        log = LogBuilder(None, at=f"2026-11-16 0{number + 6}:18:20").start("0/0").graph("0/0")
        path = log.metrics("0/0", function=name).write(folder, f"dedicated_log_torch_trace_{name}.log")
        os.utime(path, (1000 + number, 1000 + number))


def _texts(folder: Path) -> None:
    shutil.copytree(DATA / "torch_logs", folder)


def _sets_logs(script: Path) -> None:
    script.write_text(SETS_LOGS)


def _everything_logged(folder: Path) -> None:
    """A real job, recorded with every option of TORCH_LOGS. Its own cache of compiled code begins empty."""
    script = folder.with_suffix(".py")
    script.write_text(COMPILES)
    asked = ["--only", "compile-log", "--no-diagnose", "--logs", ",".join(LOG_OPTIONS)]
    done = subprocess.run(
        [sys.executable, "-m", "rankscope", "record", "-o", str(folder), *asked, "--", sys.executable, str(script)],
        env=clean_environment({"TORCHINDUCTOR_CACHE_DIR": str(folder.with_suffix(".cache"))}),
        capture_output=True,
        text=True,
        timeout=JOB_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr


COMPILES = """
import torch

def scaled(x):
    return torch.relu(x) * 2 + 1

model = torch.nn.Linear(8, 8)
for _ in range(2):  # the second time from the caches
    torch._dynamo.reset()
    torch.compile(model)(torch.ones(4, 8)).sum().backward()
    with torch.no_grad():
        torch.compile(scaled)(torch.ones(16))
for size in (5, 6):
    torch.compile(scaled, backend="eager")(torch.ones(size, size))
"""

SETS_LOGS = """
import logging
import torch

torch._logging.set_logs(graph_breaks=True, dynamic=logging.DEBUG)

@torch.compile(backend="eager")
def doubled(x, times):
    y = x * times
    torch._dynamo.graph_break()
    return y + 1

for times in (2, 3):
    doubled(torch.ones(3), times)
"""

COMPILE_SCENES: dict[str, Callable[[Path], object]] = {
    "catalog": _catalog,
    "two_runs": _two_runs,
    "texts": _texts,
    "graph_broken": lambda folder: demo(folder, "graph-break", 2),
    "sets_logs.py": _sets_logs,
    "everything_logged": _everything_logged,
}
