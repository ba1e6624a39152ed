"""Counts how often verdicts on hung jobs are right, and writes docs/accuracy.md.

    python tools/make_accuracy.py               all cases, some minutes
    python tools/make_accuracy.py --cases 5 --only skip/     a quick look at some of them
    python tools/make_accuracy.py --show skip/short 300003    one case and its diagnosis

The jobs are those of tests/analyze/accuracy.py: seeded, so that two runs count the same.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "accuracy.md"
DEFAULT_CASES = 24
FIRST_SEED = 600_000  # not those of tests, nor those by which rules were mended: what was made right is no measure
MAX_DRAWS = 6  # seeds per wanted case
Judged = tuple[dict[str, bool], str]
Counts = dict[str, Counter[str]]
COLUMNS = ("right", "among", "rank", "wrong", "unchecked", "silent", "certain", "further")
INTRODUCTION = """\
<!-- Written by `make accuracy`: measured, not edited by hand. -->

# How often verdicts are right

{n_all:,} jobs: {n_cases} for each kind of fault under each condition, or fewer where a fault fits few of them, drawn
from seeds that no test uses. Meshes have 2 to 32 ranks. `rankscope` sees only their Flight Recorder dumps; what it
finds is compared with what was done to the job. The jobs are simulated: real hangs have more variety, and these tables
say nothing about faults that they do not list.

"""
MATRIX_HEAD = """
## Right verdicts, by fault and condition

The first finding has the right rule and names exactly the right ranks; of several faults, each has its own finding.
The last row counts healthy jobs without a false alarm: any warning or error about a hang or a straggler.

"""
FAULTY_HEAD = """
## What the other verdicts said

- *right*: as above.
- *among others*: the right rule; the culprit is named together with its peers because the dumps cannot separate them.
- *only the rank*: the right ranks, under another rule.
- *wrong*: other ranks, or of several culprits not all.
- *not checked*: no finding, but the report lists the rule as not checked, with what to record or copy for it.
- *silent*: no finding about a hang or a straggler.
- *certain but wrong*: another rule or another rank, and yet called certain.
- *further errors*: cases with more errors listed beside the first, where there is one cause.

| fault | cases | right | among others | only the rank | wrong | not checked | silent \
| certain but wrong | further errors |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""
NOTES_HEAD = """
## Every verdict that is not right

`python tools/make_accuracy.py --show skip/short 300003` makes such a case again and prints its diagnosis.

"""


def main(arguments: Sequence[str]) -> int:
    options = argparse.ArgumentParser(description="Count right and wrong verdicts on simulated jobs.")
    options.add_argument("--cases", type=int, default=DEFAULT_CASES, metavar="N", help="seeds per row (%(default)s)")
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (%(default)s)")
    options.add_argument(
        "--only", default="", metavar="TEXT", help="rows whose kind/condition holds this; no page is written"
    )
    options.add_argument("--show", nargs=2, metavar=("ROW", "SEED"), help="print the diagnosis of one case")
    options.add_argument("-o", "--output", type=Path, default=PAGE, help="the page to write")
    chosen = options.parse_args(arguments)
    if chosen.cases < 1 or chosen.jobs < 1:
        options.error("--cases and --jobs must be 1 or more")
    sys.path.insert(0, str(ROOT / "tests"))
    if chosen.show:
        return show(chosen.show[0], int(chosen.show[1]))
    counts, notes = count_all(chosen.cases, chosen.jobs, chosen.only)
    if not chosen.only:
        chosen.output.write_text(page(counts, notes, chosen.cases), encoding="utf-8")
        print(f"wrote {chosen.output}")
    return 0


def show(name: str, seed: int) -> int:
    from analyze.accuracy import all_rows
    from rankscope import pipeline
    from rankscope.render import Options, load_renderer

    with tempfile.TemporaryDirectory() as folder:
        case = all_rows()[name].case(seed)
        print(case)
        print(f"true: {case.write(Path(folder))}\n")
        print("\n".join(load_renderer("txt")(pipeline.diagnose(pipeline.load([folder])), Options())))
    return 0


