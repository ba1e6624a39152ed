"""Measures what the profiler traces of many ranks cost, beside the imports and beside decoding the same files.

python bench/kineto_ranks.py           all cases, a few minutes
python bench/kineto_ranks.py --quick   two small cases, to see that everything runs
python bench/kineto_ranks.py --write   puts the table into bench/README.md
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kineto_tools import Tools
from kineto_traces import json_bytes_of
from measuring import Usage, check_printed, finish, measure_in_turns, processor
from rankscope.simulate.profiler import ProfileFault, ProfileSpec, simulate_profile

README = Path(__file__).with_name("README.md")
MARKERS = ("<!-- measured kineto_ranks: begin -->", "<!-- measured kineto_ranks: end -->")
RANKSCOPE, IMPORTS, JSON, MSGSPEC = "rankscope", "imports", "json, untyped", "msgspec, untyped"
LINEAR = 1.1  # times as much per rank is still linear

_IMPORT = "import json, duckdb, rankscope.pipeline, rankscope.commands.diagnose; print(json.dumps({}))"
_DECODE = """
import gzip, json, pathlib, sys
if sys.argv[2] == "msgspec":
    import msgspec
    decode = msgspec.json.decode
else:
    decode = json.loads
n_files = 0
for path in pathlib.Path(sys.argv[1]).iterdir():
    with gzip.open(path) as stream:
        n_files += len(decode(stream.read())["traceEvents"]) > 0
