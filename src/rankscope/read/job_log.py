"""What a job printed -> the table log_events: one row per message that says how it went wrong.

A log is searched in blocks for a dozen words, one of which is in every message of interest. Only lines that have one
are looked at, with the lines that belong to them; training output costs no more than the search.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from rankscope.errors import BadFileError
from rankscope.model.tables import MISSING, Table
from rankscope.read import desync, printed_stacks
from rankscope.read.files import Source
from rankscope.read.job_log_lines import Line, parse_line, plain_parts
from rankscope.read.job_log_messages import WRAPPED, Fields, group_of, message_of
from rankscope.read.job_log_search import WordSearch
from rankscope.read.job_log_speakers import Speakers, path_facts
from rankscope.read.job_log_tracebacks import HEADINGS, CollectiveStack, FailureTable, Traceback, has_begun

NAME = "job_log"
ORDER = 4
NAMES_TELL_RANK = False

WORDS = (
    *(
        b"Traceback",
        b"rror",
        b"CCL",
        b"ignal",
        b"illed",
        b"Xid",
        b"Assertion",
        b"exitcode",
        b"nforce",
        b"terminate called",
    ),
    *(b"egmentation", b"return code", b"SIGTERM", b"reempted", b"attempts left", b"failed on", b"Exception i"),
)
_SNIFFED = re.compile(
    rb"Traceback \(most recent call last\):|Watchdog caught collective|ProcessGroup[A-Z]\w*\.cpp:\d"
    rb"|torch\.distributed\.|slurmstepd: error|srun: error|NVRM: Xid|NCCL (?:INFO|WARN) |ChildFailedError"
    rb"|^\[(?:rank|default)\d{1,9}\]:",
    re.MULTILINE,
)
# Names of captured output without an extension; torch_logs looks through all that end with .log, .txt, .out and .err.
_TEXT_NAME = re.compile(r"(?:^|/)(?:stdout|stderr|output|console|slurm-\d{1,12})(?:[._-][\w-]{0,80})?$", re.IGNORECASE)
_KEPT_NAME = re.compile(r"(?:^|/)output_host_[\w-]{1,80}(?:\.gz)?$")  # by `rankscope record`, beside all else
_HINT = "give the output of the job: what its ranks and the launcher wrote to stdout and stderr"
_CONTROLS = bytes([*range(9), *range(14, 27)])
_BLOCK = 1 << 20
_LONG = 1 << 14  # of a longer line only what surrounds the word is looked at
_MAX_EVENTS = 50_000
_MAX_ALIKE = 200  # of one kind and speaker
_MAX_TEXT = 500


def sniff(head: bytes, name: str) -> bool:
    if is_kept(name) and head:
        return True
    if not head or not _is_text(head) or head.lstrip()[:2] in (b'{"', b"[{"):
        return False
    from rankscope.read import compile_log, metric_log, thread_stacks, torch_logs  # torch_logs reads this way too

    if not (_SNIFFED.search(head) or _TEXT_NAME.search(name)):
        return False
    return not any(other.sniff(head, name) for other in (compile_log, thread_stacks, desync, torch_logs, metric_log))


def is_kept(name: str) -> bool:
    """Output that `rankscope record` kept: its stacks, reports and compile messages are in files of their own."""
    return bool(_KEPT_NAME.search(name))


def _is_text(head: bytes) -> bool:
    return b"\0" not in head and len(head.translate(None, _CONTROLS)) * 50 >= len(head) * 49


def read(source: Source) -> Iterator[Table]:
    if source.n_bytes == 0:
        raise BadFileError("is empty (0 bytes)", "the job ended before it printed anything")
    log = JobLog(source)
    problem = log.scan_file()
    events = log.tables()
    reports = [] if problem or is_kept(source.shown) else [*desync.in_output(source), *printed_stacks.in_output(source)]
    if not events and not reports and (problem or not _TEXT_NAME.search(source.shown)):
        raise BadFileError(problem or "has no message about a failure", _HINT)
    yield from events
    yield from reports
    row = {**source.file_columns(), "source": NAME, "status": "read"}
    if problem:
        row.update(status="damaged", problem=problem, hint="copy it again if the original is complete")
    elif not events and not reports and not is_kept(source.shown):
        row.update(status="ignored", problem="is text without a message about a failure")
    yield Table.from_rows("files", [row])


def in_output(source: Source) -> Iterator[Table]:
    """The events of a text, which may be another reader's file: nothing where there are none."""
    log = JobLog(source)
    log.scan_file()  # whoever reads the file itself says what is wrong with it
    yield from log.tables()


