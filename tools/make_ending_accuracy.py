"""Runs real jobs that hang or fail, and writes how often the first finding is right into docs/accuracy.md.

python tools/make_ending_accuracy.py                      all faults, alone and beside two busy processes: an hour
python tools/make_ending_accuracy.py --conditions alone   without the busy processes
python tools/make_ending_accuracy.py --only segfault      one fault; no page is written
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
HEADING = "\n## How a job ended: real jobs\n"
INTRODUCTION = """
Two gloo ranks run under `rankscope record`, and the second one has a fault planted (tests/e2e/jobs/ending.py). Each
cell says what of the first error is right; *further* lists the codes of other errors. The healthy twin is the same job
without the fault. *Busy* runs are beside two processes that keep two cores busy. One run per cell, on the machine that
wrote this page, which had other work to do.

| fault | condition | rank | cause | line | first | further errors | healthy twin |
| --- | --- | :-: | :-: | :-: | --- | --- | --- |
"""


def main(arguments: Sequence[str]) -> int:
    options = argparse.ArgumentParser(description="Count right verdicts on real jobs that hang or fail.")
    options.add_argument("--only", default="", metavar="FAULT", help="this fault alone; no page is written")
    options.add_argument("--conditions", default="alone,busy", help="alone, busy or both (default: alone,busy)")
    chosen = options.parse_args(arguments)
    sys.path[:0] = [str(ROOT / "tests" / "e2e"), str(ROOT / "tests")]
    import ending_jobs

    rows: list[str] = []
    for fault in [chosen.only] if chosen.only else ending_jobs.FAULTS:
        for condition in chosen.conditions.split(","):
            rows.append(_row(fault, condition))
            print(rows[-1], flush=True)
            if not chosen.only:
                _write(rows)  # what was measured is kept when the rest is interrupted
    return 0


def _write(rows: Sequence[str]) -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(HEADING)
    _, following, after = rest.partition("\n## ")
    text = before.rstrip("\n") + "\n" + HEADING + INTRODUCTION + "\n".join(rows) + "\n" + following + after
    PAGE.write_text(text, encoding="utf-8")


def _row(fault: str, condition: str) -> str:
    import ending_jobs

    n_busy = N_BUSY if condition == "busy" else 0
    with tempfile.TemporaryDirectory() as folder, _busy(n_busy), redirect_stdout(None):
        ending_jobs.record(Path(folder) / "job", fault)
        right = ending_jobs.outcome(fault, ending_jobs.judge(Path(folder) / "job"))
        ending_jobs.record(Path(folder) / "twin", fault, "--cured")
        twin = ending_jobs.judge(Path(folder) / "twin")
    marks = ["yes" if each else "no" for each in (right.rank, right.cause, right.line)]
    if not ending_jobs.FAULTS[fault].has_line:
        marks[-1] = "none expected"
    alarms = [finding.code for finding in twin.findings if finding.severity == "error"]
    cells = [fault, condition, *marks, right.first or "none", ", ".join(right.further) or "none"]
    return f"| {' | '.join(cells)} | {', '.join(alarms) or 'no error'} |"


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