def count_all(n_cases: int, n_jobs: int, only: str) -> tuple[Counts, list[str]]:
    """Per row: how many cases there were, and how many of them came out how; and a note for each that is not right."""
    from analyze.accuracy import all_rows

    counts: Counts = {}
    notes: list[str] = []
    with ProcessPoolExecutor(n_jobs) as pool:
        for name in all_rows():
            if only not in name:
                continue
            count = counts[name] = Counter()
            for seed, (result, note) in cases(pool, name, n_cases):
                count.update({key: int(value) for key, value in result.items()})
                if note:
                    notes.append(f"{name} {seed}: {note}")
                    print(f"  {notes[-1]}")
            result_text = f"{count['alarm']} false alarms" if is_healthy(name) else f"{count['right']} right"
            print(f"{name}: {count['cases']} cases, {result_text}", flush=True)
    seconds = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(f"{seconds:.0f} s of CPU time")
    return counts, notes


def is_healthy(name: str) -> bool:
    return name.startswith("healthy/")


def cases(pool: Executor, name: str, n_cases: int) -> Iterator[tuple[int, Judged]]:
    """The first cases that have a place for the fault, by seed."""
    seed, last = FIRST_SEED, FIRST_SEED + MAX_DRAWS * n_cases
    n_found = 0
    while n_found < n_cases and seed < last:
        seeds = range(seed, min(last, seed + n_cases - n_found))
        for at, judged in zip(seeds, pool.map(partial(judge, name), seeds, chunksize=2), strict=True):
            if judged[0]:
                n_found += 1
                yield at, judged
        seed = seeds.stop


def judge(name: str, seed: int) -> Judged:
    """One case: what is counted of it, and a note where it is not right."""
    if str(ROOT / "tests") not in sys.path:
        sys.path.insert(0, str(ROOT / "tests"))
    from analyze.accuracy import build, outcome, told
    from rankscope import pipeline

    with tempfile.TemporaryDirectory() as folder:
        expected = build(name, seed, Path(folder))
        if expected is None:
            return {}, ""
        report = pipeline.diagnose(pipeline.load([folder]))
    result = {"cases": True, **outcome(expected, report)}
    is_noted = not result.get("right", False) and result.get("alarm") is not False
    true = " + ".join(f"{rule} {list(ranks)}" for rule, ranks in expected.causes) or "nothing is wrong"
    return result, f"{true}; reported: {told(report)}" if is_noted else ""


def page(counts: Counts, notes: Sequence[str], n_cases: int) -> str:
    from analyze.accuracy import CONDITION_HELP, HEALTHY, KINDS

    faults = [name for name in KINDS if name != HEALTHY]
    n_all = sum(count["cases"] for count in counts.values())
    parts = [
        INTRODUCTION.format(n_cases=n_cases, n_all=n_all),
        "| fault | |\n| --- | --- |\n",
        *(f"| {name} | {KINDS[name].help} |\n" for name in faults),
        "\n| condition | |\n| --- | --- |\n",
        *(f"| {name} | {text} |\n" for name, text in CONDITION_HELP.items()),
        MATRIX_HEAD,
        *matrix_lines(counts, [*faults, HEALTHY], list(CONDITION_HELP)),
        FAULTY_HEAD,
        *outcome_lines(counts, faults),
        NOTES_HEAD,
        *(f"- {note.replace('|', '/')}\n" for note in notes),
    ]
    return "".join(parts)


def matrix_lines(counts: Counts, kinds: Sequence[str], conditions: Sequence[str]) -> Iterator[str]:
    yield f"| | {' | '.join(conditions)} |\n| --- |{' ---: |' * len(conditions)}\n"
    for kind in kinds:
        cells = [counts.get(f"{kind}/{condition}") for condition in conditions]
        yield f"| {kind} | {' | '.join(cell_text(cell) for cell in cells)} |\n"


def cell_text(count: Counter[str] | None) -> str:
    if not count:
        return ""
    n_good = count["right"] if "right" in count else count["cases"] - count["alarm"]
    return f"{n_good}/{count['cases']}"


def outcome_lines(counts: Counts, kinds: Sequence[str]) -> Iterator[str]:
    total: Counter[str] = Counter()
    for kind in kinds:
        of_kind: Counter[str] = Counter()
        for name, count in counts.items():
            if name.startswith(f"{kind}/"):
                of_kind.update(count)
        total.update(of_kind)
        yield f"| {kind} | {' | '.join(str(of_kind[column]) for column in ('cases', *COLUMNS))} |\n"
    yield f"| **all** | {' | '.join(str(total[column]) for column in ('cases', *COLUMNS))} |\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
