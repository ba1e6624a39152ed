"""Looks through a job's output: which lines matter, which belong together, which attempt they are of."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import msgspec

from rankscope.model.tables import MISSING, Table
from rankscope.read import desync, printed_stacks
from rankscope.read.desync_text import TITLE, TORCH_MARK
from rankscope.read.files import Source
from rankscope.read.job_log_attempts import count_unannounced_restarts
from rankscope.read.job_log_clock import LogClock
from rankscope.read.job_log_error_file import error_lines
from rankscope.read.job_log_lines import Line, parse_line, plain_parts
from rankscope.read.job_log_messages import Message, common_fields, cut_message, may_continue, message_of
from rankscope.read.job_log_patterns import Fields
from rankscope.read.job_log_search import WordSearch, n_line_ends
from rankscope.read.job_log_speakers import Speakers, path_facts
from rankscope.read.job_log_tracebacks import (
    HEADINGS,
    CollectiveStack,
    FailureTable,
    Traceback,
    has_begun,
    has_lost_head,
)
from rankscope.read.log_text import compiler_lines

WORDS = (
    *(b"Traceback", b"rror", b"CCL", b"ignal", b"illed", b"Xid", b"Assertion", b"exitcode", b"nforce"),
    *(b"terminate called", b"egmentation", b"return code", b"SIGTERM", b"reempted", b"attempts left", b"failed on"),
    *(b"Exception i", b"oom-kill", b"NotReady", b"low on ", b"access fault", b"HW Exception", b"No space left"),
    *(b"has failed to", b"EXIT CODE", b"Exit Code", b"ninterruptible", b"SIGKILL", b"will restart"),
    *(b"lagging", b"join collective", b"EI000", b"EJ0001", b"fallen off", b"died with", b"non-zero exit"),
    *(b"SYSTEM_ERROR", b"terminated with", b"monitoredBarrier", b"memory pressure"),
    *(b"stopping training", b"Process finished"),
)
# Of lines that other readers of a job's output look for: a text without them need not be read again.
_MARKS = {
    "desync": (TORCH_MARK, TITLE),
    "stacks": (b" from ",),
    "compiler": (b"torch/", b"torch._", b"torch.fx"),
}
_COMPILER_ERROR = re.compile(rb"torch\._(?:dynamo|inductor)\.exc\.|torch\.fx\.experimental\.")
_FIRST_FRAME = re.compile(rb"#0 [^\n]{1,1000} from ")
_BLOCK = 1 << 20
_LONG = 1 << 14  # of a longer line only what surrounds the word is looked at
_MAX_EVENTS = 50_000
_MAX_ALIKE = 200  # of one kind and speaker
_MAX_TEXT = 500
_MAX_WRAPPED = 12  # lines of one message
_MAX_HEAD = 100  # lines in which an excerpt that begins inside of a traceback gets to its exception
_DIGITS = re.compile(r"\d{1,18}[.,)]{0,2}$")


class _Half(NamedTuple):
    """A message whose end the terminal may have put on the next line."""

    number: int
    line: Line
    n_lines: int = 1


class JobLog:
    """One text while it is read; memory does not grow with its length."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._near_ns = source.modified_ns
        self.rows: list[dict[str, Any]] = []
        self.has_messages = False
        self._speakers = Speakers()
        self.marks: set[str] = set()  # which other readers find something in it
        self._search = self._made_search()
        self._open: dict[str, Traceback] = {}
        self._table: FailureTable | None = None
        self._stack: CollectiveStack | None = None
        self._half: _Half | None = None
        self._headings: dict[str, str] = {}  # whose next traceback has one
        self._counts: dict[tuple[str, int, str], int] = {}
        self._n_restarts = 0
        self._n_lines = 0
        self._now = Line("")  # the last one with a time
        self._clock = LogClock()
        self._spawned = MISSING  # the process whose traceback mp.spawn is about to print

    def scan_file(self) -> str:
        """What is wrong with the file; empty if nothing is."""
        try:
            with self._source.open() as stream:
                self.scan(stream)
        except (OSError, EOFError, zlib.error):
            return "is cut or damaged: it cannot be unpacked to its end"
        return ""

    def scan_error_file(self) -> None:
        with self._source.open() as stream:
            for number, line in enumerate(error_lines(stream.read()), 1):
                self._line(number, line)

    def reports(self) -> Iterator[Table]:
        """What else the text holds, beside the events."""
        if "desync" in self.marks:
            yield from desync.in_output(self._source)
        if "stacks" in self.marks:
            yield from printed_stacks.in_output(self._source)

    def tables(self) -> list[Table]:
        """The events; that a process printed something at all is one, but tells nothing of a file by itself."""
        rows = self.finish()
        self.has_messages = any("is_whole_file" not in row["fields"] for row in rows)
        return [Table.from_rows("log_events", rows)] if rows else []

    def scan(self, stream: BinaryIO) -> None:
        rest = b""
        while block := stream.read(_BLOCK):
            block = rest + block
            end = block.rfind(b"\n") + 1
            if not end and len(block) < 8 * _BLOCK:
                rest = block
                continue
            end = end or len(block)
            self._block(block[:end])
            rest = block[end:]
        if rest:
            self._block(rest)

    def _block(self, block: bytes) -> None:
        self._speakers.sample(block, self._n_lines)
        position = counted = 0
        starts = self._search.lines(block)
        while position < len(block):
            if not self._wants_all:
                position = next((start for start in starts if start >= position), len(block))
                if position == len(block):
                    break
            end = block.find(b"\n", position) + 1 or len(block)
            self._n_lines += n_line_ends(block, counted, position)
            counted = position
            self._raw_line(block, position, end)
            position = end
        self._n_lines += n_line_ends(block, counted, len(block))

    @property
    def _wants_all(self) -> bool:
        if self._n_lines < _MAX_HEAD:
            return True
        return bool(self._open) or self._table is not None or self._stack is not None or self._half is not None

    def _made_search(self) -> WordSearch:
        wanted = (word for mark, words in _MARKS.items() if mark not in self.marks for word in words)
        return WordSearch((*WORDS, *wanted))

    def _note_marks(self, raw: bytes) -> None:
        n_known = len(self.marks)
        if any(word in raw for word in _MARKS["desync"]):
            self.marks.add("desync")
        if b" from " in raw and _FIRST_FRAME.search(raw):
            self.marks.add("stacks")
        if b"torch" in raw and (compiler_lines(raw) or _COMPILER_ERROR.search(raw)):
            self.marks.add("compiler")
        if len(self.marks) > n_known:
            self._search = self._made_search()

    def _raw_line(self, block: bytes, start: int, end: int) -> None:
        if end - start > _LONG:
            hits = [at for word in WORDS if (at := block.find(word, start, end)) >= 0]
            at = min(hits, default=start)
            start, end = max(start, at - _LONG // 2), min(end, at + _LONG // 2)
        raw = block[start:end]
        if len(self.marks) < len(_MARKS):
            self._note_marks(raw)
            if not self._wants_all and not any(word in raw for word in WORDS):
                return
        number = self._n_lines + 1
        for text in plain_parts(raw) if end - start > 1 else ("",):
            self._line(number, parse_line(text, self._near_ns))

    def _line(self, number: int, line: Line) -> None:
        self._speakers.note(line, number)
        self._speakers.note_first(line, number)
        if line.time_ns != MISSING:
            self._now = line
            self._clock.note(line)
        if self._half is not None and self._continues(self._half, line):
            return
        if self._collect_block(number, line):
            return
        key = self._key(line)
        open_one = self._open.get(key)
        if open_one is not None:
            if open_one.takes(line, is_event=bool(not open_one.is_named and message_of(line.text))):
                return
            self._close(key)
        if has_begun(line.text) and len(self._open) < 4096:
            if self._spawned != MISSING and line.rank == MISSING:
                line, self._spawned = line._replace(rank=self._spawned), MISSING
            self._open[key] = Traceback(number, line, self._headings.pop(key, ""))
            return
        if number <= _MAX_HEAD and not self._open and has_lost_head(number, line.text):
            self._open[key] = Traceback(number, line, is_headless=True)
            return
        self._note_heading(key, line.text)
        self._message(number, line)

    def _note_heading(self, key: str, text: str) -> None:
        """Python says before a traceback that it did not end the process: in a thread, a destructor, a logger."""
        if text.startswith(HEADINGS) and len(self._headings) < 4096:
            self._headings[key] = text
        elif text.strip():
            self._headings.pop(key, None)

    def _collect_block(self, number: int, line: Line) -> bool:
        """True when the line is part of torchrun's table or of the stack below a watchdog's line."""
        if self._table is not None:
            if self._table.takes(line.text):
                return True
            self._end_table()
        if self._stack is not None:
            if self._stack.takes(line.text):
                return True
            self._end_stack()
        if "Stack trace of the failed collective: " in line.text:
            self._stack = CollectiveStack(number, line)
            return True
        if "ChildFailedError" in line.text:
            self._table = FailureTable(number)
            for key in list(self._open):  # the launcher's own traceback is the way to its table
                if self._open[key].is_launcher:
                    del self._open[key]
            return True
        return False

    def _key(self, line: Line) -> str:
        """Whose traceback a line may be of. Empty lines have no prefix, wherever they come from."""
        key = line.label or (f"rank {line.rank}" if line.rank != MISSING else "")
        if not line.text.strip() and not key and len(self._open) == 1:
            return next(iter(self._open))
        return key

    def _message(self, number: int, line: Line) -> None:
        match = message_of(line.text)
        if match is not None:
            self._add_message(number, line, match)
        elif len(line.text) < _LONG and (line.is_logged or may_continue(line.text)):
            self._half = _Half(number, line)

    def _add_message(self, number: int, line: Line, match: Message) -> None:
        fields = {**common_fields(line.text), **match.fields}
        self._speakers.note_message(line, fields)
        self._add(number, line, match.kind, line.text, fields)
        if match.kind == "restart":
            self._n_restarts += 1
        if line.text[-1:].isdecimal():  # the terminal may have cut the number itself
            self._half = _Half(number, line)

    def _continues(self, half: _Half, line: Line) -> bool:
        """Puts a message together that a terminal wrapped; False where the line is one by itself."""
        self._half = None
        is_bare = (line.rank, line.label, line.time_ns) == (MISSING, "", MISSING)
        known = message_of(half.line.text)
        if is_bare and (_DIGITS.match(line.text) if known else not (message_of(line.text) or has_begun(line.text))):
            whole = half.line._replace(text=half.line.text + line.text)
            match = message_of(whole.text)
            if known and self.rows:
                self.rows.pop()
            if match is not None:
                self._add_message(half.number, whole, match)
                return True
            if half.n_lines < _MAX_WRAPPED and len(whole.text) < _LONG:
                self._half = _Half(half.number, whole, half.n_lines + 1)
                return True
        if known is None:
            self._add_cut(half)
        return False

    def _add_cut(self, half: _Half) -> None:
        if match := cut_message(half.line.text):
            self._add_message(half.number, half.line, match)

    def _close(self, key: str) -> None:
        traceback = self._open.pop(key)
        if not traceback.is_sure:
            return
        self._spawned = traceback.spawned
        fields = traceback.fields()
        self._add(traceback.number, traceback.line, traceback.kind, traceback.summary, fields)
        inside = fields.get("says", {})
        if inside.get("kind") == "exit":  # the process that ended, not the parent that says so
            ended = {name: value for name, value in inside.items() if name not in ("kind", "index")}
            if "index" in inside:  # mp.spawn
                ended["exit_rank"] = inside["index"]
            self._add(traceback.number, Line(""), "exit", traceback.summary, ended)

    def _end_table(self) -> None:
        assert self._table is not None
        for entry in self._table.entries():
            self._speakers.note_exit(entry)
            self._clock.note_date(entry["agent_ns"])
            self._add(self._table.number, Line(""), "exit", entry.pop("text", ""), entry)
        self._table = None

    def _end_stack(self) -> None:
        assert self._stack is not None
        fields = self._stack.fields()
        if fields:
            self._add(self._stack.number, self._stack.line, "waiting-at", self._stack.text, fields)
        self._stack = None

    def _add(self, number: int, line: Line, kind: str, text: str, fields: Fields) -> None:
        alike = (kind, line.rank, line.label)
        self._counts[alike] = count = self._counts.get(alike, 0) + 1
        is_full = len(self.rows) >= (_MAX_EVENTS if count > 1 else 8 * _MAX_EVENTS)  # each rank has a first word
        if is_full or count > _MAX_ALIKE:
            return
        self.rows.append(
            {
                "file_id": self._source.file_id,
                "line": number,
                "speaker": line,
                "near": self._now,
                "attempt": self._n_restarts,
                "kind": kind,
                "text": text[:_MAX_TEXT],
                "fields": fields,
            }
        )

    def finish(self) -> list[dict[str, Any]]:
        """All rows, each with the rank that could be learned from the whole text."""
        if self._table is not None:
            self._end_table()
        if self._stack is not None:
            self._end_stack()
        if self._half is not None and message_of(self._half.line.text) is None:
            self._add_cut(self._half)
        for key in list(self._open):
            self._close(key)
        facts = path_facts(self._source.shown)
        self._speakers.settle(facts)
        if self.rows or self._speakers.n_streams():
            for output in self._speakers.outputs():
                output.update(file_id=self._source.file_id, attempt=self._n_restarts)
                self.rows.append(output)
        self.rows.sort(key=lambda row: row["line"])
        count_unannounced_restarts(self.rows)
        for row in self.rows:
            speaker, near = row.pop("speaker"), row.pop("near")
            row.update(time_ns=self._clock.settled_ns(speaker), near_ns=self._clock.settled_ns(near))
            row.update(self._speakers.attribution(speaker, row["fields"]))
            if row["fields"].get("agent_ns", MISSING) != MISSING:
                row["fields"]["agent_ns"] += self._clock.shift_ns()
            row["attempt"] += max(facts.attempt, 0)
            row["fields"] = msgspec.json.encode(row["fields"]).decode()
        return self.rows
