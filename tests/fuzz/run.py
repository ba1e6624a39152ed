"""make fuzz: 100,000 hostile inputs over all formats; the table of what failed goes into docs/security.md."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import re
import resource
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz.trying import MEMORY, Failure, all_problems, formats
from rankscope.model.border import raise_bugs

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
TABLE = re.compile(r"(<!-- fuzz: begin -->\n).*?(<!-- fuzz: end -->)", re.DOTALL)
ROW = re.compile(r"^\| (\w+) \| ([0-9,]+) \| ([0-9,]+) \|$", re.MULTILINE)
# How many times as long as the others one input takes.
SLOW = {"kineto": 30, "execution_trace": 30, "nsys": 30, "compile_log": 12, "host_samples": 5, "torch_logs": 10}
CHUNK = 50


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("-n", type=int, default=100_000)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments.add_argument("--write", action="store_true", help="put the table into docs/security.md")
    arguments.add_argument(
        "--add", action="store_true", help="add to the table that is there: a slice with other seeds"
    )
    chosen = arguments.parse_args()
    counts = shares(chosen.n)
    chunks = [
        (name, range(chosen.seed + start, chosen.seed + min(start + CHUNK, n_inputs)))
        for name, n_inputs in counts.items()
        for start in range(0, n_inputs, CHUNK)
    ]
    random.Random(chosen.seed).shuffle(chunks)  # whoever stops it early has seen all formats
    failures: list[Failure] = []
    context = multiprocessing.get_context("spawn")
    with context.Pool(chosen.jobs, maxtasksperchild=40) as pool:
        for done, found in enumerate(pool.imap_unordered(try_chunk, chunks), 1):
            failures += found
            for failure in found:
                print(*failure, sep="  ", flush=True)
            if done % 10 == 0:
                print(f"{done * CHUNK:,} of {chosen.n:,} inputs, {len(failures)} failures", flush=True)
    tried, failed = Counter(counts), Counter(failure.format for failure in failures)
    print(table(tried, failed))
    if chosen.write or chosen.add:
        page = PAGE.read_text()
        before, failed_before = counted(page) if chosen.add else (Counter[str](), Counter[str]())
        shown = table(tried + before, failed + failed_before)
        PAGE.write_text(TABLE.sub(lambda match: match[1] + shown + match[2], page))
    return int(bool(failures))


def shares(n_inputs: int) -> dict[str, int]:
    weights = {name: 1 / SLOW.get(name, 1) for name in formats()}
    counts = {name: int(n_inputs * weight / sum(weights.values())) for name, weight in weights.items()}
    counts["flight_recorder"] += n_inputs - sum(counts.values())
    return counts


def try_chunk(chunk: tuple[str, range]) -> list[Failure]:
    raise_bugs()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, resource.RLIM_INFINITY))
    with tempfile.TemporaryDirectory(prefix="rankscope-fuzz-") as folder:
        return list(all_problems(*chunk, Path(folder, "job")))


def table(tried: Counter[str], failed: Counter[str]) -> str:
    rows = [f"| {name} | {n_inputs:,} | {failed[name]} |" for name, n_inputs in sorted(tried.items())]
    total = f"| all | {tried.total():,} | {failed.total()} |"
    return "\n".join(("| format | inputs | failures |", "| --- | --- | --- |", *rows, total, ""))


def counted(text: str) -> tuple[Counter[str], Counter[str]]:
    """Inputs and failures by format, of all the tables in a text: the page's, or what several slices printed."""
    tried, failed = Counter[str](), Counter[str]()
    for name, n_inputs, n_failed in ROW.findall(text):
        if name != "all":
            tried[name] += int(n_inputs.replace(",", ""))
            failed[name] += int(n_failed.replace(",", ""))
    return tried, failed


if __name__ == "__main__":
    sys.exit(main())
