"""Runs the jobs of jobs/ending.py under `rankscope record`, and counts what is right of the first finding."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from collected_jobs import TORCHRUN, Ended, end, environment, start_record
from launching import JOB_LIMIT_S, JOBS

from rankscope.model.finding import Report
from rankscope.pipeline import diagnose, load

CULPRIT = 1  # of two ranks
AGENT = (sys.executable, str(JOBS / "forked_agent.py"), "2")
OPTIONS = ("--only", "recorder,stacks,output", "--no-diagnose")
QUICK, NEVER = ("--timeout", "5"), ("--timeout", "100")
STALL = ("--stall", "3")


class Fault(NamedTuple):
    """How a job is run, and what its first finding must say."""

    codes: tuple[str, ...]  # rules that name this cause
    cause: str  # in the finding's texts
    arguments: tuple[str, ...] = QUICK
    options: tuple[str, ...] = ()
    stop_when: str = ""  # in the stacks of the culprit: then Ctrl-C, as the job would not end
    has_line: bool = True


FAULTS = {
    "file-lock": Fault(("H105",), "never reached the all_reduce"),
    "download": Fault(("H105",), "never reached the all_reduce"),
    "loop": Fault(("H105",), "never reached the all_reduce"),
    "late": Fault(("H121", "H105"), "all_reduce", options=STALL),
    "init": Fault(("H117",), "never called init_process_group"),
    "first": Fault(("H105",), "never reached the all_reduce"),
    "monitored": Fault(("H112",), "the others are waiting for it"),
    "after-destroy": Fault(("H118",), "does not exit after destroy_process_group", NEVER, STALL, "has not ended"),
    "exit-hang": Fault(("H118",), "is waiting for thread uploader", NEVER, STALL, "has not ended"),
    "two-groups": Fault(("H107", "H106"), "group 2", NEVER, STALL, "no collective has finished"),
    "segfault": Fault(("H116",), "crashed with SIGSEGV"),
    "abort": Fault(("H116",), "crashed with SIGABRT"),
    "killed": Fault(("H116",), "killed by SIGKILL", has_line=False),
    "os-exit": Fault(("H116",), "exit code 3", has_line=False),
    "sys-exit": Fault(("H119", "H116"), "exit code 5", has_line=False),
    "raise": Fault(("H105", "H113"), "raised ValueError: loss is nan"),
    "mismatch": Fault(("H116", "H103"), "all_reduce [8000]"),
    "barrier": Fault(("H102",), "called barrier"),
    "nan": Fault(("H119",), "skipped the calls of a step", has_line=False),
    "uneven": Fault(("H102",), "left the training loop early"),
    "left": Fault(("H119",), "its loop ended early", has_line=False),
    "swallowed": Fault(("H106",), "skipped all_reduce", has_line=False),
    "worker": Fault(("H105",), "DataLoader worker 0", ("--timeout", "12"), STALL),
    "collate": Fault(("H105",), "raised KeyError: 'labels'"),
    "worker-killed": Fault(("H105",), "had been killed by SIGKILL"),
    "thread": Fault(("H105",), "lost its thread prefetch to OSError: cannot open shard 3"),
    "terminated": Fault(("H116",), "killed by SIGTERM"),
    "import": Fault(("H117",), "raised ModuleNotFoundError: No module named 'no_such_module'"),
    "lock": Fault(("H105",), "thread uploader of rank 1 is in hold", ("--timeout", "12"), STALL),
    "gil": Fault(("H105",), "never reached the all_reduce", ("--timeout", "20"), STALL),
}


class Outcome(NamedTuple):
    rank: bool
    cause: bool
    line: bool
    first: str
    further: tuple[str, ...]  # errors after the first


def record(folder: Path, fault: str, *more: str, launcher: Sequence[str] = AGENT) -> Ended:
    folder.mkdir(parents=True, exist_ok=True)
    how = FAULTS[fault]
    job = [*launcher, str(JOBS / "ending.py"), fault, "--scratch", str(folder), *how.arguments, *more]
    process = start_record(folder / "traces", (*OPTIONS, *how.options), job)
    if how.stop_when and "--cured" not in more:
        _wait_for(folder / "traces" / f"stacks_{CULPRIT}.txt", how.stop_when, process)
        process.send_signal(signal.SIGINT)
    return end(process)


def run_alone(folder: Path, fault: str, *more: str) -> Ended:
    """The same job without `record`."""
    folder.mkdir(parents=True, exist_ok=True)
    job = [*AGENT, str(JOBS / "ending.py"), fault, "--scratch", str(folder), *FAULTS[fault].arguments, *more]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return end(subprocess.Popen(job, env=environment(), text=True, **streams))  # type: ignore[call-overload]


def under_torchrun(*options: str) -> tuple[str, ...]:
    return (*TORCHRUN, "--nproc-per-node", "2", *options)


def judge(folder: Path) -> Report:
    return diagnose(load(folder / "traces", jobs=1))


def outcome(fault: str, report: Report) -> Outcome:
    expected = FAULTS[fault]
    errors = [finding for finding in report.findings if finding.severity == "error"]
    if not errors:
        return Outcome(False, False, False, "", ())
    first, *others = errors
    evidence = first.evidence
    texts = (first.title, first.help, *evidence.certain, *evidence.likely, *evidence.notes)
    is_cause = first.code in expected.codes and any(expected.cause in text for text in texts)
    is_line = not expected.has_line or bool(first.location and first.location.line == planted_line(fault))
    return Outcome(first.ranks == (CULPRIT,), is_cause, is_line, first.code, tuple(each.code for each in others))


def planted_line(fault: str) -> int:
    lines = (JOBS / "ending.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# planted: {fault}"))


def shown(report: Report) -> list[str]:
    return [f"{one.severity}[{one.code}] {one.title}" for one in report.findings]


def _wait_for(path: Path, text: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + JOB_LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        if path.exists() and text in path.read_text(errors="replace"):
            return
        time.sleep(0.1)
