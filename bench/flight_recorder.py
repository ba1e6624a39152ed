"""Measures rankscope, torchfrtrace and plain unpickling on the same simulated Flight Recorder dumps.

python bench/flight_recorder.py                  all cases, about a quarter of an hour
python bench/flight_recorder.py --quick          one small case, to see that everything runs
python bench/flight_recorder.py --write          puts the tables into bench/README.md
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import itertools
import os
import pickle
import platform
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import log2
from pathlib import Path

from measuring import REPEATS, Command, Usage, measure_in_turns, processor, replace_between, run_measured
from rankscope.simulate import Fault, JobSpec, Mesh, Noise, Simulation, simulate

README = Path(__file__).with_name("README.md")
SOURCE = Path(__file__).resolve().parents[1] / "src"
MARKERS = ("<!-- measured: begin -->", "<!-- measured: end -->")

FRAMES_PER_ENTRY = 12
# A scan per look-up makes torchfrtrace quadratic in the number of entries at worst; noise must not claim more.
MAX_GROWTH = 2.0

RANKSCOPE = "rankscope"
TORCHFRTRACE = "torchfrtrace"
UNPICKLE_EACH = "pickle.load, one file at a time"
UNPICKLE_NO_GC = "pickle.load, one file at a time, garbage collector off"
UNPICKLE_ALL = "pickle.load, all files kept"

_UNPICKLE = """
import gc, os, pickle, sys
if sys.argv[2] == "no-gc":
    gc.disable()
kept = []
for entry in os.scandir(sys.argv[1]):
    with open(entry, "rb") as stream:
        dump = pickle.load(stream)
    if sys.argv[2] == "keep":
        kept.append(dump)
"""


@dataclass(frozen=True)
class Case:
    ranks: int
    entries: int
    with_torchfrtrace: bool = True
    min_times_less_cpu: float | None = None
    """How many times less CPU than torchfrtrace rankscope has to use."""
    max_times_unpickling: float | None = 2.5
    max_gigabytes: float | None = None
    layers: int = 2
    buckets: int = 3

    @property
    def name(self) -> str:
        mix = "" if (self.layers, self.buckets) == (2, 3) else f"-{self.layers}-layers-{self.buckets}-buckets"
        return f"{self.ranks}x{self.entries}{mix}"

    @property
    def steps(self) -> int:
        """Enough for every ring to have wrapped: each layer makes six calls in a step, and each bucket one."""
        return self.entries // (6 * self.layers + self.buckets + 1) + 1


CASES = (
    Case(64, 2000, min_times_less_cpu=10),
    Case(64, 4000),
    Case(256, 2000, min_times_less_cpu=12),
    Case(64, 20000, with_torchfrtrace=False, min_times_less_cpu=50),
    Case(1024, 2000, with_torchfrtrace=False, max_gigabytes=1.0),
    # How long torchfrtrace takes depends on how the calls are spread over the groups. No targets: these show the range.
    Case(64, 2000, layers=8, buckets=3, max_times_unpickling=None),
    Case(64, 2000, layers=2, buckets=8, max_times_unpickling=None),
)
QUICK = (Case(16, 200, max_times_unpickling=None),)
SMALLEST = Case(16, 32)


@dataclass
class Result:
    case: Case
    dump_bytes: int
    usages: dict[str, Usage] = field(default_factory=dict)
    torchfrtrace_cpu_s: float | None = None
    is_extrapolated: bool = False

    @property
    def times_less_cpu(self) -> float | None:
        return self.torchfrtrace_cpu_s / self.usages[RANKSCOPE].cpu_s if self.torchfrtrace_cpu_s else None

    def times_unpickling(self, floor: str) -> float:
        return self.usages[RANKSCOPE].cpu_s / self.usages[floor].cpu_s


def main() -> int:
    options = _parse_arguments()
    cases = QUICK if options.quick else [case for case in CASES if not options.only or case.name in options.only]
    with tempfile.TemporaryDirectory(prefix="rankscope-bench-") as scratch:
        dumps = Path(options.keep or scratch)
        env = _environment(Path(scratch))
        start_up = _start_up(dumps, env)
        results = [_measure(case, dumps, env, options.limit) for case in cases]
    _extrapolate(results, start_up)
    text = "\n".join(_describe_machine() + _table(results, start_up) + _verdicts(results))
    print(text)
    if options.write:
        replace_between(README, MARKERS, text)
    return 0 if all(reached for _, reached in _targets(results)) else 1


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="CPU time and peak memory of rankscope and its peers on Flight Recorder dumps."
    )
    parser.add_argument("--quick", action="store_true", help="one small case without targets")
    parser.add_argument("--only", nargs="+", metavar="CASE", help="of: " + ", ".join(case.name for case in CASES))
    parser.add_argument("--write", action="store_true", help="put the result into bench/README.md")
    parser.add_argument("--keep", metavar="DIR", help="keep the dumps here, or use those that are there")
    parser.add_argument(
        "--limit", type=float, default=300.0, metavar="SECONDS", help="end a command after this (default: 300)"
    )
    options = parser.parse_args()
    if options.write and (options.quick or options.only):
        parser.error("--write needs all cases: the table must come from one run")
    return options


def _environment(scratch: Path) -> dict[str, str]:
    """As for installed packages: compiled modules are kept, so that nobody pays for compiling in a measured run."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**env, "PYTHONPATH": str(SOURCE), "PYTHONPYCACHEPREFIX": str(scratch / "compiled")}


