"""Counts how often the verdict from a job's output alone is right, and writes its section of docs/accuracy.md.

The jobs are those of rankscope.simulate.job_log: seeded, so that two runs count the same.
"""

from __future__ import annotations

import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from rankscope import pipeline
from rankscope.model.finding import Finding
from rankscope.simulate.job_log import RELEASES, LogJob, Printed, printed

PAGE = Path(__file__).resolve().parents[1] / "docs" / "accuracy.md"
N_CASES = 24
FIRST_SEED = 910_000
CODES = {"stuck": "H134", "mismatch": "H135", "stalled": "H136", "exception": "H130", "killed": "H131", "healthy": ""}
INTRODUCTION = """\
## From logs alone

{n} simulated jobs per row, healthy ones included: a rank that is stuck, calls something else, raises or is killed, and
collectives that all joined, in the words of torch 2.3 and 2.6 (`tools/make_log_accuracy.py`). `among`: both sides of a
tie are named. `rank only`: the right ranks, or rightly none, for a less exact reason. `undecided`: nobody is named.
`possible`: a wrong rank, said to be possible. A rank whose log is missing is not named for its silence; the fix line
asks for its log.
"""
BESIDE = "[W1118 09:59:59.0 ProcessGroupNCCL.cpp:1538] destroy_process_group() was not called before program exit\n"
BEGIN, END = "<!-- from logs: begin -->", "<!-- from logs: end -->"
Damage = Callable[[Printed, LogJob, random.Random], Printed]


def cut_head(lines: Printed, job: LogJob, draw: random.Random) -> Printed:
    return lines[draw.randrange(len(lines) // 3) :]


def lost_lines(lines: Printed, job: LogJob, draw: random.Random) -> Printed:
    return [line for line in lines if draw.random() > 0.1]


def skewed(lines: Printed, job: LogJob, draw: random.Random) -> Printed:
    """Merged by clocks that differ by up to half a second: lines of different ranks change places."""
    shifts = {rank: draw.uniform(-0.5, 0.5) for rank in range(-1, job.n_ranks)}
    return sorted(lines, key=lambda line: line[0] + shifts[line[1]])


def silent_peer(lines: Printed, job: LogJob, draw: random.Random) -> Printed:
    """The log of one rank that is not to blame is missing."""
    gone = draw.choice([rank for rank in range(job.n_ranks) if rank != job.culprit])
    return [line for line in lines if line[1] != gone]


def silent_culprit(lines: Printed, job: LogJob, draw: random.Random) -> Printed:
    return [line for line in lines if line[1] != job.culprit]


DAMAGES: dict[str, Damage] = {
    "whole": lambda lines, job, draw: lines,
    "head cut off": cut_head,
    "a tenth of the lines lost": lost_lines,
    "clocks differ": skewed,
    "a victim's log missing": silent_peer,
    "the culprit's log missing": silent_culprit,
}


def outcome(job: LogJob, findings: list[Finding]) -> str:
    """How the first finding compares with what was done to the job."""
    first = findings[0] if findings else None
    if first is None:
        return "right" if job.fault == "healthy" else "undecided"
    wanted = () if job.fault in ("stalled", "healthy") else (job.culprit,)
    if first.ranks == wanted and first.code == CODES[job.fault]:
        return "right"
    if first.ranks == wanted:
        return "rank only"
    if not first.ranks:
        return "undecided"
    if set(wanted) < set(first.ranks) and wanted:
        return "among"
    if first.certainty == "possible":
        return "possible"
    return "certain but wrong" if first.certainty == "certain" else "wrong"


def count(fault: str, damage: str) -> Counter[str]:
    results: Counter[str] = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + N_CASES):
        draw = random.Random(f"{fault} {damage} {seed}")
        n_ranks = draw.choice((3, 4, 8, 16, 32))
        job = LogJob(fault, n_ranks, draw.randrange(n_ranks), draw.choice(RELEASES), seed)
        lines = DAMAGES[damage](printed(job), job, draw)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "job.log").write_text("".join(f"{text}\n" for _, _, text in lines))
            Path(folder, "other.log").write_text(BESIDE)  # never nothing to read
            report = pipeline.diagnose(pipeline.load([folder]))
        result = outcome(job, [finding for finding in report.findings if finding.severity != "info"])
        results[result] += 1
        if "wrong" in result:
            print(f"{fault}, {damage}, {seed}: {job}: {report.findings[0].title}")
    return results


def main() -> int:
    columns = ("right", "rank only", "among", "undecided", "possible", "wrong", "certain but wrong")
    rows = []
    for damage in DAMAGES:
        total: Counter[str] = Counter()
        for fault in CODES:
            total += count(fault, damage)
        rows.append(f"| {damage} | {' | '.join(str(total[column]) for column in columns)} |")
        print(rows[-1], flush=True)
    head = f"| the log | {' | '.join(columns)} |\n| --- | {' | '.join('---:' for _ in columns)} |"
    section = f"{BEGIN}\n{INTRODUCTION.format(n=len(CODES) * N_CASES)}\n{head}\n" + "\n".join(rows) + f"\n{END}\n"
    text = re.sub(f"\n*{BEGIN}.*{END}\n", "", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    PAGE.write_text(f"{text.rstrip()}\n\n{section}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
