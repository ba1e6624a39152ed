"""Blocks of lines in a job's output: Python tracebacks, faulthandler's frames, torchrun's table of failures."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rankscope.model.tables import MISSING
from rankscope.read.job_log_lines import Line, dated_ns
from rankscope.read.job_log_messages import message_of
from rankscope.read.job_log_patterns import Fields
from rankscope.read.stack_text import UNWOUND_FRAME

_HEADING = "Traceback (most recent call last):"
_BOXED_HEADING = re.compile(r"[\u2500-]{2}.{0,4}Traceback \(most recent call last\) [\u2500-]{2}")  # as rich draws it
_BOXED_FRAME = re.compile(r"[\u2502|] (?P<file>\S.{0,1000}?):(?P<line>\d{1,9}) in (?P<function>\S{1,200})")
_ORIGINAL = "Original Traceback"  # of a DataLoader's worker: the line is in there
_IN_THREAD = "Exception in thread "
HEADINGS = ("Exception ignored in", "--- Logging error ---", _IN_THREAD)
_FATAL = "Fatal Python error: "
_FRAME = re.compile(
    r'(?:\s{1,40}|> )(?:[|+>-]\s{0,40})?File "(?P<file>[^"\n]{1,1000})", '
    r"line (?P<line>\d{1,9})(?:,)? in (?P<function>.{1,200})"
)
_CUT_FRAME = re.compile(r'\s{1,40}File "[^\n]{1,1000}$')
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]{0,200})(?:: (?P<message>.*))?$", re.DOTALL)
_CHAIN = ("The above exception was the direct cause", "During handling of the above exception")
_LIBRARY = re.compile(r"[/\\](?:site-packages|dist-packages|lib[/\\]python\d[\d.]*)[/\\]|^<frozen ")
_LAUNCHER = re.compile(
    r"torch[/\\]distributed[/\\](?:run|launch(?:er)?|elastic)\b|[/\\]bin[/\\](?:torchrun|accelerate)"
)
_SPAWNED = re.compile(r"-- Process (\d{1,9}) terminated with the following error")
_MAX_LINES = 400
_MAX_FRAMES = 64
_MAX_MESSAGE = 2000
_MAX_AFTER = 40


_HEADLESS_FRAME = re.compile(r'[^"\n]{0,1000}", line \d{1,9}, in \S')
_NAMED_ERROR = re.compile(r"(?:Error|Exception|Interrupt|Exit|Failure|Timeout)$")


def has_lost_head(number: int, text: str) -> bool:
    """An excerpt may begin in the middle of a traceback, at one of its frames."""
    return bool(_FRAME.match(text)) or (number == 1 and bool(_HEADLESS_FRAME.match(text)))


def has_begun(text: str) -> bool:
    return text.rstrip().endswith(_HEADING) or _FATAL in text or bool(_BOXED_HEADING.search(text))


class Traceback:
    """From its heading to the end of the exception's text, and a look at what the process printed after it."""

    def __init__(self, number: int, line: Line, heading: str = "", *, is_headless: bool = False) -> None:
        self.number, self.line, self._heading = number, line, heading
        self._is_headless = is_headless
        self._is_fatal = _FATAL in line.text
        self._is_boxed = bool(_BOXED_HEADING.search(line.text))
        self._cut_frame = ""  # a terminal put its rest on the next line
        self._frames: list[Fields] = []
        self._message: list[str] = [line.text.partition(_FATAL)[2]] if self._is_fatal else []
        self._chained: list[str] = []
        self._first_frames: list[Fields] = []
        self._n_lines = 0
        self._n_after = 0
        self._is_ended = False
        if is_headless:
            self._is_frame(line.text)

    @property
    def is_sure(self) -> bool:
        """Frames without a heading may be any stack; one that ends with an exception's name is a traceback."""
        return not self._is_headless or bool(_NAMED_ERROR.search(str(self.fields()["type"])))

    @property
    def kind(self) -> str:
        return "fatal" if self._is_fatal else "traceback"

    @property
    def is_named(self) -> bool:
        """The exception has been named."""
        return bool(self._message)

    @property
    def is_launcher(self) -> bool:
        return any(_LAUNCHER.search(frame["file"]) for frame in self._frames)

    def takes(self, line: Line, *, is_event: bool) -> bool:
        text = line.text
        self._n_lines += 1
        if self._n_lines > _MAX_LINES:
            return False
        if text.rstrip().endswith(_HEADING) and not self._is_fatal:
            if not self.is_named or self._chained or text.startswith(_ORIGINAL):
                self._begin_again()
                return True
            return False
        if self._is_ended:
            return self._look_after(line)
        if self._is_frame(text):
            return True
        if self._is_boxed:
            self._is_boxed = text.startswith(("\u2502", "|")) or not text.strip()
            if self._is_boxed or text.startswith(("\u2570", "+", "-")):
                return True
        if self._is_fatal:
            if not text.strip() or text.startswith(
                ("Current thread", "Thread 0x", "  ", "<no Python frame>", "Python runtime")
            ):
                return True
            self._is_ended = True
            return self._look_after(line)
        return self._exception(line)

    def _is_frame(self, text: str) -> bool:
        match = _FRAME.match(self._cut_frame + text) or (_BOXED_FRAME.match(text) if self._is_boxed else None)
        if match is not None and len(self._frames) < _MAX_FRAMES:
            frame = {"file": match["file"], "line": int(match["line"]), "function": match["function"].strip()}
            self._frames.append(frame)
        is_cut = match is None and not self._cut_frame and not self.is_named and _CUT_FRAME.match(text) is not None
        self._cut_frame = text if is_cut else ""
        return match is not None or is_cut

    def _exception(self, line: Line) -> bool:
        text = line.text
        if not self.is_named:
            if text.startswith((" ", "\t")) or not text.strip():
                return True
            if not self._frames or _EXCEPTION.match(text) or _is_one(text):
                self._message.append(text)
                return True
            return False
        if text.startswith(_CHAIN):
            self._chained.append(self._message[0][:300])
            return True
        if not text.strip():
            return True
        if line.is_logged or message_starts_anew(line, self.line):
            self._is_ended = True
            return self._look_after(line)
        if sum(map(len, self._message)) < _MAX_MESSAGE:
            if self._blank_before(text):
                self._is_ended = True
                return self._look_after(line)
            self._message.append(text)
        return True

    def _blank_before(self, text: str) -> bool:
        """An exception's text goes on with indented lines or with those that torch adds; others are the job's own."""
        return not text.startswith(
            (
                " ",
                "\t",
                "[",
                "This ",
                "CUDA ",
                "For debugging",
                "Compile with",
                "Last error",
                "nccl",
                "Exception raised",
                "frame #",
                "--",
                "Traceback",
                "Original",
            )
        )

    def _begin_again(self) -> None:
        if self._chained and not self._first_frames:
            self._first_frames = self._frames
        self._frames, self._message = [], []
        self._is_ended = False

    def _look_after(self, line: Line) -> bool:
        """What the same process prints after it: ordinary output means that the exception was caught."""
        if not line.text.strip():
            return True
        if line.is_logged or message_of(line.text) or line.text.startswith(("  ", "Exception ignored", "frame #")):
            return False
        self._n_after += 1
        return self._n_after < _MAX_AFTER and not has_begun(line.text)

    @property
    def spawned(self) -> int:
        """The process whose own traceback follows, where this one is mp.spawn's."""
        match = _SPAWNED.search(" ".join(self._message))
        return int(match[1]) if match else MISSING

    @property
    def summary(self) -> str:
        return " ".join(part.strip() for part in self._message)[:_MAX_MESSAGE]

    def fields(self) -> Fields:
        frames = self._frames[::-1] if not self._is_fatal else self._frames  # innermost first
        user_frame = next((frame for frame in frames if not _LIBRARY.search(frame["file"])), None)
        first = self._message[0] if self._message else ""
        match = _EXCEPTION.match(first)
        fields: Fields = {
            "type": (match["type"] if match and not self._is_fatal else first)[:200],
            "message": (match["message"] or "" if match and not self._is_fatal else first)[:_MAX_MESSAGE],
            "frames": frames[:_MAX_FRAMES],
            "is_hooked": self.line.is_hooked,
            "n_after": self._n_after,
            "is_launcher": self.is_launcher,
            "is_ignored": bool(self._heading) and not self._heading.startswith(_IN_THREAD),
            "in_thread": self._heading.startswith(_IN_THREAD),
        }
        if user_frame is not None:
            fields["place"] = user_frame
        if self._chained:
            fields["chained"] = self._chained[:8]
        inside = message_of(self.summary)
        if inside is not None:
            fields["says"] = {"kind": inside.kind, **inside.fields}
        return fields