print(json.dumps({"files": n_files}))
"""


@dataclass(frozen=True)
class Case:
    name: str
    spec: ProfileSpec
    max_s_above_imports: float | None = None
    max_times_decode: float | None = None
    max_cpu_s: float | None = None


def _short(n_ranks: int) -> ProfileSpec:
    return ProfileSpec(data_parallel=n_ranks, n_steps=2, seed=1)


def _tiny(n_ranks: int) -> ProfileSpec:
    return ProfileSpec(data_parallel=n_ranks, n_steps=2, n_layers=1, n_microbatches=1, seed=1)


CASES = (
    Case("2-ranks", _short(2), max_s_above_imports=0.4),
    Case("128-ranks", _short(128), max_times_decode=4),
    Case("64-ranks", ProfileSpec(data_parallel=64, n_steps=6, seed=1), max_cpu_s=8),
    Case("64-tiny", _tiny(64)),
    Case("512-tiny", _tiny(512)),
)
GROWTH = ("64-tiny", "512-tiny")
QUICK = (Case("2-ranks", _short(2)), Case("8-tiny", _tiny(8)))


@dataclass(frozen=True)
class Result:
    case: Case
    what: str
    usages: Mapping[str, Usage]

    @property
    def above_imports(self) -> float:
        return self.usages[RANKSCOPE].cpu_s - self.usages[IMPORTS].cpu_s

    def times(self, floor: str) -> float:
        return self.usages[RANKSCOPE].cpu_s / self.usages[floor].cpu_s


def main() -> int:
    parser = argparse.ArgumentParser(description="CPU time and peak memory on the profiler traces of many ranks.")
    parser.add_argument("--quick", action="store_true", help="two small cases without targets")
    parser.add_argument("--write", action="store_true", help="put the result into bench/README.md")
    parser.add_argument("--keep", metavar="DIR", help="keep the traces here, or use those that are there")
    parser.add_argument("--limit", type=float, default=600.0, metavar="SECONDS", help="end a command after this")
    options = parser.parse_args()
    if options.quick and options.write:
        parser.error("--write needs all cases: the table must come from one run")
    with tempfile.TemporaryDirectory(prefix="rankscope-bench-") as scratch:
        tools = Tools(Path(scratch) / "compiled", None)
        folder = Path(options.keep or scratch)
        results = [_measure(case, folder, tools, options.limit) for case in (QUICK if options.quick else CASES)]
    targets = list(_targets(results))
    verdicts = [f"- {'reached' if reached else 'MISSED'}: {target}" for target, reached in targets]
    text = "\n".join([_describe_machine(), "", *_table(results), "", *verdicts])
    return finish(text, (README, MARKERS) if options.write else None, targets)


def _measure(case: Case, folder: Path, tools: Tools, limit_s: float) -> Result:
    print(f"{case.name}: making the traces", file=sys.stderr, flush=True)
    traces = folder / case.name
    n_ranks = case.spec.data_parallel
    if not traces.is_dir():
        unfinished = traces.with_suffix(".unfinished")
        unfinished.mkdir(parents=True, exist_ok=True)
        simulate_profile(case.spec, ProfileFault("slow-kernels", rank=n_ranks // 2)).write(unfinished)
        unfinished.rename(traces)
    packed = sum(path.stat().st_size for path in traces.iterdir()) / n_ranks
    text = sum(map(json_bytes_of, traces.iterdir())) / n_ranks
    diagnose = ["-m", "rankscope", str(traces), "--json", "--no-cache"]
    commands = {
        RANKSCOPE: tools.own(diagnose, partial(_check_ranks, n_ranks)),
        IMPORTS: tools.own(["-c", _IMPORT], partial(check_printed, {})),
        JSON: tools.own(["-c", _DECODE, str(traces), "json"], partial(check_printed, {"files": n_ranks})),
        MSGSPEC: tools.own(["-c", _DECODE, str(traces), "msgspec"], partial(check_printed, {"files": n_ranks})),
    }
    usages = measure_in_turns(commands, limit_s, lambda line: print(f"{case.name}: {line}", file=sys.stderr))
    return Result(case, f"{n_ranks} x {text / 1e6:.1f} MB ({packed / 1e3:.0f} kB as .gz)", usages)


def _check_ranks(n_ranks: int, usage: Usage) -> None:
    if usage.exit_code not in (0, 1) or len(json.loads(usage.output)["capture"]["ranks"]) != n_ranks:
        raise SystemExit(f"rankscope did not read {n_ranks} ranks:\n{usage.output[-2000:]}")


def _targets(results: list[Result]) -> Iterator[tuple[str, bool]]:
    by_name = {result.case.name: result for result in results}
    for result in results:
        case, cpu_s = result.case, result.usages[RANKSCOPE].cpu_s
        if (most := case.max_s_above_imports) is not None:
            wanted = f"{case.name}: within {most:g} s above the imports"
            yield f"{wanted}: {result.above_imports:.2f} s", result.above_imports <= most
        if (most := case.max_times_decode) is not None:
            wanted = f"{case.name}: within {most:g}x of an untyped json decode"
            yield f"{wanted}: {result.times(JSON):.1f}x", result.times(JSON) <= most
        if (most := case.max_cpu_s) is not None:
            yield f"{case.name}: within {most:g} s: {cpu_s:.2f} s", cpu_s <= most
    if by_name.keys() >= {*GROWTH}:
        few, many = (by_name[name] for name in GROWTH)
        growth = many.above_imports / few.above_imports
        n_times = many.case.spec.data_parallel / few.case.spec.data_parallel
        target = f"grows linearly, {few.case.name} to {many.case.name}: {n_times:g}x the ranks, {growth:.1f}x the CPU"
        yield f"{target} above the imports", growth <= LINEAR * n_times


def _table(results: list[Result]) -> Iterator[str]:
    yield "| traces | rankscope | time | peak memory | imports | json, untyped | msgspec, untyped | rankscope / json |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for result in results:
        own = result.usages[RANKSCOPE]
        floors = [f"{result.usages[name].cpu_s:.2f} s" for name in (IMPORTS, JSON, MSGSPEC)]
        cells = [f"{own.cpu_s:.2f} s", f"{own.wall_s:.2f} s", f"{own.peak_bytes / 1e6:,.0f} MB", *floors]
        yield f"| {result.case.name}: {result.what} | {' | '.join(cells)} | {result.times(JSON):.1f} |"


def _describe_machine() -> str:
    versions = [f"{package} {importlib.metadata.version(package)}" for package in ("duckdb", "msgspec")]
    load = f"load {os.getloadavg()[0]:.1f} when it ended"
    return f"{os.cpu_count()} cores ({processor()}), Python {platform.python_version()}, {', '.join(versions)}, {load}."


if __name__ == "__main__":
    sys.exit(main())
