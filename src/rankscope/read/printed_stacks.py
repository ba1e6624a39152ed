"""Stacks of frames in Python and C++ (`#0 func from file:line`) in the output of a job, as torch prints them there."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from itertools import count

from rankscope.model.numbers import integer, rank_number
from rankscope.model.tables import MISSING, Table
from rankscope.read.desync_text import LAUNCHER, launcher_rank
from rankscope.read.files import Source
from rankscope.read.stack_text import UNWOUND_FRAME, Frame, Section, ThreadStack
from rankscope.read.thread_stacks import stack_tables_of

_MARK = b" from "
_MAX_LINE = 1 << 16
_MAX_FRAMES = 1 << 18
_MAX_REASON = 500
_RANK = re.compile(r"\[Rank (\d{1,9})\]|\brank (\d{1,9})\b", re.IGNORECASE)


def in_output(source: Source) -> Iterator[Table]:
    """The text does not say which thread each stack is from: none is assumed to be the main one."""
    text = _PrintedStacks(source.rank)
    with source.open() as stream:
        try:
            for number in count(1):
                line = stream.readline(_MAX_LINE)
                if not line or text.n_frames >= _MAX_FRAMES:
                    break
                text.add(number, line)
        except (OSError, EOFError, zlib.error):  # told by whoever reads the file itself
            pass
    if text.sections:
        yield from stack_tables_of(source, text.sections)


class _PrintedStacks:
    """Frames that follow each other, numbered from 0; several ranks may print at once, each behind its own mark."""

    def __init__(self, rank: int) -> None:
        self.sections: list[Section] = []
        self.n_frames = 0
        self._rank = rank  # of the file's name
        self._open: dict[str, ThreadStack] = {}  # by what the launcher put before the lines
        self._before: dict[str, tuple[str, int]] = {}  # the same: the last line that was no frame, and its rank
        self._frames: dict[tuple[str, int, str], Frame] = {}

    def add(self, number: int, line: bytes) -> None:
        if not self._open and _MARK not in line and not line.rstrip().endswith(b":"):
            return
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        launcher = LAUNCHER.match(text)
        mark = launcher.group() if launcher else ""
        text = text[launcher.end() :].removeprefix(" ") if launcher else text
        match = UNWOUND_FRAME.match(text)
        thread = self._open.get(mark)
        if match and integer(match["number"]) == 0:
            thread = self._begin(mark, number, launcher_rank(launcher))
        if match and thread is not None and integer(match["number"]) == len(thread.frames):
            thread.frames.append(self._frame(match))
            self.n_frames += 1
            return
        self._open.pop(mark, None)
        # torch itself puts the rank before the first line of a message only.
        self._before[mark] = self._before[""] = (text, launcher_rank(launcher))

    def _begin(self, mark: str, number: int, rank: int) -> ThreadStack:
        reason, speaker = self._before.get(mark, ("", MISSING))
        rank = speaker if rank == MISSING else rank
        if rank == MISSING and (named := _RANK.search(reason)):
            rank = rank_number(named[1] or named[2])
        thread = self._open[mark] = ThreadStack("", "", False, number)
        known = rank if rank != MISSING else self._rank
        self.sections.append(Section(known, reason=reason.strip()[:_MAX_REASON], threads=[thread], is_cut=True))
        return thread

    def _frame(self, match: re.Match[str]) -> Frame:
        key = (match["file"], integer(match["line"]), match["function"])
        return self._frames.setdefault(key, {"filename": key[0], "line": key[1], "name": key[2]})
