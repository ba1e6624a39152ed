"""TORCH_LOGS text, as it is found in a job's captured output -> the tables about compilations, as far as it has them.

The text has no durations, no graphs and no year. What it has goes into the tables that a TORCH_TRACE file gives.
"""

from __future__ import annotations

import datetime
import re
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from rankscope.errors import BadFileError
from rankscope.model.numbers import integer, whole
from rankscope.model.tables import MISSING, Array, Table
from rankscope.read import compile_log, desync, job_log, thread_stacks
from rankscope.read.files import Source
from rankscope.read.job_log_scan import JobLog
from rankscope.read.log_messages import MessageRows, Row
from rankscope.read.log_text import Crash, LogText, Message, Prefix, compiler_lines
from rankscope.read.log_times import LineClock

NAME = "torch_logs"
ORDER = 3

_TEXT_NAME = re.compile(r"\.(?:log|txt|out|err)(?:\.(?:gz|zst))?$", re.IGNORECASE)
_LAUNCHED = re.compile(r"/attempt_\d+/(\d{1,9})/std(?:err|out)\.log")  # how torchrun lays out its log folder
_RECORD_HINT = 'run the job with TORCH_LOGS="recompiles,graph_breaks,perf_hints", or with TORCH_TRACE=FOLDER'
CUT_HINT = "the job ended while writing it, or the copy is incomplete: copy it again if the original is complete"


def sniff(head: bytes, name: str) -> bool:
    if (
        not head
        or b"\0" in head
        or job_log.is_kept(name)
        or any(other.sniff(head, name) for other in (compile_log, thread_stacks, desync))
    ):
        return False
    # A job may print a lot before torch's first line, so that any text by these names has to be looked through.
    return bool(_TEXT_NAME.search(name)) or compiler_lines(head)


def read(source: Source) -> Iterator[Table]:
    if source.n_bytes == 0:
        raise BadFileError("is empty (0 bytes)", "the job ended before it printed anything")
    output = JobLog(source)
    problem = output.scan_file()
    reports = list(output.reports())  # a job prints them wherever its time-out happens to be
    yield from reports
    events = output.tables()
    log = _Log(source)
    if "compiler" in output.marks or problem:
        problem = log.scan()
    if log.is_compiler_log:
        yield from events
        yield from log.tables(problem)
        return
    is_told = bool(reports) or output.has_messages
    if not is_told and (problem or not _TEXT_NAME.search(source.shown)):
        raise BadFileError(problem or "has no torch.compile messages", _RECORD_HINT)
    yield from events
    row = {**_file_row(source, MISSING), "source": job_log.NAME if output.has_messages else NAME}
    if problem:
        row.update(status="damaged", problem=problem, hint=CUT_HINT)
    elif not is_told:
        row.update(
            status="ignored", problem="is text without torch.compile messages, desync reports, stacks or failures"
        )
    yield Table.from_rows("files", [row])


def _file_row(source: Source, rank: int) -> Row:
    return {**source.file_columns(), "source": NAME, "rank": rank, "host": "", "status": "read"}


class _Process:
    """What is known about one process of the job."""

    def __init__(self, first: Prefix) -> None:
        self.first = self.last = first
        self.n_lines = 0
        self.is_compiler = False

    def note(self, message: Message) -> None:
        self.last = message.prefix
        self.n_lines += len(message.lines)
        self.is_compiler |= message.prefix.is_compiler


