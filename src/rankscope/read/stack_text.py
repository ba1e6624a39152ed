"""Text of the stacks of threads, as faulthandler, torch's debug server, py-spy and torch's unwinder print it."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from rankscope.model.numbers import MAX_LONG, integer
from rankscope.model.tables import MISSING

_OWN_HEADER = re.compile(
    r"=== rankscope stacks: rank (?P<rank>\d{1,9}), pid (?P<pid>\d{1,18}), (?P<time>\S+), reason: (?P<reason>.*?) ===$"
)
_SERVED_HEADER = re.compile(r"=== Rank (?P<rank>\d{1,9}): .* ===$")  # of torch's debug server
_SPIED_HEADER = re.compile(r"Process (?P<pid>\d{1,18}): ")  # of py-spy
# faulthandler's own, where nobody could write a header first: it was asked to print after a time, or on a crash.
_BARE_HEADER = re.compile(r"(?P<reason>Timeout \(\d.*\)!|Fatal Python error: .*)$")
_THREAD = re.compile(
    r"(?P<current>Current thread|Thread) (?P<id>0x[0-9a-fA-F]+)(?: \[(?P<name>.*)\])? \(most recent call first\):"
)
_SPIED_THREAD = re.compile(r'Thread (?P<id>0x[0-9a-fA-F]+|\d+) \([a-z+ ]*\)(?:: "(?P<name>.*)")?$')
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d{1,9}|\?+) in (?P<function>.*)$')
_SPIED_FRAME = re.compile(r" {4}(?P<function>\S.*) \((?P<file>[^()]*?)(?::(?P<line>\d{1,9}))?\)$")
UNWOUND_FRAME = re.compile(
    r"#(?P<number>\d{1,6}) (?P<function>.{0,2000}) from (?P<file>[^\n]{0,2000}):(?P<line>\d{1,9})$"
)
_TRAINING = re.compile(r"TrainingThread\b")  # Ray Train runs the training function there, and MainThread only waits
_MAIN = "MainThread"  # py-spy knows the names that Python gives; faulthandler at most those of the system
_STARTER = "_bootstrap"  # outermost function of every thread that Python starts

_MAX_LINE = 1 << 16
_MAX_FRAMES = 1 << 20  # of a whole file
_MAX_REASON = 500

Frame = dict[str, str | int]  # laid out as in a dump of the Flight Recorder


@dataclass
class ThreadStack:
    thread_id: str
    name: str
    is_current: bool
    line: int  # of the file
    frames: list[Frame] = field(default_factory=list)


@dataclass
class Section:
    """What was written at one moment about one process."""

    rank: int = MISSING  # where the text tells it
    pid: int = MISSING
    time_ns: int = MISSING
    reason: str = ""
    threads: list[ThreadStack] = field(default_factory=list)
    is_cut: bool = False  # more threads than the printer was ready to print

    def main(self) -> ThreadStack | None:
        """The thread that trains, with most launchers the one in which the program began.

        Printers list it last: it is the oldest.
        """
        training = next((thread for thread in self.threads if _TRAINING.match(thread.name) and thread.frames), None)
        named = training or next((thread for thread in self.threads if thread.name == _MAIN), None)
        if named is not None or self.is_cut:
            return named
        return next((thread for thread in reversed(self.threads) if _is_first(thread)), None)


def _is_first(thread: ThreadStack) -> bool:
    return bool(thread.frames) and thread.frames[-1]["name"] != _STARTER


class StackText:
    """Takes the lines of a stream apart."""

    def __init__(self) -> None:
        self.ends_within_line = False
        self.is_served = False  # one file of all ranks
        self._section: Section | None = None
        self._thread: ThreadStack | None = None
        self._thread_ids: set[str] = set()  # of the section
        self._frames: dict[tuple[str, int, str], Frame] = {}
        self._n_frames = 0

    def sections(self, stream: BinaryIO) -> Iterator[Section]:
        """A section follows when the next one begins, or at the end."""
        number, is_whole = 0, True
        while chunk := stream.readline(_MAX_LINE):
            number += is_whole
            is_whole = chunk.endswith(b"\n")
            self.ends_within_line = not is_whole
            ended = self._line(number, chunk.decode("utf-8", "replace").rstrip("\r\n"))
            if ended is not None:
                yield ended
        yield from self.rest()

    def rest(self) -> Iterator[Section]:
        """What is still open when the stream ends, or breaks off."""
        if self._section is not None:
            yield self._section
        self._section = None

    def _line(self, number: int, text: str) -> Section | None:
        """The section that this line ends, if it begins another one."""
        header = self._header(text)
        if header is not None:
            return self._begin(header)
        thread = _thread(number, text)
        if thread is not None:
            return self._add_thread(thread)
        unwound = UNWOUND_FRAME.match(text)
        if unwound and integer(unwound["number"]) == 0 and (self._thread is None or self._thread.frames):
            ended = self._add_thread(ThreadStack("", "", False, number))
            self._add_frame(unwound)
            return ended
        frame = unwound or _FRAME.match(text) or _SPIED_FRAME.match(text)
        if frame:
            self._add_frame(frame)
        elif text == "..." and self._section is not None:  # frames that are left out are indented
            self._section.is_cut = True
        elif not text.startswith(" "):
            self._thread = None
        return None

    def _header(self, text: str) -> Section | None:
        match = _OWN_HEADER.match(text)
        if match:
            reason = match["reason"][:_MAX_REASON]
            return Section(integer(match["rank"]), integer(match["pid"], MAX_LONG), _time_ns(match["time"]), reason)
        if match := _SERVED_HEADER.match(text):
            self.is_served = True
            return Section(integer(match["rank"]))
        if match := _SPIED_HEADER.match(text):
            is_open = self._section is not None and not self._section.threads  # py-spy's text in a served file
            return Section(
                self._section.rank if is_open and self._section else MISSING, integer(match["pid"], MAX_LONG)
            )
        if match := _BARE_HEADER.match(text):
            return Section(reason=match["reason"][:_MAX_REASON])
        return None

    def _begin(self, section: Section) -> Section | None:
        ended, self._section, self._thread = self._section, section, None
        self._thread_ids.clear()
        return ended

    def _add_thread(self, thread: ThreadStack) -> Section | None:
        """A thread that the section already has belongs to another moment, whose header could not be written."""
        ended, section = None, self._section
        if section is None or thread.thread_id in self._thread_ids:
            section = Section(section.rank if section else MISSING)
            ended = self._begin(section)
        section.threads.append(thread)
        self._thread = thread
        if thread.thread_id:
            self._thread_ids.add(thread.thread_id)
        return ended

    def _add_frame(self, match: re.Match[str]) -> None:
        if self._thread is None or self._n_frames >= _MAX_FRAMES:
            return
        line = match["line"] or ""
        key = (match["file"], integer(line, default=0), match["function"])
        # One object per distinct frame, as in a dump: stacks are told apart by their frames' identity.
        frame = self._frames.setdefault(key, {"filename": key[0], "line": key[1], "name": key[2]})
        self._thread.frames.append(frame)
        self._n_frames += 1


def _thread(number: int, text: str) -> ThreadStack | None:
    match = _THREAD.match(text)
    if match:
        return ThreadStack(match["id"], match["name"] or "", match["current"].startswith("C"), number)
    match = _SPIED_THREAD.match(text)
    return ThreadStack(match["id"], match["name"] or "", False, number) if match else None


def _time_ns(text: str) -> int:
    """`2026-11-16T12:00:00.123456Z` -> nanoseconds since the epoch."""
    try:
        moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return MISSING
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.timezone.utc)
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    return max((moment - epoch) // datetime.timedelta(microseconds=1) * 1000, MISSING)
