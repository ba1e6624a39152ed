"""Runs real jobs with a late rank, and writes how often the first finding is right into docs/accuracy.md.

python tools/make_late_accuracy.py               all causes, alone and beside two busy processes: some minutes
python tools/make_late_accuracy.py --only lock   one cause; no page is written
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "accuracy.md"
N_BUSY = 2
HEADING = "\n## Why a rank is late: real jobs\n"
NEXT = "<!-- from logs: begin -->"  # what another tool writes behind it
INTRODUCTION = """
Three gloo ranks train a small model under `rankscope record` as it is by default, and the last one has a cause planted
(tests/e2e/jobs/late.py). Each cell says what of the first warning is right; a healthy twin is the same job without the
cause, and what it got is in the last column. *Busy* runs are beside two processes that keep two cores busy. One run per
cell, on the machine that wrote this page, which had other work to do: these figures vary between runs. The line above
the planted one, a loop's head, counts as right.

| cause | condition | rank | cause | line | first | further warnings | healthy twin |
| --- | --- | :-: | :-: | :-: | --- | --- | --- |
"""


HEALTHY = """
Jobs in which nothing is wrong, one per way to train (tests/e2e/jobs/healthy.py), on two ranks:

| job | alone | busy |
| --- | --- | --- |
"""


def main(arguments: Sequence[str]) -> int:
    options = argparse.ArgumentParser(description="Count right verdicts on real jobs with a late rank.")
    options.add_argument("--only", default="", metavar="CAUSE", help="this cause alone; no page is written")
    chosen = options.parse_args(arguments)
    sys.path[:0] = [str(ROOT / "tests" / "e2e"), str(ROOT / "tests")]
    import late_jobs

    rows = []
    for cause in [chosen.only] if chosen.only else late_jobs.CAUSES:
        for condition in ("alone", "busy"):
            rows.append(_row(cause, condition))
            print(rows[-1], flush=True)
    if not chosen.only:
        rows += [HEALTHY.rstrip("\n"), *_healthy_rows()]
        before, _, after = PAGE.read_text(encoding="utf-8").partition(HEADING)
        rest = after[after.index(NEXT) :] if NEXT in after else ""
        made = before.rstrip("\n") + "\n" + HEADING + INTRODUCTION + "\n".join(rows) + "\n"
        PAGE.write_text(made + ("\n" + rest if rest else ""), encoding="utf-8")
        print(f"wrote {PAGE}")
    return 0


def _row(cause: str, condition: str) -> str:
    import late_jobs

    n_busy = N_BUSY if condition == "busy" else 0
    with tempfile.TemporaryDirectory() as folder, _busy(n_busy), redirect_stdout(None):
        report = late_jobs.judge(late_jobs.record(Path(folder) / "late", cause))
        twin = late_jobs.judge(late_jobs.record(Path(folder) / "twin", cause, "--cured"))
    right = late_jobs.outcome(cause, report)
    marks = ["yes" if each else "no" for each in (right.rank, right.cause, right.line)]
    if cause in late_jobs.WITHOUT_LINE:
        marks[-1] = "none expected"  # every line is slow
    alarms = [finding.code for finding in twin.findings if finding.severity != "info"]
    cells = [cause, condition, *marks, right.first or "none", ", ".join(right.further) or "none"]
    return f"| {' | '.join(cells)} | {', '.join(alarms) or 'no warning'} |"


def _healthy_rows() -> Iterator[str]:
    import late_jobs
    import test_healthy_jobs as healthy

    kinds = ("ddp", "loader", "fsdp", "tensor", "pipeline", "compile", "evaluate", "uneven", "accumulate")
    for kind in kinds:
        cells = [kind]
        for n_busy in (0, N_BUSY):
            with tempfile.TemporaryDirectory() as folder, _busy(n_busy), redirect_stdout(None):
                report = late_jobs.judge(healthy.record(Path(folder) / "job", healthy.Job(kind, steps=40)))
            cells.append(", ".join(one.code for one in report.findings if one.severity != "info") or "no warning")
        yield f"| {' | '.join(cells)} |"
        print(*cells, flush=True)


@contextmanager
def _busy(n_processes: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n_processes)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
