"""Jobs in which nothing is wrong get no warning, on a quiet machine or a busy one. One with a slow rank does."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import pytest
from collected_jobs import (
    TORCHRUN,
    Script,
    collected,
    end,
    environment,
    free_port,
    manifest_of,
    run_scripts,
    start_record,
)
from launching import JOBS

from rankscope.collect.launching import leftovers
from rankscope.collect.settings import Settings
from rankscope.model.finding import Report
from rankscope.pipeline import diagnose, load

pytest.importorskip("torch")
pytestmark = pytest.mark.e2e

IMPORTED = (
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.algorithms.join",
    "torch._dynamo.backends.debugging",
    "torch.profiler",
)
N_BUSY = 3
WHOLE, CUT, SHORT = 13, 9, 4  # steps: all is profiled, the job ends while it is, it ends before


class Job(NamedTuple):
    kind: str
    n_ranks: int = 2
    steps: int = WHOLE
    leaves: str = "destroying"
    late_ms: int = 0

    def __str__(self) -> str:
        late = f"-late{self.late_ms}" if self.late_ms else ""
        return f"{self.kind}-{self.n_ranks}-{self.steps}-{self.leaves}{late}"

    def arguments(self, scratch: Path) -> list[str]:
        given = ("--steps", str(self.steps), "--leaves", self.leaves, "--late-ms", str(self.late_ms))
        return [self.kind, "--scratch", str(scratch), *given]


HEALTHY = (
    *(Job(kind) for kind in ("ddp", "fsdp", "tensor", "compile", "evaluate", "uneven", "pipeline", "accumulate")),
    *(Job(kind, steps=SHORT) for kind in ("ddp", "fsdp", "tensor", "compile", "evaluate", "uneven", "pipeline")),
    *(Job(kind, leaves="at-once") for kind in ("loader", "fsdp", "evaluate")),
    *(Job(kind, leaves="by-exit", steps=CUT) for kind in ("ddp", "fsdp", "tensor")),
    *(Job(kind, n_ranks=4, steps=SHORT) for kind in ("exchange", "uneven")),
    Job("evaluate", n_ranks=4),
    Job("loader", steps=40),
)


class Busy:
    """Processes that leave no core free."""

    def __enter__(self) -> Busy:
        self._processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(N_BUSY)]
        return self

    def __exit__(self, *raised: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def record(folder: Path, job: Job) -> Path:
    """As `rankscope record` does, with what it collects if nothing else is said."""
    folder.mkdir(parents=True)
    traces, port = folder / "traces", free_port()
    settings = Settings(folder=str(traces), run_id=folder.name)
    ranks = []
    for rank in map(str, range(job.n_ranks)):
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(job.n_ranks), "MASTER_PORT": port}
        ranks.append(Script("healthy", job.arguments(folder), collected(settings, environment(**own))))
    started = time.time_ns()
    codes = [ended.code for ended in run_scripts(folder, ranks, *IMPORTED)]
    assert codes == [0] * job.n_ranks
    about = {"id": folder.name, "exit_code": 0, "started_ns": started, "ended_ns": time.time_ns()}
    leftovers.finish(traces, about)
    return traces


def judge(traces: Path) -> Report:
    return diagnose(load(traces, jobs=1))  # two captures are read at the same time


def complaints(report: Report) -> list[str]:
    return [f"{one.severity}[{one.code}] {one.title}" for one in report.findings if one.severity != "info"]


def judge_all(captures: Sequence[Path]) -> list[Report]:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        return list(pool.map(judge, captures))


def test_fifty_healthy_jobs_get_no_warning(tmp_path: Path) -> None:
    captures = [record(tmp_path / f"quiet_{job}", job) for job in HEALTHY]
    with Busy():
        captures += [record(tmp_path / f"busy_{job}", job) for job in HEALTHY]
    assert len(captures) == 50
    reports = judge_all(captures)
    said = {
        traces.parent.name: told
        for traces, report in zip(captures, reports, strict=True)
        if (told := complaints(report))
    }
    assert said == {}
    for traces, report in zip(captures, reports, strict=True):
        ranks = manifest_of(traces)["ranks"]
        assert {rank["ending"] for rank in ranks} == {"exit"}
        why = {check.why for check in report.checks if check.rule == "graph-break"}
        assert why == ({""} if "compile" in str(traces.parent) else {"nothing was compiled"})


def test_a_rank_that_is_slow_in_every_step_is_named(tmp_path: Path) -> None:
    report = judge(record(tmp_path / "late", Job("ddp", n_ranks=3, steps=20, late_ms=50)))
    named = [finding.ranks for finding in report.findings if finding.code[0] in "SX" and finding.severity != "info"]
    assert named
    assert set(named) == {(2,)}


def test_the_first_thing_that_a_new_user_sees(tmp_path: Path) -> None:
    job = (*TORCHRUN, "--nproc-per-node", "2", str(JOBS / "healthy.py"), *Job("fsdp").arguments(tmp_path))
    ended = end(start_record(tmp_path / "traces", (), job))
    assert ended.code == 0
    assert "warning[" not in ended.err
    assert "error[" not in ended.err
    assert "TORCH_TRACE" not in ended.err
