"""Real jobs that fail, and what their output alone says: as it is, and as schedulers and collectors would show it."""

from __future__ import annotations

import functools
import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from launching import JOB_ENVIRONMENT, JOB_LIMIT_S, JOBS, Started, run_forked

from rankscope import pipeline
from rankscope.model.finding import Finding

pytestmark = pytest.mark.e2e
CULPRIT = 1
RAISED = ("exception", "memory", "disk", "quota", "worker")
VERDICTS: dict[str, tuple[str, tuple[int, ...]]] = {
    **dict.fromkeys(RAISED, ("H130", (CULPRIT,))),
    **dict.fromkeys(("op", "size"), ("H135", (CULPRIT,))),
    **dict.fromkeys(("stuck", "barrier", "killed", "exit"), ("H134", (CULPRIT,))),
    "store": ("H134", (0,)),
    "init": ("H137", (CULPRIT,)),
}
Texts = tuple[str, ...]


@functools.cache
def output_of(fault: str) -> Texts:
    """What each rank printed."""
    with TemporaryDirectory() as folder:
        started = Started("logged", [fault, str(CULPRIT), folder], JOB_ENVIRONMENT, 3, Path(folder, ".rest"))
        run_forked(started)
        return tuple(Path(folder, f"rank_{rank}.log").read_text("utf-8", "replace") for rank in range(3))


def merged(texts: Texts, prefix: Callable[[int], str], seed: str) -> str:
    """One stream: each rank's lines in their order, the ranks mixed at random."""
    draw = random.Random(seed)
    lines = {rank: [f"{prefix(rank)}{line}\n" for line in text.splitlines()] for rank, text in enumerate(texts)}
    mixed = []
    while left := [rank for rank, own in lines.items() if own]:
        mixed.append(lines[draw.choice(left)].pop(0))
    return "".join(mixed)


FORMS: dict[str, Callable[[int], str]] = {
    "slurm": lambda rank: f"{rank}: ",
    "tee": lambda rank: f"[default{rank}]:",
    "ray": lambda rank: f"\x1b[36m(Train pid={4000 + rank}, ip=10.0.0.{rank})\x1b[0m ",
    "kubectl": lambda rank: f"[pod/train-worker-{rank}/main] 2026-11-18T10:00:00.5Z ",
}


def hang_findings(path: Path) -> list[Finding]:
    report = pipeline.diagnose(pipeline.load([str(path)]))
    return [finding for finding in report.findings if finding.code.startswith("H1")]


@pytest.mark.parametrize("fault", VERDICTS)
def test_the_log_alone_gives_the_verdict_in_every_form(fault: str, tmp_path: Path) -> None:
    texts = output_of(fault)
    (tmp_path / "ranks").mkdir()
    for rank, text in enumerate(texts):
        (tmp_path / "ranks" / f"rank_{rank}.log").write_text(text)
    [finding] = hang_findings(tmp_path / "ranks")
    assert (finding.code, finding.ranks) == VERDICTS[fault]
    assert finding.action
    if fault in RAISED:
        assert finding.location is not None
        assert finding.location.file.endswith("logged.py")
    for form, prefix in FORMS.items():
        job = tmp_path / f"{form}.log"
        job.write_text(merged(texts, prefix, f"{fault} {form}"))
        [finding] = hang_findings(job)
        code, ranks = VERDICTS[fault]
        if fault == "init" and form in ("ray", "kubectl"):  # before init_process_group torch prints no ranks
            ranks = ()
        assert (finding.code, finding.ranks) == (code, ranks), form


@pytest.mark.parametrize("fault", ["healthy", "caught"])
def test_a_job_that_ended_well_has_no_finding(fault: str, tmp_path: Path) -> None:
    for form, prefix in FORMS.items():
        folder = tmp_path / form
        folder.mkdir()
        (folder / "job.log").write_text(merged(output_of(fault), prefix, fault))
        (folder / "other.log").write_text("slurmstepd: error: Detected 1 oom_kill event in StepId=8.0. Some\n")
        assert [finding.code for finding in hang_findings(folder)] == ["H131"], form  # of the other log


def launched(*command: str) -> str:
    environment = {**os.environ, **JOB_ENVIRONMENT}
    ended = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=JOB_LIMIT_S, check=False
    )
    assert ended.returncode
    return ended.stdout + ended.stderr


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_torchrun_and_its_log_folder(tmp_path: Path) -> None:
    """On the console torchrun has the last word; in its folder each rank has its files."""
    script, logs = str(JOBS / "logged.py"), tmp_path / "logs"
    options = ("--nproc-per-node", "3", "--master-port", free_port(), "--log-dir", str(logs), "--tee", "3")
    console = tmp_path / "console.log"
    console.write_text(launched("-m", "torch.distributed.run", *options, script, "exception", str(CULPRIT)))
    for path in (console, logs):
        [finding] = hang_findings(path)
        assert (finding.code, finding.ranks, finding.certainty) == ("H130", (CULPRIT,), "certain")
        assert finding.location is not None
        assert finding.location.function == "load_batch"


def test_two_restarts_are_three_verdicts(tmp_path: Path) -> None:
    """The same failure each time: that it will come back is certain then."""
    options = ("--nproc-per-node", "2", "--master-port", free_port(), "--max-restarts", "2", "--tee", "3")
    options = (*options, "--log-dir", str(tmp_path / "logs"))
    console = tmp_path / "console.log"
    script = str(JOBS / "logged.py")
    console.write_text(launched("-m", "torch.distributed.run", *options, script, "early", str(CULPRIT)))
    for path in (console, tmp_path / "logs"):
        verdicts = hang_findings(path)
        assert [(finding.code, finding.ranks) for finding in verdicts] == [("H130", (CULPRIT,))] * 3
        assert [finding.evidence.facts["attempt"] for finding in verdicts] == [0, 1, 2]
        assert ["will fail again" in " ".join(finding.evidence.certain) for finding in verdicts] == [False, True, True]
        assert {finding.action for finding in verdicts} == {"fix-first"}


def test_an_exception_in_a_spawned_process(tmp_path: Path) -> None:
    """mp.spawn ends the others and prints the traceback of the one that it joined."""
    console = tmp_path / "console.log"
    console.write_text(launched(str(JOBS / "logged.py"), "exception", str(CULPRIT), free_port()))
    [finding] = hang_findings(console)
    assert (finding.code, finding.ranks) in (("H130", (CULPRIT,)), ("H138", ()))  # it may have joined a victim first


def test_spawned_processes(tmp_path: Path) -> None:
    console = tmp_path / "console.log"
    console.write_text(launched(str(JOBS / "logged.py"), "killed", str(CULPRIT), free_port()))
    [finding] = hang_findings(console)
    assert finding.ranks in ((CULPRIT,), ())  # mp.spawn reports the process that it joined first
    assert finding.code in ("H131", "H138")
