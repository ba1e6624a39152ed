"""How long rankscope takes to start, beside interpreters that do nothing: python bench/startup.py

`rankscope --help`, and the diagnosis of a small dump, which must load only the analyses that it needs.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from measuring import processor, run_measured

SOURCE = Path(__file__).resolve().parents[1] / "src"
HELP_LIMIT_S = 0.1
DUMP_LIMIT_S = 0.15  # above an interpreter that has imported numpy
REPEATS = 9
ENVIRONMENT = {"PYTHONPATH": str(SOURCE)}


def main() -> int:
    """The fastest of several runs, as other work on the machine only ever adds time; the first one compiles."""
    print(f"{processor()}, Python {sys.version.split()[0]}")
    with tempfile.TemporaryDirectory() as folder:
        dump = str(Path(folder, "dump"))
        run_measured([sys.executable, "-m", "rankscope", "demo", "--ranks", "2", "-o", dump], ENVIRONMENT, 60)
        commands = {
            "python -c pass": ["-c", "pass"],
            "python -c 'import argparse'": ["-c", "import argparse"],
            "rankscope --help": ["-m", "rankscope", "--help"],
            "python -c 'import numpy'": ["-c", "import numpy"],
            "rankscope DUMP": ["-m", "rankscope", dump],
        }
        seconds = {name: fastest(arguments) for name, arguments in commands.items()}
    for name, taken in seconds.items():
        print(f"{name:28} {taken * 1e3:6.1f} ms CPU")
    ours = seconds["rankscope --help"]
    above = seconds["rankscope DUMP"] - seconds["python -c 'import numpy'"]
    print(f"rankscope --help: {ours / seconds['python -c pass']:.1f} times an interpreter that does nothing")
    print(f"rankscope DUMP: {above * 1e3:.1f} ms above an interpreter that has imported numpy")
    print(f"{said(ours < HELP_LIMIT_S)}: --help under {HELP_LIMIT_S * 1e3:.0f} ms of CPU")
    print(f"{said(above < DUMP_LIMIT_S)}: a small dump under {DUMP_LIMIT_S * 1e3:.0f} ms of CPU above numpy")
    return 0 if ours < HELP_LIMIT_S and above < DUMP_LIMIT_S else 1


def fastest(arguments: list[str]) -> float:
    runs = [run_measured([sys.executable, *arguments], ENVIRONMENT, 60) for _ in range(REPEATS)]
    return min(run.cpu_s for run in runs[1:])


def said(is_reached: bool) -> str:
    return "reached" if is_reached else "MISSED"


if __name__ == "__main__":
    raise SystemExit(main())