class JobLog:
    """One text while it is read; memory does not grow with its length."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._near_ns = source.modified_ns
        self.rows: list[dict[str, Any]] = []
        self._speakers = Speakers()
        self._search = WordSearch(WORDS)
        self._open: dict[str, Traceback] = {}
        self._table: FailureTable | None = None
        self._stack: CollectiveStack | None = None
        self._half: Line | None = None  # a message whose end the terminal put on the next line
        self._headings: dict[str, str] = {}  # whose next traceback has one
        self._counts: dict[tuple[str, int, str], int] = {}
        self._n_restarts = 0
        self._n_lines = 0
        self._now_ns = MISSING
        self._spawned = MISSING  # the process whose traceback mp.spawn is about to print

    def scan_file(self) -> str:
        """What is wrong with the file; empty if nothing is."""
        try:
            with self._source.open() as stream:
                self.scan(stream)
        except (OSError, EOFError, zlib.error):
            return "is cut or damaged: it cannot be unpacked to its end"
        return ""

    def tables(self) -> list[Table]:
        rows = self.finish()
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
            self._n_lines += block.count(b"\n", counted, position)
            counted = position
            self._raw_line(block, position, end)
            position = end
        self._n_lines += block.count(b"\n", counted)

    @property
    def _wants_all(self) -> bool:
        return bool(self._open) or self._table is not None or self._stack is not None or self._half is not None

    def _raw_line(self, block: bytes, start: int, end: int) -> None:
        if end - start > _LONG:
            hits = [at for word in WORDS if (at := block.find(word, start, end)) >= 0]
            at = min(hits, default=start)
            start, end = max(start, at - _LONG // 2), min(end, at + _LONG // 2)
        number = self._n_lines + 1
        for text in plain_parts(block[start:end]) if end - start > 1 else ("",):
            self._line(number, parse_line(text, self._near_ns))

    def _line(self, number: int, line: Line) -> None:
        self._speakers.note(line, number)
        if line.time_ns != MISSING:
            self._now_ns = line.time_ns
        if self._half is not None:
            line, self._half = self._half._replace(text=self._half.text + line.text), None
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
            self._open[key] = Traceback(number, line, self._now_ns, self._headings.pop(key, ""))
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
        if match is None:
            if any(mark in line.text for mark in WRAPPED) and len(line.text) < _LONG:
                self._half = line
            return
        fields = {**group_of(line.text), **match.fields}
        self._add(number, line, match.kind, line.text, fields)
        if match.kind == "restart":
            self._n_restarts += 1

    def _close(self, key: str) -> None:
        traceback = self._open.pop(key)
        self._spawned = traceback.spawned
        fields = traceback.fields()
        self._add(traceback.number, traceback.line, traceback.kind, traceback.summary, fields)
        inside = fields.get("says", {})
        if inside.get("kind") == "exit" and "index" in inside:  # mp.spawn: the process that ended, not the parent
            ended = {name: value for name, value in inside.items() if name not in ("kind", "index")}
            ended["exit_rank"] = inside["index"]
            self._add(traceback.number, Line(""), "exit", traceback.summary, ended)

    def _end_table(self) -> None:
        assert self._table is not None
        for entry in self._table.entries():
            self._speakers.note_exit(entry)
            self._add(self._table.number, Line(""), "exit", entry.pop("text", ""), entry)
        self._table = None

    def _end_stack(self) -> None:
        assert self._stack is not None
        place = self._stack.fields()
        if place:
            self._add(self._stack.number, self._stack.line, "waiting-at", self._stack.text, place)
        self._stack = None

    def _add(self, number: int, line: Line, kind: str, text: str, fields: Fields) -> None:
        alike = (kind, line.rank, line.label)
        self._counts[alike] = self._counts.get(alike, 0) + 1
        if len(self.rows) >= _MAX_EVENTS or self._counts[alike] > _MAX_ALIKE:
            return
        self.rows.append(
            {
                "file_id": self._source.file_id,
                "line": number,
                "speaker": line,
                "time_ns": line.time_ns,
                "near_ns": self._now_ns,
                "attempt": self._n_restarts,
                "kind": kind,
                "text": text[:_MAX_TEXT],
                "fields": fields,
            }
        )

    def _count_unannounced_restarts(self) -> None:
        """torchrun says that it restarts only at level INFO. But one agent reports one failure per attempt."""
        failures: dict[int, list[int]] = {}
        for number, row in enumerate(self.rows):
            if row["kind"] == "exit" and "local_rank" in row["fields"] and row["speaker"].pid != MISSING:
                failures.setdefault(row["speaker"].pid, []).append(number)
        if not failures or any(row["kind"] == "restart" for row in self.rows):
            return
        reports = max(failures.values(), key=len)
        ends = [self.rows[number]["line"] for number in reports[:-1]]
        for row in self.rows:
            if row["kind"] != "last-output":
                row["attempt"] += sum(end < row["line"] for end in ends)
            else:
                row["attempt"] += len(ends)

    def finish(self) -> list[dict[str, Any]]:
        """All rows, each with the rank that could be learned from the whole text."""
        if self._table is not None:
            self._end_table()
        if self._stack is not None:
            self._end_stack()
        for key in list(self._open):
            self._close(key)
        facts = path_facts(self._source.shown)
        self._speakers.settle(facts)
        if self.rows or self._speakers.n_ranks():
            for output in self._speakers.outputs():
                output.update(file_id=self._source.file_id, attempt=self._n_restarts)
                self.rows.append(output)
        self.rows.sort(key=lambda row: row["line"])
        self._count_unannounced_restarts()
        for row in self.rows:
            row.update(self._speakers.attribution(row.pop("speaker"), row["fields"]))
            row["attempt"] += max(facts.attempt, 0)
            row["fields"] = msgspec.json.encode(row["fields"]).decode()
        return self.rows
