"""The sample outputs of the pages: what the commands print, run where no path of this machine can show."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "rankscope"
# Of a finding: the verdict, the group, the call that differs, both lines of code, and what to do.
MAIN_LINES = re.compile(r"error\[|\s+--> |\s+\|\s+seq |\s+\| > |\s*\d+\||\s+(= )?(fix|help):")
CUT = "..."


def demo_in_short() -> str:
    """About twelve lines of what `make demo` prints; dots mark what is left out."""
    command = "rankscope demo -o ./demo"
    lines = printed(command)[-1]
    short = shortened(lines)
    if not 8 <= len(short) <= 16 or not any(line.startswith("error[") for line in short):
        raise SystemExit(
            "the sample of README.md has lost its lines, or has too many: see MAIN_LINES\n" + "\n".join(short)
        )
    return console([command], [short])


def shortened(lines: Sequence[str]) -> list[str]:
    """The main lines of the first finding; a row of lines that is left out is one line of dots."""
    first = next((number for number, line in enumerate(lines) if line.startswith("error[")), len(lines))
    end = next((number for number in range(first, len(lines)) if not lines[number].strip()), len(lines))
    short = [CUT] if first else []
    for line in lines[first:end]:
        if MAIN_LINES.match(line):
            short.append(line)
        elif short[-1:] != [CUT]:
            short.append(CUT)
    return short if end == len(lines) or short[-1:] == [CUT] else [*short, CUT]


def transcript(*commands: str, shown: int = 1) -> str:
    """What the last commands print; those before them only prepare."""
    outputs = printed(*commands)
    return console(commands[-shown:], outputs[-shown:])


def console(commands: Sequence[str], outputs: Sequence[Sequence[str]]) -> str:
    parts = ["\n".join([f"$ {command}", *output]) for command, output in zip(commands, outputs, strict=True)]
    return "```console\n" + "\n\n".join(parts).rstrip() + "\n```"


def printed(*commands: str) -> list[list[str]]:
    """The lines on stdout of each, run one after another in a folder that holds nothing but the package."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(PACKAGE, Path(folder, PACKAGE.name))
        return [_run(command, folder) for command in commands]


def _run(command: str, folder: str) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "", "NO_COLOR": "1"}
    environment["RANKSCOPE_CACHE"] = str(Path(folder, "cache"))
    words = [sys.executable, "-m", *shlex.split(command)]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{command} failed:\n{done.stdout}{done.stderr}")
    return done.stdout.replace(f"{folder}{os.sep}", "").rstrip().splitlines()
