"""Measures rankscope, tlparse and a bare scan of all headers on the same TORCH_TRACE logs.

python bench/compile_log.py              all cases, about a quarter of an hour
python bench/compile_log.py --quick      one small case, to see that everything runs
python bench/compile_log.py --write      puts the tables into bench/README.md
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from measuring import Command, Usage, finish, measure_in_turns, processor

HERE = Path(__file__).resolve().parent
README = HERE / "README.md"
MARKERS = ("<!-- measured compile_log: begin -->", "<!-- measured compile_log: end -->")
TLPARSE_VERSION = "0.4.3"
_ROOM_BYTES = 8 << 30  # the reports of all tools on the largest log
KEPT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankscope-bench"

TREE, FINDINGS, TLPARSE, TLPARSE_PLAIN, SCAN = (
    "rankscope compile",
    "rankscope (findings)",
    "tlparse",
    "tlparse -p",
    "header scan",
)
# What nobody who reads such a log in Python can do without: find the records, and decode the JSON of each.
_SCAN = """
import mmap, re, sys
import msgspec
decode = msgspec.json.Decoder().decode
n_records = start = 0
with open(sys.argv[1], "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as log:
    for found in re.finditer(rb"\\n(?!\\t)", log):
        end = found.start()
        line_end = log.find(b"\\n", start, end)
        line_end = end if line_end < 0 else line_end
        brace = log.find(b"] {", start, line_end)
        if brace >= 0:
            decode(log[brace + 2 : line_end])
            n_records += 1
        start = end + 1
print(n_records)
"""


@dataclass(frozen=True)
class Case:
    name: str
    job: str
    log_bytes: int
    is_target: bool = True
    max_megabytes: float | None = None


CASES = (
    Case("training-200MB", "training", 200_000_000),
    Case("recompiles-200MB", "recompiles", 200_000_000),
    Case("training-1GB", "training", 1_000_000_000, max_megabytes=500),
)
QUICK = (Case("recompiles-20MB", "recompiles", 20_000_000, is_target=False),)


@dataclass(frozen=True)
class Result:
    case: Case
    log_bytes: int
    usages: dict[str, Usage]
    n_files: dict[str, int]

    def ratio(self, one: str, other: str) -> float | None:
        """How many times the CPU of the other the one took."""
        over, under = self.usages.get(one), self.usages.get(other)
        if over is None or under is None or over.timed_out or under.timed_out:
            return None
        return over.cpu_s / under.cpu_s


def main() -> int:
    options = _parse_arguments()
    tlparse = _tlparse(options.env)
    cases = QUICK if options.quick else [case for case in CASES if not options.only or case.name in options.only]
    with tempfile.TemporaryDirectory(prefix="rankscope-bench-", dir=options.scratch) as scratch:
        results = [_measure(case, Path(scratch), tlparse, options) for case in cases]
    text = "\n".join([_describe_machine(), "", *_table(results), "", *_verdicts(results)])
    return finish(text, (README, MARKERS) if options.write else None, _targets(results))


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="CPU time and peak memory of rankscope and tlparse on compile logs.")
    names = [case.name for case in CASES]
    parser.add_argument("--quick", action="store_true", help="one small case without targets")
    parser.add_argument("--only", nargs="+", choices=names, metavar="CASE", help="of: " + ", ".join(names))
    parser.add_argument("--write", action="store_true", help="put the result into bench/README.md")
    parser.add_argument("--keep", type=Path, default=KEPT, metavar="DIR", help=f"where logs are kept (default: {KEPT})")
    parser.add_argument(
        "--scratch", type=Path, default=_roomy(), metavar="DIR", help="where reports are written (default: in memory)"
    )
    parser.add_argument(
        "--env", type=Path, default=KEPT / "tlparse", metavar="DIR", help="environment with tlparse, made if absent"
    )
    parser.add_argument("--limit", type=float, default=1800.0, metavar="SECONDS", help="end a command after this")
    options = parser.parse_args()
    if options.write and (options.quick or options.only):
        parser.error("--write needs all cases: the table must come from one run")
    return options


def _roomy() -> Path | None:
    """Where files are in memory; None where there is no such place, or too little room in it."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > _ROOM_BYTES else None


def _tlparse(environment: Path) -> Path:
    program = environment / "bin" / "tlparse"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        subprocess.run([environment / "bin" / "pip", "install", "--quiet", f"tlparse=={TLPARSE_VERSION}"], check=True)
    return program


def _base_log(job: str, folder: Path) -> Path:
    """What torch itself writes for the job, made once."""
    path = folder / f"torch_trace-{job}.log"
    if not path.exists():
        _note(f"running the job {job} to get a log")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as made:
            env = {**os.environ, "TORCH_TRACE": made, "TORCHINDUCTOR_CACHE_DIR": f"{made}/cache"}
            env |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
            subprocess.run([sys.executable, HERE / "compile_job.py", job], env=env, check=True)
            [log] = Path(made).glob("*.log")
            shutil.copy(log, path)
    return path


_FRAME_ID = re.compile(rb'"frame_id": (\d+)')


def _repeated_log(case: Case, folder: Path) -> Path:
    """The job's log again and again, each time with frames of its own."""
    base = _base_log(case.job, folder)
    path = folder / f"torch_trace-{case.name}.log"
    if path.exists():
        return path
    _note(f"{case.name}: writing the log")
    lines = base.read_bytes().splitlines(keepends=True)
    n_frames = max(int(number) for line in lines for number in _FRAME_ID.findall(line[:4096])) + 1
    unfinished = path.with_suffix(".unfinished")
    n_copies = -(-case.log_bytes // base.stat().st_size)
    with unfinished.open("wb") as out:
        for copy in range(n_copies):

            def shifted(found: re.Match[bytes], by: int = copy * n_frames) -> bytes:
                return b'"frame_id": %d' % (int(found.group(1)) + by)

            out.writelines(line if line[:1] == b"\t" else _FRAME_ID.sub(shifted, line, count=1) for line in lines)
    unfinished.rename(path)
    return path


def _measure(case: Case, scratch: Path, tlparse: Path, options: argparse.Namespace) -> Result:
    log = _repeated_log(case, options.keep)
    env = {**os.environ, "PYTHONPATH": str(HERE.parent / "src"), "RANKSCOPE_CACHE": str(scratch / "cache")}
    outputs = {tool: scratch / re.sub(r"\W", "_", f"{case.name} {tool}") for tool in (TREE, TLPARSE, TLPARSE_PLAIN)}
    rankscope = [sys.executable, "-m", "rankscope"]
    arguments: dict[str, list[str]] = {
        SCAN: [sys.executable, "-c", _SCAN, str(log)],
        FINDINGS: [*rankscope, str(log), "--fail-on", "never", "--json"],
        TREE: [*rankscope, "compile", str(log), "-o", str(outputs[TREE]), "--overwrite", "--fail-on", "never"],
        TLPARSE_PLAIN: [str(tlparse), str(log), "-o", str(outputs[TLPARSE_PLAIN]), "--overwrite", "--no-browser", "-p"],
        TLPARSE: [str(tlparse), str(log), "-o", str(outputs[TLPARSE]), "--overwrite", "--no-browser"],
    }
    repeats = {TLPARSE: 1}  # minutes
    commands = {tool: Command(own, env, _succeeded, repeats.get(tool, 3)) for tool, own in arguments.items()}
    usages = measure_in_turns(commands, options.limit, lambda message: _note(f"{case.name}: {message}"))
    n_files = {tool: sum(1 for file in folder.rglob("*") if file.is_file()) for tool, folder in outputs.items()}
    _check_files(case, outputs)
    for folder in outputs.values():
        shutil.rmtree(folder, ignore_errors=True)
    return Result(case, log.stat().st_size, usages, n_files)


def _succeeded(usage: Usage) -> None:
    if usage.exit_code != 0:
        raise SystemExit(f"a command failed with {usage.exit_code}:\n{usage.output[-2000:]}")


def _check_files(case: Case, outputs: dict[str, Path]) -> None:
    """Less work is no merit: every file that tlparse wrote must be there under its name."""
    for peer in (TLPARSE, TLPARSE_PLAIN):
        theirs = {str(file.relative_to(outputs[peer])) for file in outputs[peer].rglob("*") if file.is_file()}
        ours = {str(file.relative_to(outputs[TREE])) for file in outputs[TREE].rglob("*") if file.is_file()}
        if peer == TLPARSE_PLAIN:  # it writes code as .txt, and nothing of it as payloads
            theirs = {name for name in theirs if "inductor_output_code" not in name}
        missing = sorted(theirs - ours)
        if missing:
            raise SystemExit(f"{case.name}: {len(missing)} files of {peer} are missing: {', '.join(missing[:5])}")


def _targets(results: Sequence[Result]) -> Iterator[tuple[str, bool]]:
    for result in (result for result in results if result.case.is_target):
        for peer, least in ((TLPARSE, 10.0), (TLPARSE_PLAIN, 1.5)):
            ratio = result.ratio(peer, TREE)
            wanted = f"{result.case.name}: report tree with at least {least:g}x less CPU than {peer}"
            yield f"{wanted}: {_times(ratio)}", ratio is not None and ratio >= least
        ratio = result.ratio(FINDINGS, SCAN)
        yield f"{result.case.name}: findings within 2x of a header scan: {_times(ratio)}", (ratio or 9.0) <= 2
        if result.case.max_megabytes is not None:
            for tool in (TREE, FINDINGS):
                peak = result.usages[tool].peak_bytes / 1e6
                wanted = f"{result.case.name}: {tool} under {result.case.max_megabytes:g} MB: {peak:.0f} MB"
                yield wanted, peak < result.case.max_megabytes


def _times(ratio: float | None) -> str:
    return "not measured" if ratio is None else f"{ratio:.2f}x"


def _verdicts(results: Sequence[Result]) -> list[str]:
    return [f"- {'reached' if reached else 'MISSED'}: {target}" for target, reached in _targets(results)]


def _describe_machine() -> str:
    versions = [f"{package} {importlib.metadata.version(package)}" for package in ("msgspec", "torch")]
    told = ", ".join([f"Python {platform.python_version()}", *versions, f"tlparse {TLPARSE_VERSION}"])
    return f"{os.cpu_count()} cores ({processor()}), {told}."


def _table(results: Sequence[Result]) -> list[str]:
    lines = [
        "| log | tool | CPU | time | peak memory | log per CPU second | files written | CPU / rankscope compile |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for result in results:
        heading = f"{result.case.name}: {result.log_bytes / 1e6:.0f} MB"
        for tool, usage in result.usages.items():
            rate = result.log_bytes / 1e6 / usage.cpu_s
            cells = [
                f"{usage.cpu_s:.2f} s",
                f"{usage.wall_s:.2f} s",
                f"{usage.peak_bytes / 1e6:,.0f} MB",
                f"{rate:.0f} MB",
            ]
            cells += [f"{result.n_files[tool]:,}" if tool in result.n_files else "", _times(result.ratio(tool, TREE))]
            lines.append(f"| {heading} | {tool} | {' | '.join(cells)} |")
            heading = ""
    return lines


def _note(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
