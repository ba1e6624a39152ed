"""Measures what the collector costs the job that it runs in.

python bench/collect.py            all of it: a few minutes
python bench/collect.py --quick    few steps, to see that everything runs
python bench/collect.py --write    puts the tables into bench/README.md
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from measuring import Usage, processor, replace_between, run_measured
from rankscope.collect.launching.environment import job_environment
from rankscope.collect.settings import Settings

JOB = Path(__file__).with_name("collect_job.py")
SOURCE = Path(__file__).resolve().parents[1] / "src"
README = Path(__file__).with_name("README.md")
MARKERS = ("<!-- measured collect: begin -->", "<!-- measured collect: end -->")
MAX_IDLE = 1.01
MAX_COLLECTIVE_US = 20.0
LIMIT_S = 900.0
Blocks = Mapping[str, Sequence[float]]


def plain_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}


def run_job(arguments: Sequence[str], n_ranks: int = 1, extra: Mapping[str, str] = MappingProxyType({})) -> Blocks:
    command = [sys.executable]
    if n_ranks > 1 or "collective" in arguments:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n_ranks}"]
    usage = run_measured([*command, str(JOB), *arguments], {**plain_environment(), **extra}, LIMIT_S)
    lines = [line for line in usage.output.splitlines() if line.startswith("{")]
    if usage.exit_code or not lines:
        raise SystemExit(f"the job ended with {usage.exit_code}:\n{usage.output[-3000:]}")
    blocks: Blocks = json.loads(lines[-1])
    return blocks


def relative(blocks: Blocks, mode: str) -> float:
    """How long a step takes with the collector, by one without: block by block, as neighbours share their noise."""
    return statistics.median(on / off for on, off in zip(blocks[mode], blocks["off"], strict=True))


def more(calls: Blocks, mode: str) -> float:
    """Microseconds that a call takes more than without collector."""
    return (statistics.median(calls[mode]) - statistics.median(calls["off"])) * 1e6


def step_rows(title: str, blocks: Blocks) -> Iterator[str]:
    yield f"| {title} | step | relative to off |"
    yield "| --- | ---: | ---: |"
    for mode, times in blocks.items():
        yield f"| {mode} | {statistics.median(times) * 1e3:.2f} ms | {relative(blocks, mode):.3f} |"


def start_rows(repeats: int) -> Iterator[str]:
    """What the hook costs every Python that a job starts, ranks or not."""
    yield "| start of an interpreter | alone | under `rankscope record` |"
    yield "| --- | ---: | ---: |"
    for name, code in {"python -c pass": "pass", "python -c 'import torch'": "import torch"}.items():
        seconds = []
        for folder in (None, tempfile.mkdtemp(prefix="rankscope_bench_")):
            environment = plain_environment()
            if folder:
                environment = job_environment(Settings(folder), environment).variables
            runs = [run_measured([sys.executable, "-c", code], environment, 60) for _ in range(repeats)]
            seconds.append(min(map(_cpu, runs[1:])))
        yield f"| `{name}` | {seconds[0] * 1e3:.0f} ms | {seconds[1] * 1e3:.0f} ms |"


def _cpu(usage: Usage) -> float:
    return usage.cpu_s


def compile_row(repeats: int) -> str:
    with tempfile.TemporaryDirectory(prefix="rankscope_bench_") as folder:
        plain, logged = (
            min(run_job(["compile"], extra=extra)["compile"][0] for _ in range(repeats))
            for extra in ({}, {"TORCH_TRACE": folder})
        )
    return f"One compilation (20 layers, aot_eager): {plain:.2f} s CPU, with the compile log {logged:.2f} s."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few steps: the figures mean nothing")
    parser.add_argument("--write", action="store_true", help="put the tables into bench/README.md")
    args = parser.parse_args()
    rounds = "2" if args.quick else "25"
    repeats = 2 if args.quick else 5
    alone = run_job(["train", "--rounds", rounds, "--steps", "40"])
    ranks = ["off", "off again", "idle", "desync", "kineto, execution trace"]
    together = run_job(["train", "--rounds", rounds, "--steps", "40", "--modes", *ranks], n_ranks=2)
    calls = run_job(["collective", "--rounds", rounds, "--steps", "1000", "--modes", "off", "desync"])
    per_call = calls["hooks"][0] * 1e6
    idle = relative(alone, "idle")
    lines = [
        f"{processor()}, Python {sys.version.split()[0]}.",
        "",
        *step_rows("one process", alone),
        "",
        *step_rows("two gloo ranks, DDP", together),
        "",
        *start_rows(repeats),
        "",
        f"Desync tracking: {per_call:.1f} us per collective on the calling thread "
        f"({'reached' if per_call < MAX_COLLECTIVE_US else 'MISSED'}: under {MAX_COLLECTIVE_US:.0f}). "
        f"CPU time of that thread: {more(calls, 'desync'):+.1f} us; with a pause of the same length in place of the "
        f"hooks: {more(calls, 'pause'):+.1f} us.",
        f"Idle: {(idle - 1) * 100:+.1f}% of a step ({'reached' if idle <= MAX_IDLE else 'MISSED'}: within 1%).",
        compile_row(repeats),
    ]
    print("\n".join(lines))
    if args.write:
        replace_between(README, MARKERS, "\n".join(lines))
    return 0 if idle <= MAX_IDLE and per_call < MAX_COLLECTIVE_US else 1


if __name__ == "__main__":
    raise SystemExit(main())
