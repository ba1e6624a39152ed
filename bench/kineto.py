"""Measures rankscope, HTA, json.load and a typed msgspec decode on the same profiler traces.

python bench/kineto.py                        all cases, about half an hour
python bench/kineto.py --quick                two small cases, to see that everything runs
python bench/kineto.py --skip-hta-above 500   without HTA on the longest trace, where it takes minutes and 5 GB
python bench/kineto.py --write                puts the tables into bench/README.md
"""

from __future__ import annotations

import argparse
import gzip
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kineto_tools import HTA, HTA_VERSION, JSON, MSGSPEC, RANKSCOPE, Tools, hta_environment, hta_versions
from kineto_traces import json_bytes_of, read_base, write_trace
from measuring import Command, Usage, measure_in_turns, processor, replace_between
from rankscope.simulate.profiler import ProfileFault, ProfileSpec, simulate_profile

README = Path(__file__).with_name("README.md")
MARKERS = ("<!-- measured kineto: begin -->", "<!-- measured kineto: end -->")
HTA_ENVIRONMENT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankscope-bench" / "hta"

MIN_MEGABYTES_PER_CPU_SECOND = 80.0
# Steps as large as those of real jobs, 10 MB of JSON each: HTA's time also grows with the number of steps, and many
# small ones would show it slower than its users see it.
BASE = ProfileSpec(data_parallel=2, n_steps=2, n_layers=52, n_microbatches=4, seed=1)


@dataclass(frozen=True)
class TraceCase:
    """One trace into tables."""

    name: str
    json_bytes: int
    min_times_less_cpu: float | None = None
    min_megabytes_per_cpu_second: float | None = MIN_MEGABYTES_PER_CPU_SECOND
    max_megabytes: float | None = None


@dataclass(frozen=True)
class RanksCase:
    """The traces of all ranks, read and diagnosed."""

    name: str
    spec: ProfileSpec
    min_times_faster: float | None = None


Case = TraceCase | RanksCase

CASES: tuple[Case, ...] = (
    TraceCase("100MB", 100_000_000, min_times_less_cpu=8),
    TraceCase("500MB", 500_000_000),
    TraceCase("1GB", 1_000_000_000, min_times_less_cpu=20, max_megabytes=400),
    RanksCase("64-ranks", ProfileSpec(data_parallel=64, n_steps=6, seed=1), min_times_faster=5),
)
QUICK: tuple[Case, ...] = (
    TraceCase("20MB", 20_000_000, min_megabytes_per_cpu_second=None),
    RanksCase("8-ranks", ProfileSpec(data_parallel=8, n_steps=3, seed=1)),
)


@dataclass(frozen=True)
class Workload:
    what: str
    json_bytes: int
    commands: dict[str, Command]


@dataclass(frozen=True)
class Result:
    case: Case
    workload: Workload
    usages: dict[str, Usage]

    @property
    def hta(self) -> Usage | None:
        usage = self.usages.get(HTA)
        return None if usage is None or usage.timed_out else usage

    def megabytes_per_cpu_second(self, tool: str) -> float:
        return self.workload.json_bytes / 1e6 / self.usages[tool].cpu_s

    def times_less_cpu(self, tool: str) -> float | None:
        return self.hta.cpu_s / self.usages[tool].cpu_s if self.hta else None

    def times_faster(self, tool: str) -> float | None:
        return self.hta.wall_s / self.usages[tool].wall_s if self.hta else None


