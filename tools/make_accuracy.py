"""Counts how often verdicts on hung jobs are right, and writes docs/accuracy.md.

    python tools/make_accuracy.py               all cases, some minutes
    python tools/make_accuracy.py --cases 5     a quick look; -v names each wrong verdict

The jobs are those of tests/analyze/accuracy.py: seeded, so that two runs count the same.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "accuracy.md"
DEFAULT_CASES = 60
FIRST_SEED = 30_000  # not those of tests, nor those by which rules were mended: what was made right is no measure
MAX_DRAWS = 6  # seeds per wanted case
Judged = tuple[dict[str, bool], str]
COLUMNS = ("right", "among", "rank", "wrong", "certain", "further")
INTRODUCTION = """\
<!-- Written by `make accuracy`: measured, not edited by hand. -->

# How often verdicts are right

Each line is {n_cases} jobs, or fewer where a fault fits few of them, drawn from seeds that no test uses.
Meshes have 2 to 32 ranks. `rankscope` sees only their Flight Recorder dumps; its first finding is compared with what
was done to the job. The jobs are simulated: real hangs have more variety, and this table says nothing about faults that
it does not list. "Dumps damaged" is any mix of lost and cut files, rings that wrapped, clocks that are seconds off,
aborted communicators, completions that nobody noticed, and dumps of older or mixed versions.
"""
FAULTY_HEAD = """
## Jobs with a fault

- *right*: the first finding has the right rule and names exactly the right ranks.
- *among others*: the right rule; the culprit is named together with its peers because nothing tells them apart.
- *only the rank*: the right ranks, under another rule.
- *wrong*: other ranks, or no finding.
- *certain but wrong*: not right and not among others, and yet called certain.
- *further errors*: cases with more errors listed beside the first, where there is one cause.

| kind of fault | cases | right | among others | only the rank | wrong | certain but wrong | further errors |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""
HEALTHY_HEAD = """
## Healthy jobs

A false alarm is any warning or error about a hang or a straggler.

| kind of job | cases | false alarms |
| --- | ---: | ---: |
"""


def main(arguments: Sequence[str]) -> int:
    options = argparse.ArgumentParser(description="Count right and wrong verdicts on simulated jobs.")
    options.add_argument("--cases", type=int, default=DEFAULT_CASES, metavar="N", help="seeds per kind (%(default)s)")
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (%(default)s)")
    options.add_argument("-v", "--verbose", action="store_true", help="print each case that is not right")
    options.add_argument("-o", "--output", type=Path, default=PAGE, help="the page to write")
    chosen = options.parse_args(arguments)
    if chosen.cases < 1 or chosen.jobs < 1:
        options.error("--cases and --jobs must be 1 or more")
    sys.path.insert(0, str(ROOT / "tests"))
    counts = count_all(chosen.cases, chosen.jobs, chosen.verbose)
    chosen.output.write_text(page(counts, chosen.cases), encoding="utf-8")
    print(f"wrote {chosen.output}")
    return 0


def count_all(n_cases: int, n_jobs: int, is_verbose: bool) -> list[Counter[str]]:
    """Per kind: how many cases there were, and how many of them came out how."""
    from analyze.accuracy import all_kinds

    counts: list[Counter[str]] = []
    with ProcessPoolExecutor(n_jobs) as pool:
        for number, kind in enumerate(all_kinds()):
            count: Counter[str] = Counter()
            for seed, (result, note) in cases(pool, number, n_cases):
                count.update({name: int(value) for name, value in result.items()})
                if is_verbose and note:
                    print(f"  seed {seed}: {note}")
            result_text = f"{count['alarm']} false alarms" if kind.is_healthy else f"{count['right']} right"
            print(f"{kind.name}: {count['cases']} cases, {result_text}", flush=True)
            counts.append(count)
    return counts


def cases(pool: Executor, number: int, n_cases: int) -> Iterator[tuple[int, Judged]]:
    """The first cases that have a place for the fault, by seed."""
    seed, last = FIRST_SEED, FIRST_SEED + MAX_DRAWS * n_cases
    n_found = 0
    while n_found < n_cases and seed < last:
        seeds = range(seed, min(last, seed + n_cases - n_found))
        for at, judged in zip(seeds, pool.map(partial(judge, number), seeds, chunksize=4), strict=True):
            if judged[0]:
                n_found += 1
                yield at, judged
        seed = seeds.stop


def judge(number: int, seed: int) -> Judged:
    """One case: what is counted of it, and a note where it is not right."""
    if str(ROOT / "tests") not in sys.path:
        sys.path.insert(0, str(ROOT / "tests"))
    from analyze.accuracy import all_kinds, outcome, told
    from rankscope import pipeline

    with tempfile.TemporaryDirectory() as folder:
        expected = all_kinds()[number].build(seed, Path(folder))
        if expected is None:
            return {}, ""
        report = pipeline.diagnose(pipeline.load([folder]))
    result = {"cases": True, **outcome(expected, report)}
    first = next((finding for finding in report.findings if finding.severity != "info"), None)
    is_noted = not result.get("right", False) and result.get("alarm") is not False
    return result, f"{expected.rule} {expected.ranks}, told: {told(first)}" if is_noted else ""


def page(counts: Sequence[Counter[str]], n_cases: int) -> str:
    from analyze.accuracy import all_kinds

    rows = list(zip(all_kinds(), counts, strict=True))
    faulty = [(kind.name, count) for kind, count in rows if not kind.is_healthy]
    healthy = [(kind.name, count) for kind, count in rows if kind.is_healthy]
    parts = [
        INTRODUCTION.format(n_cases=n_cases),
        FAULTY_HEAD,
        *table_lines(faulty, ("cases", *COLUMNS)),
        HEALTHY_HEAD,
        *table_lines(healthy, ("cases", "alarm")),
    ]
    return "".join(parts)


def table_lines(rows: Sequence[tuple[str, Counter[str]]], columns: Sequence[str]) -> Iterator[str]:
    total: Counter[str] = Counter()
    for name, count in rows:
        total.update(count)
        yield f"| {name} | {' | '.join(str(count[column]) for column in columns)} |\n"
    yield f"| **all** | {' | '.join(str(total[column]) for column in columns)} |\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
