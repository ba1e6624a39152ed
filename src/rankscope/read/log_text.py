"""Output of a job with lines of torch's loggers in it -> their messages, and the tracebacks of the compiler's errors.

Every line of a message repeats its prefix: level, time, process, place in torch, compilation, channel. So lines of one
message are found again between those of other processes, the job's own prints and progress bars.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from rankscope.model.numbers import MAX_LONG, integer, rank_number
from rankscope.model.tables import MISSING

_ID = rb"(?: \[(?P<id>!?\d+(?:/\d+)*(?:_\d+)?)\])?"
# torch 2.3 and newer: V1116 06:18:20.896000 11287 torch/_dynamo/guards.py:3017] [0/1] [__recompiles] ...
_PREFIX = re.compile(
    rb"(?P<level>[VIWEC])(?P<stamp>\d{4} \d\d:\d\d:\d\d\.\d{6}) (?P<pid>\d{1,18}) "
    rb"(?P<module>[^\]\n]{1,500}?\.py):(?P<line>\d{1,9})\]" + _ID + rb"(?: \[__(?P<channel>\w+)\])?(?: |$)"
)
# Up to torch 2.2: [2023-11-16 06:18:20,896] [0/1] torch._dynamo.guards.__recompiles: [DEBUG] ...
_OLD_PREFIX = re.compile(
    rb"\[(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d) (?P<time>\d\d:\d\d:\d\d),(?P<milliseconds>\d{3})\]" + _ID + rb" "
    rb"(?P<module>torch(?:\.(?!__)\w+)*)(?:\.__(?P<channel>\w+))?: "
    rb"\[(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\](?: |$)"
)
_COMPILER = re.compile(r"(?:^|[/\\.])torch[/\\.](?:_dynamo|_inductor|_functorch|_higher_order_ops|_export|export|fx)\b")
_LEVELS = {b"V": "debug", b"I": "info", b"W": "warning", b"E": "error", b"C": "critical"}
_RANK = re.compile(rb"\[rank(\d{1,9})\]: ?")
# Launchers that say whose line it is: torchrun with a log folder, and srun --label.
_LAUNCHER = re.compile(rb"^(?:\[[A-Za-z_]+(\d{1,9})\]: ?|\s{0,6}(\d{1,6}): )")
_COLOURS = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
# Two messages of one line of torch in one millisecond have the same prefix: these begin a new one.
_BEGINNINGS = (
    *("Recompiling function ", "Graph break in user code", "Graph break (", "torch._dynamo hit config."),
    *("create_symbol ", "create_unbacked_", "eval ", "set_replacement ", "Specializing ", "TRACE ", "TRACED GRAPH"),
    *("torchdynamo start compiling", "WON'T CONVERT ", "Using FallbackKernel", "possibly bad tiling", "skipping: "),
)
_MAX_LINE = 1 << 20
_MAX_TEXT = 8192  # of one line, and
_MAX_LINES = 2000  # of one message: generated code may be far longer, and no table needs it
_MAX_OPEN = 4096

_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = (
    *(_TRACEBACK, "The above exception", "During handling of the above", "from user code:", "Set TORCHDYNAMO_VERB"),
    *("You can suppress this exception", "Set TORCH_LOGS", "For more details about"),
)
COMPILER_ERROR = re.compile(r"^(?:torch\._dynamo\.exc|torch\._inductor\.exc|torch\.fx\.experimental)\.", re.M)


class Prefix(NamedTuple):
    """What all lines of a message have in common."""

    rank: int  # as the line says it, MISSING where it does not
    launcher: int  # the number that the launcher put before the line
    pid: int
    level: str
    year: int  # 0 where not told
    stamp: bytes  # MMDD HH:MM:SS.ffffff
    module: str
    module_line: int
    trace_id: str  # 0/1_2: compilation 0/1, restarted twice
    channel: str

    @property
    def process(self) -> tuple[int, int]:
        """Older versions do not log the process: the rank is used instead."""
        return self.launcher, self.pid if self.pid != MISSING else -2 - self.rank

    @property
    def is_compiler(self) -> bool:
        return bool(self.trace_id or self.channel or _COMPILER.search(self.module))


class Message(NamedTuple):
    prefix: Prefix
    line: int  # of the file, from 1
    lines: list[str]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class Crash(NamedTuple):
    """A traceback that was printed, not logged."""

    rank: int
    launcher: int
    line: int
    text: str


def find_prefix(line: bytes) -> tuple[Prefix, int] | None:
    """The prefix, wherever in the line it begins, and where it ends."""
    new = _PREFIX.search(line)
    match = new or _OLD_PREFIX.search(line)
    if match is None:
        return None
    rank, launcher = _labels(line[: match.start()])
    ids = (_decoded(match["id"]), _decoded(match["channel"]))
    if new:
        level, stamp, year = _LEVELS[new["level"]], new["stamp"], 0
        pid, module_line = integer(new["pid"], MAX_LONG), integer(new["line"])
    else:
        level, year = match["level"].decode().lower(), integer(match["year"])
        stamp = b"%b%b %b.%b000" % match.group("month", "day", "time", "milliseconds")
        pid, module_line = MISSING, MISSING
    prefix = Prefix(rank, launcher, pid, level, year, stamp, _decoded(match["module"]), module_line, *ids)
    return prefix, match.end()


def _labels(before: bytes) -> tuple[int, int]:
    """(rank, number of the launcher) from the text before a line; MISSING where unknown."""
    rank = _RANK.search(before)
    rest = before[: rank.start()] if rank else before
    launcher = _LAUNCHER.match(rest)
    return (
        rank_number(rank.group(1)) if rank else MISSING,
        rank_number(launcher.group(1) or launcher.group(2)) if launcher else MISSING,
    )


def _decoded(text: bytes | None) -> str:
    return (text or b"").decode("utf-8", "replace")


def compiler_lines(head: bytes) -> bool:
    """True when torch's compiler wrote one of the lines."""
    prefixes = (find_prefix(line) for line in plain_lines(head))
    return any(each is not None and each[0].is_compiler for each in prefixes)