def main() -> int:
    options = _parse_arguments()
    cases = QUICK if options.quick else [case for case in CASES if not options.only or case.name in options.only]
    hta_python = hta_environment(options.env) if options.skip_hta_above else None
    with tempfile.TemporaryDirectory(prefix="rankscope-bench-") as scratch:
        folder = Path(options.keep or scratch)
        folder.mkdir(parents=True, exist_ok=True)
        tools = Tools(Path(scratch) / "compiled", hta_python)
        results = [_measure(case, _prepare(case, folder, tools, options.base), options) for case in cases]
    text = "\n".join([_describe_machine(hta_python), "", *_table(results), "", *_verdicts(results)])
    print(text)
    if options.json:
        options.json.write_text("".join(json.dumps(record) + "\n" for record in _records(results)))
    if options.write:
        replace_between(README, MARKERS, text)
    return 0 if all(reached for _, reached in _targets(results)) else 1


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="CPU time and peak memory of rankscope and its peers on profiler traces."
    )
    names = [case.name for case in CASES]
    parser.add_argument("--quick", action="store_true", help="two small cases without targets")
    parser.add_argument("--only", nargs="+", choices=names, metavar="CASE", help="of: " + ", ".join(names))
    parser.add_argument("--write", action="store_true", help="put the result into bench/README.md")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements to FILE, one object per line")
    parser.add_argument("--base", type=Path, metavar="FILE", help="repeat this trace and not a simulated one")
    parser.add_argument("--keep", metavar="DIR", help="keep the traces here, or use those that are there")
    parser.add_argument(
        "--env",
        type=Path,
        default=HTA_ENVIRONMENT,
        metavar="DIR",
        help=f"environment with HTA {HTA_VERSION}, made when it is not there (default: {HTA_ENVIRONMENT})",
    )
    parser.add_argument(
        "--skip-hta-above", type=float, default=float("inf"), metavar="MB", help="no HTA on more JSON than this"
    )
    parser.add_argument(
        "--limit", type=float, default=1800.0, metavar="SECONDS", help="end a command after this (default: 1800)"
    )
    options = parser.parse_args()
    if options.write and (options.quick or options.only or options.base):
        parser.error("--write needs all cases and the simulated trace: the table must come from one run")
    return options


def _prepare(case: Case, folder: Path, tools: Tools, base: Path | None) -> Workload:
    _note(f"{case.name}: making the traces")
    if isinstance(case, TraceCase):
        return _prepare_trace(case, folder, tools, base or _simulated_base(folder))
    return _prepare_ranks(case, folder, tools)


def _prepare_trace(case: TraceCase, folder: Path, tools: Tools, base_path: Path) -> Workload:
    base = read_base(base_path)
    copies = base.copies_for(case.json_bytes)
    path = folder / f"{base_path.name.partition('.')[0]}-{case.name}.json.gz"
    if not path.exists():
        unfinished = path.with_suffix(".unfinished")
        write_trace(base, copies, unfinished)
        unfinished.rename(path)
    counts = base.counts.times(copies)
    what = f"{counts.events:,} events, {counts.steps} steps, {path.stat().st_size / 1e6:.0f} MB as .gz"
    return Workload(what, json_bytes_of(path), tools.reading(path, counts))


def _simulated_base(folder: Path) -> Path:
    path = folder / "simulated.json.gz"
    if not path.exists():
        path.write_bytes(gzip.compress(simulate_profile(BASE).text(0).encode(), compresslevel=6))
    return path


def _prepare_ranks(case: RanksCase, folder: Path, tools: Tools) -> Workload:
    """A data-parallel job with one rank whose kernels are slower."""
    n_ranks = case.spec.data_parallel
    culprit = n_ranks // 2 + 1
    traces = folder / case.name
    if not traces.is_dir():
        unfinished = traces.with_suffix(".unfinished")
        unfinished.mkdir(exist_ok=True)
        simulate_profile(case.spec, ProfileFault("slow-kernels", rank=culprit)).write(unfinished)
        unfinished.rename(traces)
    sizes = [json_bytes_of(path) for path in traces.iterdir()]
    what = f"{n_ranks} traces of {sum(sizes) / n_ranks / 1e6:.1f} MB, {case.spec.n_steps} steps"
    return Workload(what, sum(sizes), tools.diagnosing(traces, n_ranks, culprit))