def _commands(folder: Path) -> dict[str, list[str]]:
    commands = {
        RANKSCOPE: ["-m", "rankscope", str(folder)],
        UNPICKLE_EACH: ["-c", _UNPICKLE, str(folder), "drop"],
        UNPICKLE_NO_GC: ["-c", _UNPICKLE, str(folder), "no-gc"],
        UNPICKLE_ALL: ["-c", _UNPICKLE, str(folder), "keep"],
    }
    if importlib.util.find_spec("torch") is not None:
        commands[TORCHFRTRACE] = ["-m", "torch.distributed.flight_recorder.fr_trace", str(folder)]
    return {tool: [sys.executable, *arguments] for tool, arguments in commands.items()}


def _start_up(dumps: Path, env: Mapping[str, str]) -> dict[str, float]:
    """CPU seconds on next to no data; the first, unmeasured run compiles the modules."""
    folder, _ = _make_dumps(SMALLEST, dumps)
    seconds = {}
    for tool, command in _commands(folder).items():
        run_measured(command, env, 120)
        seconds[tool] = min(run_measured(command, env, 120).cpu_s for _ in range(REPEATS))
    return seconds


def _measure(case: Case, dumps: Path, env: Mapping[str, str], limit_s: float) -> Result:
    _note(f"{case.name}: making the dumps")
    folder, culprit = _make_dumps(case, dumps)
    result = Result(case, sum(path.stat().st_size for path in folder.iterdir()))
    commands = {
        # All files kept is for the memory: once is enough.
        tool: Command(arguments, env, partial(_check, tool, culprit), repeats=1 if tool == UNPICKLE_ALL else REPEATS)
        for tool, arguments in _commands(folder).items()
        if tool != TORCHFRTRACE or case.with_torchfrtrace
    }
    result.usages = measure_in_turns(commands, limit_s, lambda message: _note(f"{case.name}: {message}"))
    torchfrtrace = result.usages.get(TORCHFRTRACE)
    if torchfrtrace is not None and not torchfrtrace.timed_out and torchfrtrace.exit_code == 0:
        result.torchfrtrace_cpu_s = torchfrtrace.cpu_s
    return result


def _check(tool: str, culprit: int, usage: Usage) -> None:
    """rankscope must have named the culprit."""
    if tool == RANKSCOPE:
        errors = [line for line in usage.output.splitlines() if line.startswith("error[")]
        if usage.exit_code != 1 or not errors or not re.search(rf"\brank {culprit}\b", errors[0]):
            raise SystemExit(
                f"rankscope did not name rank {culprit} (exit code {usage.exit_code}):\n{usage.output[-2000:]}"
            )
    elif tool != TORCHFRTRACE and usage.exit_code != 0:
        raise SystemExit(f"{tool} failed:\n{usage.output[-2000:]}")


