"""`rankscope demo --logs`: the output of a job with a known fault, and what it alone says."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

from rankscope.errors import UsageError

if TYPE_CHECKING:
    from argparse import Namespace

    from rankscope.model.finding import Report
    from rankscope.simulate.job_log import LogJob

FILE_NAME = "job.log"
DEFAULT_RANKS = 8
# The demo's name of the fault -> what the simulator of logs calls it, and the rule that names it.
LOG_FAULTS = {
    "stuck": ("stuck", "H134"),
    "op": ("mismatch", "H135"),
    "stall": ("stalled", "H136"),
    "lost": ("killed", "H131"),
    "none": ("healthy", ""),
}


def logged_job(args: Namespace) -> LogJob:
    from rankscope.simulate.job_log import LogJob

    if args.fault not in LOG_FAULTS:
        raise UsageError(f"--logs has no job with the fault {args.fault}", f"choose one of: {', '.join(LOG_FAULTS)}")
    n_ranks = args.ranks or DEFAULT_RANKS
    culprit = random.Random(args.seed).randrange(n_ranks) if args.rank is None else args.rank
    if not 0 <= culprit < n_ranks or n_ranks < 3:
        raise UsageError(f"a job of {n_ranks} ranks cannot have this fault on rank {culprit}", "choose --ranks 8")
    return LogJob(LOG_FAULTS[args.fault][0], n_ranks, culprit, seed=args.seed)


def write_log(job: LogJob, folder: str) -> None:
    from rankscope.simulate.job_log import text_of

    Path(folder, FILE_NAME).write_text(text_of(job), encoding="utf-8")


def names_culprit(report: Report, args: Namespace, job: LogJob) -> bool:
    code = LOG_FAULTS[args.fault][1]
    if not code:
        return not report.findings
    first = report.findings[0] if report.findings else None
    wanted = () if job.fault == "stalled" else (job.culprit,)
    return first is not None and (first.code, first.ranks) == (code, wanted)


def truth_lines(job: LogJob, folder: str, agrees: bool) -> list[str]:
    truth = {
        "stuck": f"rank {job.culprit} never reached the last collective",
        "mismatch": f"rank {job.culprit} called a different operation from its peers",
        "stalled": "all ranks joined the collective, and it never finished",
        "killed": f"rank {job.culprit} was killed",
        "healthy": "nothing went wrong",
    }[job.fault]
    return ["", f"Truth: {truth}. The diagnosis is {'right' if agrees else 'wrong'}.", f"Output of the job: {folder}"]