def _measure(case: Case, workload: Workload, options: argparse.Namespace) -> Result:
    commands = dict(workload.commands)
    if workload.json_bytes > options.skip_hta_above * 1e6:
        commands.pop(HTA, None)
    usages = measure_in_turns(commands, options.limit, lambda message: _note(f"{case.name}: {message}"))
    return Result(case, workload, usages)


def _targets(results: Sequence[Result]) -> Iterator[tuple[str, bool]]:
    for result in results:
        case = result.case
        if isinstance(case, RanksCase):
            if case.min_times_faster is not None:
                wanted = f"read and diagnosed at least {case.min_times_faster:g}x faster than HTA loads them"
                yield _ratio_target(f"{case.name}: {wanted}", result.times_faster(RANKSCOPE), case.min_times_faster)
            continue
        if case.min_times_less_cpu is not None:
            wanted = f"{case.name}: at least {case.min_times_less_cpu:g}x less CPU than HTA"
            yield _ratio_target(wanted, result.times_less_cpu(RANKSCOPE), case.min_times_less_cpu)
        if case.min_megabytes_per_cpu_second is not None:
            rate = result.megabytes_per_cpu_second(RANKSCOPE)
            wanted = f"{case.name}: at least {case.min_megabytes_per_cpu_second:g} MB/s per core"
            yield f"{wanted}: {rate:.0f} MB/s", rate >= case.min_megabytes_per_cpu_second
        if case.max_megabytes is not None:
            peak = result.usages[RANKSCOPE].peak_bytes / 1e6
            yield f"{case.name}: under {case.max_megabytes:g} MB: {peak:.0f} MB", peak < case.max_megabytes


def _ratio_target(wanted: str, ratio: float | None, least: float) -> tuple[str, bool]:
    shown = "HTA was not measured" if ratio is None else f"{ratio:.1f}x"
    return f"{wanted}: {shown}", ratio is not None and ratio >= least


def _verdicts(results: Sequence[Result]) -> list[str]:
    return [f"- {'reached' if reached else 'MISSED'}: {target}" for target, reached in _targets(results)]


def _describe_machine(hta_python: Path | None) -> str:
    versions = [f"Python {platform.python_version()}"]
    versions += [f"{package} {importlib.metadata.version(package)}" for package in ("duckdb", "msgspec")]
    if hta_python is not None:
        versions.append(f"HTA ({hta_versions(hta_python)})")
    return f"{os.cpu_count()} cores ({processor()}), {', '.join(versions)}."


def _table(results: Sequence[Result]) -> list[str]:
    lines = [
        "| trace | tool | CPU | time | peak memory | JSON per CPU second | HTA's CPU / this | HTA's time / this |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for result in results:
        heading = f"{result.case.name}: {result.workload.what}"
        for tool in (RANKSCOPE, HTA, JSON, MSGSPEC):
            if tool in result.usages:
                lines.append(f"| {heading} | {tool} | {' | '.join(_cells(result, tool))} |")
                heading = ""
    return lines


def _cells(result: Result, tool: str) -> list[str]:
    usage = result.usages[tool]
    if usage.timed_out:
        return [f"ended after {usage.wall_s:.0f} s", "", "", "", "", ""]
    ratios = [] if tool == HTA else [result.times_less_cpu(tool), result.times_faster(tool)]
    return [
        f"{usage.cpu_s:.2f} s",
        f"{usage.wall_s:.2f} s",
        f"{usage.peak_bytes / 1e6:,.0f} MB",
        f"{result.megabytes_per_cpu_second(tool):.0f} MB",
        *(f"{ratio:.1f}" if ratio else "" for ratio in ratios or [None, None]),
    ]


def _records(results: Sequence[Result]) -> Iterator[dict[str, Any]]:
    for result in results:
        for tool, usage in result.usages.items():
            yield {
                "case": result.case.name,
                "tool": tool,
                "json_bytes": result.workload.json_bytes,
                "cpu_s": usage.cpu_s,
                "wall_s": usage.wall_s,
                "peak_bytes": usage.peak_bytes,
                "timed_out": usage.timed_out,
            }


def _note(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
