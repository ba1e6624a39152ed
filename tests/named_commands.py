"""The commands that an answer names are taken out of its texts and run on the capture that the answer is about.

`check_named_commands(capture, folder)` does it for everything that `rankscope CAPTURE --all` prints, for the manual
pages of what it found, and for the commands that those commands name as the next ones.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from rankscope.cli import EXIT_FAILED, build_parser, main
from rankscope.commands import COMMANDS
from rankscope.errors import RankscopeError

_QUOTED = re.compile(r"`(rankscope\s[^`]+)`")
_LAST_LINES = re.compile(r"^(?:Next|As a page): (rankscope .+)$", re.MULTILINE)
_LOOSE = re.compile(rf"\brankscope (?:{'|'.join(COMMANDS)})\b[^;,.)]*")
_CODE = re.compile(r"\[([A-Z]\d{3})\]")
# What stands for the capture where a text was written before the capture was known.
_PLACEHOLDERS = ("PATH", "DIR", "FOLDER", "LOG", "OTHER")
# These need a job, an address or a user who ends them, or take long: only their options are checked.
_NEED_MORE = ("record", "snapshot", "attach", "desync", "serve", "report")
_MAX_COMMANDS = 40


def commands_in(text: str) -> list[str]:
    """In order: what is in backticks, which may be broken over lines, and the commands of the last lines."""
    quoted = [" ".join(command.split()) for command in _QUOTED.findall(text)]
    return [*quoted, *_LAST_LINES.findall(text)]


def unmarked_commands(text: str) -> list[str]:
    """Commands in the middle of a sentence: nobody can tell where they end."""
    return _LOOSE.findall(_LAST_LINES.sub("", _QUOTED.sub("", text)))


def check_named_commands(capture: Path, folder: Path) -> list[str]:
    """Runs them in `folder`, where they may write. Returns all that were tried, for tests that expect some of them."""
    first = f"rankscope {shlex.quote(str(capture))} --all"
    waiting, tried = [first], list[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        while waiting:
            command = waiting.pop(0)
            if command in tried:
                continue
            tried.append(command)
            assert len(tried) <= _MAX_COMMANDS, f"{first} leads to ever more commands: {tried}"
            code, printed = run_named(command, capture)
            assert code != EXIT_FAILED, f"{capture.name}: `{command}` cannot be done, after {tried[:-1]}:\n{printed}"
            if command == first or command.startswith("rankscope explain "):
                assert not unmarked_commands(printed), f"put into backticks: {unmarked_commands(printed)}\n{printed}"
                waiting += commands_in(printed)
            else:  # texts further on are manuals, of which only the last line is about this capture
                waiting += _LAST_LINES.findall(printed)
            if command == first:
                waiting += [f"rankscope explain {found}" for found in dict.fromkeys(_CODE.findall(printed))]
    return tried


def run_named(command: str, capture: Path) -> tuple[int, str]:
    """Exit code, and what was printed; a placeholder is replaced by the capture."""
    words = [str(capture) if word in _PLACEHOLDERS else word for word in shlex.split(command)[1:]]
    if words[0] in _NEED_MORE:
        return _parse_only(words)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = main(words)
    return code, printed.getvalue()


def _parse_only(words: list[str]) -> tuple[int, str]:
    complete = [*words, "--", "true"] if words[0] == "record" and "--" not in words else words
    try:
        build_parser().parse_args(complete)
    except RankscopeError as error:
        return EXIT_FAILED, str(error)
    return 0, ""