def plain_lines(chunk: bytes) -> list[bytes]:
    """The lines as a terminal would have shown them: progress bars start over at a carriage return."""
    if b"\x1b" in chunk:
        chunk = _COLOURS.sub(b"", chunk)
    chunk = chunk.rstrip(b"\r\n")
    if b"\r" not in chunk and b"\n" not in chunk:
        return [chunk] if chunk else []
    return [part for part in re.split(rb"[\r\n]+", chunk) if part]


class LogText:
    """Takes the lines of a stream apart; memory does not grow with its length."""

    def __init__(self) -> None:
        self.is_cut = False  # the last line has no end
        self._open: dict[tuple[int, int, int], Message] = {}
        self._last: tuple[bytes, Prefix | None] = (b"", None)  # the prefix of the line before, as bytes and as read
        self._tracebacks: dict[tuple[int, int], _Traceback] = {}

    def messages(self, stream: BinaryIO) -> Iterator[Message | Crash]:
        """A message follows when the same process begins another one, or at the end."""
        number, is_whole = 0, True
        try:
            while chunk := stream.readline(_MAX_LINE):
                number += is_whole
                is_whole = chunk.endswith(b"\n")
                for line in plain_lines(chunk) or [b""]:
                    yield from self._line(number, line)
        finally:
            self.is_cut = not is_whole
        yield from self.rest()

    def rest(self) -> Iterator[Message | Crash]:
        """What is still open when the stream ends, or breaks off."""
        yield from self._open.values()
        self._open.clear()
        for traceback in self._tracebacks.values():
            yield from traceback.crash()
        self._tracebacks.clear()

    def _line(self, number: int, line: bytes) -> Iterator[Message | Crash]:
        parsed = self._prefix(line)
        if parsed is None:
            yield from self._foreign(number, line)
            return
        prefix, text = parsed
        source = (prefix.rank, *prefix.process)
        message = self._open.get(source)
        if message is not None and message.prefix == prefix and not text.startswith(_BEGINNINGS):
            if len(message.lines) < _MAX_LINES:
                message.lines.append(text)
            return
        if message is not None:
            yield self._open.pop(source)
        elif len(self._open) >= _MAX_OPEN:
            yield self._open.pop(next(iter(self._open)))
        self._open[source] = Message(prefix, number, [text])

    def _prefix(self, line: bytes) -> tuple[Prefix, str] | None:
        raw, prefix = self._last
        # Most lines repeat the prefix of the line before; a bracket behind it may be a part that the other one lacked.
        if prefix is not None and line.startswith(raw) and line[len(raw) : len(raw) + 1] != b"[":
            return prefix, _decoded(line[len(raw) : len(raw) + _MAX_TEXT])
        if b".py:" not in line and b": [" not in line:
            return None
        parsed = find_prefix(line)
        if parsed is None:
            return None
        prefix, end = parsed
        self._last = line[:end], prefix
        return prefix, _decoded(line[end : end + _MAX_TEXT])

    def _foreign(self, number: int, line: bytes) -> Iterator[Crash]:
        """The job's own output: only tracebacks are of interest."""
        if not self._tracebacks and b"Traceback" not in line:
            return
        rank, launcher = _labels(line)
        label = (rank, launcher)
        if not line and len(self._tracebacks) == 1:  # nothing is put before empty lines
            label = next(iter(self._tracebacks))
        line = line[:_MAX_TEXT]
        text = _decoded(_LAUNCHER.sub(b"", _RANK.sub(b"", line, count=1), count=1) if label != (-1, -1) else line)
        open_one = self._tracebacks.get(label)
        if open_one is not None:
            if open_one.takes(text):
                return
            yield from self._tracebacks.pop(label).crash()
        if text.rstrip() == _TRACEBACK and len(self._tracebacks) < _MAX_OPEN:
            self._tracebacks[label] = _Traceback(*label, number)


class _Traceback:
    """Lines from the heading to the end of the exception's text, which nothing marks: it may have empty lines in it."""

    def __init__(self, rank: int, launcher: int, line: int) -> None:
        self.rank, self.launcher, self.line = rank, launcher, line
        self.lines = [_TRACEBACK]
        self._is_told = False  # the exception has been named

    def takes(self, text: str) -> bool:
        is_own = not text.strip() or text.startswith((" ", "\t", *_CHAINED))
        if not is_own and self._is_told and not self.lines[-1].strip():
            return False
        if len(self.lines) >= _MAX_LINES:
            return False
        self._is_told |= not is_own
        if text.startswith(_TRACEBACK):
            self._is_told = False
        self.lines.append(text)
        return True

    def crash(self) -> Iterator[Crash]:
        text = "\n".join(self.lines).rstrip()
        if COMPILER_ERROR.search(text):
            yield Crash(self.rank, self.launcher, self.line, text)