class _Log:
    """One file while it is read."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.text = LogText()
        self.found = MessageRows()
        self.processes: dict[tuple[int, tuple[int, int]], _Process] = {}
        self.ranks: dict[tuple[int, int], int] = {}  # of processes that tell theirs, if only in some of their lines
        launched = _LAUNCHED.search(source.shown)
        self.named_rank = integer(launched.group(1)) if launched else compile_log.rank_of_name(source.shown)

    def scan(self) -> str:
        """Reads all of it; the problem that ended it, if any."""
        problem = ""
        with self.source.open() as stream:
            try:
                for item in self.text.messages(stream):
                    self._add(item)
            except (OSError, EOFError, zlib.error) as error:
                problem = f"cannot be fully decompressed ({error})"
                for item in self.text.rest():
                    self._add(item)
        self.found.finish()
        return problem

    def _add(self, item: Message | Crash) -> None:
        if isinstance(item, Crash):
            self.found.add_crash(item)
            return
        prefix = item.prefix
        key = (prefix.rank, prefix.process)
        self.processes.setdefault(key, _Process(prefix)).note(item)
        if prefix.rank != MISSING:
            self.ranks[prefix.process] = prefix.rank
        self.found.add(item)

    @property
    def is_compiler_log(self) -> bool:
        return bool(self.found.rows.get("compile_errors")) or any(each.is_compiler for each in self.processes.values())

    def tables(self, problem: str) -> Iterator[Table]:
        logs = self._logs(problem)
        own_rank = logs[0]["rank"] if len(logs) == 1 else MISSING
        yield Table.from_rows("compile_logs", logs)
        for name, rows in self.found.rows.items():
            if rows:
                yield self._table(name, rows, own_rank)
        row = _file_row(self.source, own_rank)
        if problem or self.text.is_cut:
            row.update(status="damaged", problem=problem or "ends in the middle of a line", hint=CUT_HINT)
        yield Table.from_rows("files", [row])

    def _table(self, name: str, rows: list[Row], own_rank: int) -> Table:
        times = self._times([row["prefix"] for row in rows]).tolist()
        for row, time in zip(rows, times, strict=True):
            rank = self._rank_of(row["prefix"])
            row.update(file_id=self.source.file_id, rank=own_rank if rank == MISSING else rank)
            row.update(time_ns=time, start_ns=time)
        return Table.from_rows(name, rows)

    def _rank_of(self, prefix: Prefix) -> int:
        if prefix.rank != MISSING:
            return prefix.rank
        rank = self.ranks.get(prefix.process, prefix.launcher)
        return self.named_rank if rank == MISSING else rank

    def _logs(self, problem: str) -> list[Row]:
        """One row per rank whose process compiled, or failed to."""
        by_rank: dict[int, list[_Process]] = {}
        for process in self.processes.values():
            if process.is_compiler:
                by_rank.setdefault(self._rank_of(process.first), []).append(process)
        for row in self.found.rows.get("compile_errors", ()):
            if not by_rank or self._rank_of(row["prefix"]) != MISSING:
                by_rank.setdefault(self._rank_of(row["prefix"]), [])
        # Those without a rank come last: rows of the file that have none must not take another's.
        ordered = sorted(by_rank.items(), key=lambda item: (item[0] == MISSING, item[0]))
        return [self._log_row(rank, rows, problem) for rank, rows in ordered]

    def _log_row(self, rank: int, processes: Sequence[_Process], problem: str) -> Row:
        times = self._times([prefix for each in processes for prefix in (each.first, each.last)])
        known = times[times != MISSING]
        return {
            "file_id": self.source.file_id,
            "rank": rank,
            "run": 0,
            "source": "text",
            "pid": max(processes, key=lambda each: each.n_lines).first.pid if processes else MISSING,
            "n_records": sum(each.n_lines for each in processes),
            "n_bad": 0,
            "n_unresolved": 0,
            "is_cut": self.text.is_cut or bool(problem),
            # What was printed and not logged has no time: the file's own comes closest.
            "first_ns": whole(known.min()) if len(known) else self.source.modified_ns,
            "last_ns": whole(known.max()) if len(known) else self.source.modified_ns,
            "clock": "assumed",
        }

    def _times(self, prefixes: Sequence[Prefix]) -> Array:
        """The year is the one closest to the file's own time, but for versions that write it."""
        times = np.full(len(prefixes), MISSING, np.int64)
        months: dict[tuple[int, bytes], list[int]] = {}
        for position, prefix in enumerate(prefixes):
            months.setdefault((prefix.year, prefix.stamp[:2] if prefix.year else b""), []).append(position)
        for (year, month), positions in months.items():
            clock = LineClock(_end_ns(year, month) if year else self.source.modified_ns)
            times[positions] = clock.times_ns([prefixes[position].stamp for position in positions])
        return times


def _end_ns(year: int, month: bytes) -> int:
    """A moment behind all days of the month, and before the same month of the next year."""
    number = min(max(integer(month), 1), 12)
    begin = datetime.datetime(min(max(year, 1971), 2200), number, 1, tzinfo=datetime.timezone.utc)
    return whole((begin + datetime.timedelta(days=31)).timestamp()) * 10**9
