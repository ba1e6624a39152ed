"""Measures linking and converting to Chakra: rankscope, Chakra's own tools, and a bare decode of the same two files.

python bench/execution_trace.py                       all cases, Chakra's tools on the smallest: a few minutes
python bench/execution_trace.py --chakra-up-to 200    Chakra's tools on the full size too, which takes them minutes
python bench/execution_trace.py --quick               one small pair, to see that everything runs
python bench/execution_trace.py --write               puts the tables into bench/README.md
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from execution_pairs import BasePair, Pair, read_pair
from execution_tools import (
    CHAKRA_CONVERT,
    CHAKRA_HOW,
    CHAKRA_LINK,
    EXPORT,
    LINK,
    TYPED,
    Tools,
    find_chakra,
    n_chakra_nodes,
)
from measuring import Usage, measure_in_turns, processor, replace_between
from rankscope.simulate.execution import PairOptions, write_pairs
from rankscope.simulate.profiler import ProfileSpec, simulate_profile

README = Path(__file__).with_name("README.md")
MARKERS = ("<!-- measured execution_trace: begin -->", "<!-- measured execution_trace: end -->")
CHAKRA_ENVIRONMENT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankscope-bench" / "chakra"

# 1,500 nodes a step, as in a real recommendation model.
BASE = ProfileSpec(data_parallel=2, n_steps=2, n_layers=6, n_microbatches=4, seed=1)
# Two and a half times the data may take a fifth more than that many times the CPU, and no more, to count as linear.
MAX_UNEVEN = 1.2


@dataclass(frozen=True)
class Case:
    name: str
    n_bytes: int  # of both files
    max_cpu_s: float | None = None
    max_megabytes: float | None = None


CASES = (
    Case("45MB", 45_000_000),
    Case("180MB", 180_000_000, max_cpu_s=8, max_megabytes=1000),
    Case("450MB", 450_000_000),
)
QUICK = (Case("10MB", 10_000_000),)


@dataclass(frozen=True)
class Result:
    case: Case
    pair: Pair
    usages: dict[str, Usage]
    n_written: dict[str, int]
    """Nodes in the graph that a tool made."""

    def cpu_s(self, *tools: str) -> float | None:
        """Of all of them together; None when one was not measured."""
        usages = [self.usages.get(tool) for tool in tools]
        seconds = [usage.cpu_s for usage in usages if usage is not None and not usage.timed_out]
        return sum(seconds) if len(seconds) == len(tools) else None


def main() -> int:
    options = _parse_arguments()
    cases = QUICK if options.quick else [case for case in CASES if not options.only or case.name in options.only]
    chakra = find_chakra(options.env)
    with tempfile.TemporaryDirectory(prefix="rankscope-bench-") as scratch:
        tools = Tools(Path(scratch) / "compiled", Path(scratch), chakra)
        base = read_pair(options.base or _simulated_base(Path(scratch)))
        results = [
            _measure(case, _write_pair(case, base, options.keep or Path(scratch)), tools, options) for case in cases
        ]
        text = "\n".join([_describe_machine(), "", *_table(results), "", *_verdicts(results)])
        is_reached = all(reached for _, reached in _targets(results))
    print(text)
    if chakra is None:
        _note(CHAKRA_HOW.format(folder=options.env))
    if options.write:
        replace_between(README, MARKERS, text)
    return 0 if is_reached else 1


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="CPU time and peak memory of linking and converting execution traces.")
    names = [case.name for case in CASES]
    parser.add_argument("--quick", action="store_true", help="one small pair without targets")
    parser.add_argument("--only", nargs="+", choices=names, metavar="CASE", help="of: " + ", ".join(names))
    parser.add_argument("--write", action="store_true", help="put the result into bench/README.md")
    parser.add_argument("--base", type=Path, metavar="DIR", help="repeat the pair of rank 0 here, not a simulated one")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the pairs here, or use those that are there")
    parser.add_argument(
        "--env",
        type=Path,
        default=CHAKRA_ENVIRONMENT,
        metavar="DIR",
        help=f"environment with Chakra's tools (default: {CHAKRA_ENVIRONMENT})",
    )
    parser.add_argument(
        "--chakra-up-to",
        type=float,
        default=50.0,
        metavar="MB",
        help="Chakra's tools on pairs up to this size, both files (default: 50)",
    )
    parser.add_argument("--limit", type=float, default=1800.0, metavar="SECONDS", help="end a command after this")
    options = parser.parse_args()
    if options.write and (options.quick or options.only or options.base):
        parser.error("--write needs all cases and the simulated pair: the table must come from one run")
    return options


def _simulated_base(scratch: Path) -> Path:
    folder = scratch / "base"
    folder.mkdir()
    write_pairs(simulate_profile(BASE), folder, PairOptions(layout="minified"))
    return folder


def _write_pair(case: Case, base: BasePair, folder: Path) -> Pair:
    copies = base.copies_for(case.n_bytes)
    pair = base.pair(copies, folder / f"pair-{case.name}")
    if not pair.folder.is_dir():
        _note(f"{case.name}: making the pair")
        unfinished = pair.folder.with_suffix(".unfinished")
        base.write(copies, unfinished)
        unfinished.rename(pair.folder)
    return pair


def _measure(case: Case, pair: Pair, tools: Tools, options: argparse.Namespace) -> Result:
    def note(message: str) -> None:
        _note(f"{case.name}: {message}")

    usages = measure_in_turns(tools.commands(pair), options.limit, note)
    if tools.chakra is not None and pair.n_bytes <= options.chakra_up_to * 1e6:
        usages |= tools.run_chakra(pair, options.limit, note)
    n_written = {tool: n_chakra_nodes(folder) for tool, folder in tools.written.items() if tool in usages}
    return Result(case, pair, usages, n_written)


def _targets(results: Sequence[Result]) -> Iterator[tuple[str, bool]]:
    for result in results:
        case, usage = result.case, result.usages[EXPORT]
        if case.max_cpu_s is not None:
            yield (
                f"{case.name}: at most {case.max_cpu_s:g} CPU seconds: {usage.cpu_s:.2f} s",
                usage.cpu_s <= case.max_cpu_s,
            )
        if case.max_megabytes is not None:
            peak = usage.peak_bytes / 1e6
            yield f"{case.name}: at most {case.max_megabytes:g} MB: {peak:.0f} MB", peak <= case.max_megabytes
    for before, after in pairwise(results):
        data = after.pair.n_bytes / before.pair.n_bytes
        work = after.usages[EXPORT].cpu_s / before.usages[EXPORT].cpu_s
        told = f"{before.case.name} to {after.case.name}: {data:.1f}x the data, {work:.1f}x the CPU"
        yield f"grows linearly, {told}", work <= data * MAX_UNEVEN


def _verdicts(results: Sequence[Result]) -> list[str]:
    return [f"- {'reached' if reached else 'MISSED'}: {target}" for target, reached in _targets(results)]


def _describe_machine() -> str:
    versions = [f"{package} {importlib.metadata.version(package)}" for package in ("duckdb", "msgspec")]
    return f"{os.cpu_count()} cores ({processor()}), Python {platform.python_version()}, {', '.join(versions)}."


def _table(results: Sequence[Result]) -> list[str]:
    lines = [
        "| pair | tool | CPU | time | peak memory | nodes written | CPU / typed decode | Chakra's CPU / this |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for result in results:
        pair = result.pair
        heading = (
            f"{result.case.name}: {pair.execution.stat().st_size / 1e6:.0f} MB with {pair.n_nodes:,} nodes, "
            f"{pair.kineto.stat().st_size / 1e6:.0f} MB with {pair.n_events:,} events"
        )
        for tool in result.usages:
            lines.append(f"| {heading} | {tool} | {' | '.join(_cells(result, tool))} |")
            heading = ""
    return lines


def _cells(result: Result, tool: str) -> list[str]:
    usage = result.usages[tool]
    if usage.timed_out:
        return [f"ended after {usage.wall_s:.0f} s", "", "", "", "", ""]
    floor = result.cpu_s(TYPED)
    # What each of ours is compared with: linking alone with Chakra's linker, the export with its two steps.
    peer = {LINK: result.cpu_s(CHAKRA_LINK), EXPORT: result.cpu_s(CHAKRA_LINK, CHAKRA_CONVERT)}.get(tool)
    return [
        f"{usage.cpu_s:.2f} s",
        f"{usage.wall_s:.2f} s",
        f"{usage.peak_bytes / 1e6:,.0f} MB",
        f"{result.n_written[tool]:,}" if tool in result.n_written else "",
        f"{usage.cpu_s / floor:.1f}" if floor else "",
        f"{peer / usage.cpu_s:.1f}" if peer else "",
    ]


def _note(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
