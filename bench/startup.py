"""How long `rankscope --help` takes, beside an interpreter that does nothing: python bench/startup.py"""

from __future__ import annotations

import sys
from pathlib import Path

from measuring import processor, run_measured

SOURCE = Path(__file__).resolve().parents[1] / "src"
LIMIT_S = 0.1
REPEATS = 9
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "python -c 'import argparse'": ["-c", "import argparse"],
    "rankscope --help": ["-m", "rankscope", "--help"],
}


def main() -> int:
    """The fastest of several runs, as other work on the machine only ever adds time; the first one compiles."""
    print(f"{processor()}, Python {sys.version.split()[0]}")
    seconds = {}
    for name, arguments in COMMANDS.items():
        runs = [run_measured([sys.executable, *arguments], {"PYTHONPATH": str(SOURCE)}, 60) for _ in range(REPEATS)]
        seconds[name] = min(run.cpu_s for run in runs[1:])
        print(f"{name:28} {seconds[name] * 1e3:6.1f} ms CPU")
    ours = seconds["rankscope --help"]
    print(f"rankscope --help: {ours / seconds['python -c pass']:.1f} times an interpreter that does nothing")
    print(f"{'reached' if ours < LIMIT_S else 'MISSED'}: under {LIMIT_S * 1e3:.0f} ms of CPU")
    return 0 if ours < LIMIT_S else 1


if __name__ == "__main__":
    raise SystemExit(main())