def _is_one(text: str) -> bool:
    return ": " in text or text.replace(".", "").replace("_", "").isalnum()


def message_starts_anew(line: Line, first: Line) -> bool:
    """A line of another rank or without the prefix that all lines of the excepthook have."""
    return first.rank != MISSING and line.rank != first.rank


class CollectiveStack:
    """`Stack trace of the failed collective: ` and its frames, innermost first: where a rank waits."""

    def __init__(self, number: int, line: Line) -> None:
        self.number, self.line = number, line
        self._frames: list[Fields] = []

    def takes(self, text: str) -> bool:
        match = UNWOUND_FRAME.match(text)
        if match is None or len(self._frames) >= _MAX_FRAMES:
            return False
        self._frames.append({"file": match["file"], "line": int(match["line"]), "function": match["function"]})
        return True

    @property
    def text(self) -> str:
        return self.line.text

    def fields(self) -> Fields:
        user_frame = next(
            (frame for frame in self._frames if not _LIBRARY.search(frame["file"]) and "/torch/" not in frame["file"]),
            None,
        )
        return {"place": user_frame, "frames": self._frames} if user_frame else {}


_ENTRY = re.compile(r"\s{1,8}(time|host|rank|exitcode|error_file|traceback)\s{0,12}: (.{0,4000})$", re.DOTALL)