def _make_dumps(case: Case, parent: Path) -> tuple[Path, int]:
    """A tensor- and data-parallel job whose last collective over all ranks misses one rank."""
    folder = parent / case.name
    culprit = case.ranks // 2 + 1
    if folder.is_dir():
        return folder, culprit
    simulation = _simulate(case, culprit)
    unfinished = folder.with_suffix(".unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    for rank, dump in simulation.dumps():
        assert len(dump["entries"]) == case.entries, f"the ring of rank {rank} is not full"
        for entry in dump["entries"]:
            entry["frames"] += _LAUNCHER_FRAMES[: FRAMES_PER_ENTRY - len(entry["frames"])]
        (unfinished / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return unfinished.rename(folder), culprit


def _simulate(case: Case, culprit: int) -> Simulation:
    """The seed decides before which call of its last step the rank stops; it has to be one of all ranks."""
    fault = Fault("stuck", rank=culprit, step=case.steps - 1)
    for seed in itertools.count(1):
        spec = JobSpec(
            Mesh(dp=case.ranks // 8, tp=8), steps=case.steps, layers=case.layers, buckets=case.buckets, seed=seed
        )
        simulation = simulate(spec, fault, Noise(ring=case.entries))
        if simulation.truth.group_desc == "default_pg":
            return simulation
    raise AssertionError("the seeds never end")


# The simulated program is less nested than real ones. These shared frames fill its stacks up, outermost last.
_LAUNCHER_FRAMES = tuple(
    {"name": f"launch_{depth}", "filename": "/opt/launcher/entry.py", "line": 100 + depth}
    for depth in range(FRAMES_PER_ENTRY)
)


def _extrapolate(results: Sequence[Result], start_up: Mapping[str, float]) -> None:
    """torchfrtrace on more entries than one can wait for, by its own growth from 2000 to 4000 entries."""
    by_name = {result.case.name: result for result in results}
    short, long = (by_name.get(f"64x{entries}") for entries in (2000, 4000))
    if short is None or long is None or not short.torchfrtrace_cpu_s or not long.torchfrtrace_cpu_s:
        return
    growth = _growth(short.torchfrtrace_cpu_s, long.torchfrtrace_cpu_s, start_up[TORCHFRTRACE])
    for result in results:
        if result.case.ranks == short.case.ranks and not result.case.with_torchfrtrace:
            factor = (result.case.entries / long.case.entries) ** growth
            result.torchfrtrace_cpu_s = (
                start_up[TORCHFRTRACE] + (long.torchfrtrace_cpu_s - start_up[TORCHFRTRACE]) * factor
            )
            result.is_extrapolated = True


def _growth(short_s: float, long_s: float, start_up_s: float) -> float:
    """The exponent of the time without start-up, between a case and one of twice the entries."""
    return min(MAX_GROWTH, log2((long_s - start_up_s) / (short_s - start_up_s)))


def _targets(results: Sequence[Result]) -> Iterator[tuple[str, bool]]:
    for result in results:
        case, usage = result.case, result.usages[RANKSCOPE]
        if case.min_times_less_cpu is not None:
            ratio = result.times_less_cpu
            how = " (extrapolated)" if result.is_extrapolated else ""
            shown = "torchfrtrace was not measured" if ratio is None else f"{ratio:.1f}x{how}"
            wanted = f"{case.name}: at least {case.min_times_less_cpu:g}x less CPU than torchfrtrace: {shown}"
            yield wanted, ratio is not None and ratio >= case.min_times_less_cpu
        if case.max_times_unpickling is not None:
            ratio = result.times_unpickling(UNPICKLE_EACH)
            yield (
                f"{case.name}: at most {case.max_times_unpickling:g}x the CPU of plain unpickling: {ratio:.2f}x",
                ratio <= case.max_times_unpickling,
            )
        if case.max_gigabytes is not None:
            yield (
                f"{case.name}: under {case.max_gigabytes:g} GB: {usage.peak_bytes / 1e9:.2f} GB",
                usage.peak_bytes < case.max_gigabytes * 1e9,
            )


def _describe_machine() -> list[str]:
    versions = [f"Python {platform.python_version()}"]
    if importlib.util.find_spec("torch") is not None:
        versions.append(f"torch {importlib.metadata.version('torch')}")
    return [f"{os.cpu_count()} cores ({processor()}), {', '.join(versions)}.", ""]


def _table(results: Sequence[Result], start_up: Mapping[str, float]) -> list[str]:
    lines = [
        "| ranks x entries | dumps | pickle.load | rankscope | torchfrtrace "
        "| torchfrtrace / rankscope | rankscope / pickle.load |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for result in results:
        each, no_gc, kept, own = (
            result.usages[tool] for tool in (UNPICKLE_EACH, UNPICKLE_NO_GC, UNPICKLE_ALL, RANKSCOPE)
        )
        cells = [
            result.case.name,
            f"{result.dump_bytes / 1e6:.0f} MB",
            f"{each.cpu_s:.2f} s ({no_gc.cpu_s:.2f} s), "
            f"{each.peak_bytes / 1e6:.0f} MB ({kept.peak_bytes / 1e6:,.0f} MB)",
            f"{own.cpu_s:.2f} s, {own.peak_bytes / 1e6:,.0f} MB",
            _torchfrtrace_cell(result),
            f"{result.times_less_cpu:.1f}" if result.times_less_cpu else "",
            f"{result.times_unpickling(UNPICKLE_EACH):.2f} ({result.times_unpickling(UNPICKLE_NO_GC):.2f})",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    shown = ", ".join(f"{tool} {start_up[tool]:.2f} s" for tool in (RANKSCOPE, TORCHFRTRACE) if tool in start_up)
    return [
        *lines,
        "",
        f"Of this, CPU seconds on {SMALLEST.ranks} x {SMALLEST.entries}, which is the start-up: {shown}.",
        "",
    ]


def _torchfrtrace_cell(result: Result) -> str:
    usage = result.usages.get(TORCHFRTRACE)
    if result.is_extrapolated:
        return f"{result.torchfrtrace_cpu_s:,.0f} s (extrapolated)"
    if usage is None:
        return "not run"
    if usage.timed_out:
        return f"ended after {usage.wall_s:.0f} s"
    if usage.exit_code != 0:
        return f"failed: {usage.output.strip().splitlines()[-1][:80]}"
    return f"{usage.cpu_s:.1f} s, {usage.peak_bytes / 1e6:,.0f} MB"


def _verdicts(results: Sequence[Result]) -> list[str]:
    return [f"- {'reached' if reached else 'MISSED'}: {target}" for target, reached in _targets(results)]


def _note(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
