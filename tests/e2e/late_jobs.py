"""Runs the jobs of jobs/late.py under the collector, and counts what is right of the first finding."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from collected_jobs import Script, collected, environment, free_port, run_scripts
from launching import JOBS

from rankscope.collect.launching import leftovers
from rankscope.collect.settings import Settings
from rankscope.model.finding import Report
from rankscope.pipeline import diagnose, load

N_RANKS = 3
LATE = N_RANKS - 1
# The rules that name each cause. Where cores or the GIL are short, every line is slow, and none is expected.
CAUSES = {
    "sleep": "X612",
    "gc": "X602",
    "loading": "X603",
    "workers": "X603",
    "saving": "X604",
    "transfer": "X605",
    "pipe": "X605",
    "address": "X605",
    "lock": "X606",
    "python-lock": "X607",
    "longer": "X609",
    "more": "X614",
    "dtype": "X615",
    "evaluation": "X616",
    "extra": "X610",
    "operator": "X610",
    "hook": "X610",
    "expert": "X614",
    "optimizer": "X611",
    "compile": "X613",
}
WITHOUT_LINE = ("python-lock",)


class Outcome(NamedTuple):
    rank: bool
    cause: bool
    line: bool
    first: str
    further: tuple[str, ...]  # warnings and errors after the first


def record(folder: Path, cause: str, *options: str) -> Path:
    """As `rankscope record` does."""
    folder.mkdir(parents=True)
    traces, port = folder / "traces", free_port()
    settings = Settings(folder=str(traces), run_id=folder.name)
    ranks = []
    for rank in map(str, range(N_RANKS)):
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(N_RANKS), "MASTER_PORT": port}
        arguments = [cause, "--scratch", str(folder), *options]
        ranks.append(Script("late", arguments, collected(settings, environment(**own))))
    started = time.time_ns()
    codes = [ended.code for ended in run_scripts(folder, ranks)]
    assert codes == [0] * N_RANKS
    about = {"id": folder.name, "exit_code": 0, "started_ns": started, "ended_ns": time.time_ns()}
    leftovers.finish(traces, about)
    return traces


def judge(traces: Path) -> Report:
    return diagnose(load(traces, jobs=1))


def alarms(report: Report) -> list[str]:
    return [f"{one.severity}[{one.code}] {one.title}" for one in report.findings if one.severity != "info"]


def outcome(cause: str, report: Report) -> Outcome:
    serious = [finding for finding in report.findings if finding.severity != "info"]
    if not serious:
        return Outcome(False, False, False, "", ())
    first, *others = serious
    place = first.location
    is_line = cause in WITHOUT_LINE or bool(place and (place.line in planted_lines(cause)))
    is_rank, is_cause = first.ranks == (LATE,), first.code == CAUSES[cause]
    return Outcome(is_rank, is_cause, is_line, first.code, tuple(one.code for one in others))


def planted_lines(cause: str) -> set[int]:
    """The line that is marked, and its neighbor above: a loop's head is as right as its body."""
    lines = (JOBS / "late.py").read_text().splitlines()
    marked = [number for number, line in enumerate(lines, 1) if line.endswith(f"# planted: {cause}")]
    return {number - less for number in marked for less in (0, 1)}
