"""Stacks of all threads of a rank -> where each thread was; stacks and frames share tables with those of calls."""

from __future__ import annotations

import datetime
import re
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from rankscope.errors import BadFileError
from rankscope.model.numbers import whole
from rankscope.model.tables import MISSING, Table
from rankscope.read.files import Source
from rankscope.read.recorder_entries import stack_tables
from rankscope.read.stack_text import Section, StackText, ThreadStack

NAME = "thread_stacks"
MARKS = ("=== rankscope stacks: rank ", "=== Rank ", "(most recent call first):", "Thread 0x", "Python v", "#0 ")

# A job's own log may hold stacks too: only a text that begins with them is a file of stacks.
_BEGIN = re.compile(
    rb"\s{0,4096}(?:=== rankscope stacks: rank \d"
    rb"|(?:Current thread|Thread) 0x[0-9a-fA-F]{1,16} [^\n]{0,500}\(most recent call first\):"
    rb"|Timeout \([^\n]{0,80}\)!\s{1,80}Thread 0x|Process \d{1,10}: [^\n]{0,2000}\n{1,9}Python v\d"
    rb"|#0 [^\n]{0,500} from [^\n]{0,1000}:\d)"
)
_SERVED = re.compile(rb"^=== Rank \d+: [^\n]* ===\r?\n", re.MULTILINE)
_THREAD = re.compile(rb"\(most recent call first\):|^Thread (?:0x)?[0-9a-fA-F]+ \([a-z+ ]+\)", re.MULTILINE)
_SERVED_NAME = re.compile(r"_(\d{8}_\d{6})\.txt")
_HINT = "pass the files that `rankscope record` or torch's debug server wrote, or the output of py-spy dump"
CUT_HINT = "the process ended while writing it, or the copy is incomplete: copy it again if the original is complete"


def sniff(head: bytes, name: str) -> bool:
    return bool(_BEGIN.match(head) or (_SERVED.search(head) and _THREAD.search(head)))


def read(source: Source) -> Iterator[Table]:
    if source.n_bytes == 0:
        raise BadFileError("is empty (0 bytes)", "the process ended before it wrote its stacks")
    text = StackText()
    sections: list[Section] = []
    problem = ""
    try:
        with source.open() as stream:
            sections.extend(text.sections(stream))
    except (OSError, EOFError, zlib.error) as error:
        problem = f"cannot be fully decompressed ({error})"
        sections += text.rest()
    threads = [(number, each, thread) for number, each in enumerate(sections) for thread in each.threads]
    if not threads:
        raise BadFileError(problem or "has no thread stacks", _HINT)
    own_rank = MISSING if text.is_served else source.rank
    if own_rank == MISSING and any(section.rank == MISSING for _, section, _ in threads):
        raise BadFileError("has no rank in its name", "rename it so that it ends in its rank: stacks_3.txt")
    yield from _tables(source, own_rank, threads)
    if text.ends_within_line and not text.is_served:  # the server ends its files anyhow
        problem = problem or "ends in the middle of a line"
    row = {**source.file_columns(), "source": NAME, "rank": own_rank, "host": "", "status": "read"}
    if problem:
        row.update(status="damaged", problem=problem, hint=CUT_HINT)
    yield Table.from_rows("files", [row])


def stack_tables_of(source: Source, sections: list[Section]) -> Iterator[Table]:
    """The tables of stacks that are in a file of another kind."""
    threads = [(number, each, thread) for number, each in enumerate(sections) for thread in each.threads]
    yield from _tables(source, MISSING, threads)


def _tables(source: Source, own_rank: int, threads: list[tuple[int, Section, ThreadStack]]) -> Iterator[Table]:
    stack_ids, stacks, frames, sites = stack_tables([thread.frames for _, _, thread in threads])
    # A thread of torch or of Python itself stands in nobody's code.
    is_user = np.append(frames.array("is_user"), False)
    sites = np.where(is_user[sites], sites, MISSING).astype(np.int32)
    written_ns = _time_of_name(source.shown)
    mains = {id(main) for _, section, _ in threads if (main := section.main()) is not None}
    rows: list[dict[str, Any]] = [
        {
            "file_id": source.file_id,
            "rank": section.rank if section.rank != MISSING else own_rank,
            "section": number,
            "time_ns": section.time_ns if section.time_ns != MISSING else written_ns,
            "reason": section.reason,
            "pid": section.pid,
            "thread_id": thread.thread_id,
            "thread_name": thread.name,
            "is_main": id(thread) in mains,
            "is_current": thread.is_current,
            "line": thread.line,
            "stack_id": stack,
            "site_id": sites[stack],
        }
        for (number, section, thread), stack in zip(threads, stack_ids.tolist(), strict=True)
    ]
    yield Table.from_rows("thread_stacks", rows)
    yield stacks
    yield frames


def _time_of_name(name: str) -> int:
    """`stacks_20261116_120000.txt`, as torch's debug server names its files: on its own clock, taken for UTC."""
    match = _SERVED_NAME.search(name)
    try:
        moment = datetime.datetime.strptime(f"{match.group(1)}+0000", "%Y%m%d_%H%M%S%z") if match else None
    except ValueError:
        return MISSING
    return whole(moment.timestamp()) * 10**9 if moment else MISSING