class FailureTable:
    """What torchrun prints at the end: the exits that one node's agent saw."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._blocks: list[dict[str, str]] = []
        self._is_root = False
        self._n_lines = 0

    def takes(self, text: str) -> bool:
        self._n_lines += 1
        if self._n_lines > 4000:
            return False
        if text.startswith("Root Cause"):
            self._is_root = True
        elif re.match(r"\[\d{1,9}\]:\s*$", text):
            self._blocks.append({"root": "1"} if self._is_root else {})
        elif (match := _ENTRY.match(text)) and self._blocks:
            self._blocks[-1][match[1]] = match[2].strip()
        elif text.startswith("=====") and self._is_root and self._blocks:
            return self._n_lines < 0
        return True

    def entries(self) -> Iterator[Fields]:
        for block in self._blocks:
            rank = re.match(r"(\d{1,9}) \(local_rank: (\d{1,9})\)", block.get("rank", ""))
            code = re.match(r"(-?\d{1,9})\s{0,3}\(pid: (\d{1,10})\)", block.get("exitcode", ""))
            if rank is None or code is None:
                continue
            date, _, clock = block.get("time", "").partition("_")
            yield {
                "exit_rank": int(rank[1]),
                "local_rank": int(rank[2]),
                "exit_code": int(code[1]),
                "exit_pid": int(code[2]),
                "node": block.get("host", "")[:200],
                "agent_ns": dated_ns(date, clock),
                "is_root": "root" in block,
                "text": block.get("traceback", "")[:300],
            }
