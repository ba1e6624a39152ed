"""The line of code behind a location, if the file is on this machine. No path of a trace is trusted."""

from __future__ import annotations

import os
import re
import stat
from functools import lru_cache

from rankscope.model.finding import Location

SUFFIXES = (".py", ".pyx", ".pyi")
MAX_BYTES = 5_000_000
_LOOP = re.compile(r"(async\s+for|for|while)\b")
_FUNCTION = re.compile(r"(async\s+def|def|class)\b")


def source_line(location: Location, base: str = "") -> str | None:
    """The line without its line end; None when the file is absent, unfit, too short or blank there."""
    lines = _file_lines(os.path.join(base, location.file))
    if not 1 <= location.line <= len(lines):
        return None
    return lines[location.line - 1].expandtabs(4).rstrip() or None


def loops_around(location: Location) -> frozenset[int] | None:
    """The lines of the `for` and `while` that this line is in, by its indentation; None when it cannot be read."""
    line = source_line(location)
    if line is None:
        return None
    lines, loops, depth = _file_lines(location.file), set(), len(line) + 1
    for number in range(location.line, 0, -1):
        text = lines[number - 1].expandtabs(4)
        code = text.lstrip()
        if not code or code.startswith("#") or len(text) - len(code) >= depth:
            continue
        depth = len(text) - len(code)
        if _LOOP.match(code):
            loops.add(number)
        if not depth or _FUNCTION.match(code):
            break
    return frozenset(loops)


@lru_cache(maxsize=64)
def _file_lines(path: str) -> tuple[str, ...]:
    if not path.endswith(SUFFIXES):
        return ()
    try:
        status = os.stat(path)
        # A named pipe or a device would block or never end.
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            return ()
        with open(path, encoding="utf-8", errors="replace") as file:
            # Not splitlines(): it also breaks at form feeds, which Python does not count as line ends.
            return tuple(file.read().split("\n"))
    except (OSError, ValueError):  # ValueError: a NUL or a lone surrogate in the path
        return ()
