"""TORCH_TRACE files -> an index of all records, and the tables about compilations.

A record is a line with JSON, then the lines of its payload, each behind a tab. The file is mapped and walked once;
payloads stay where they are, but for the few that the tables are made of.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from rankscope.errors import BadFileError
from rankscope.model.numbers import rank_number, whole
from rankscope.model.payloads import MappedLog
from rankscope.model.tables import MISSING, Array, Table
from rankscope.read.compile_scan import Scan, Seen
from rankscope.read.compile_tables import WANTED_KINDS, Record, RowMaker
from rankscope.read.file_names import COMPILE_LOG_NAME
from rankscope.read.files import Source
from rankscope.read.log_times import LineClock
from rankscope.read.plain_logs import PlainLog, plain_log

NAME = "compile_log"
MARKS = ('] {"', "dedicated_log_torch_trace_")

_HEADER = re.compile(rb"(?m)^(?:\[\w+\]:\s?)?[VIWEC]\d{4} \d\d:\d\d:\d\d.\d{6} \d+ ?[^\n]*?:\d+\] \{\"")
_ANY_RANK = re.compile(r"(?:rank[_-]?|^torch_logs_)(\d{1,9})(?!\d)", re.IGNORECASE)
CUT_HINT = "the process ended while writing it, or the copy is incomplete: copy it again if the original is complete"


def sniff(head: bytes, name: str) -> bool:
    if _HEADER.search(head):
        return True
    # An empty or cut file still carries the name that torch gave it: it must be reported, not passed over.
    return bool(COMPILE_LOG_NAME.search(_base(name))) and b"\0" not in head


def _base(name: str) -> str:
    return name.replace("!", "/").rsplit("/", 1)[-1]


def rank_of_name(name: str) -> int:
    """`dedicated_log_torch_trace_rank_3_x7a_b1.log` -> 3; what follows is random and may hold digits."""
    match = COMPILE_LOG_NAME.search(_base(name))
    if match:
        return rank_number(match["rank"])
    named = _ANY_RANK.search(_base(name))
    return rank_number(named.group(1)) if named else MISSING


def read(source: Source) -> Iterator[Table]:
    if source.n_bytes == 0:
        raise BadFileError("is empty (0 bytes)", "the process ended before it wrote its first record")
    plain = plain_log(source)
    maker = RowMaker()
    log, clock = MappedLog(plain.path), LineClock(source.modified_ns)
    scan = Scan(log, clock, lambda seen: maker.add(_record(source, seen)), WANTED_KINDS)
    try:
        scan.run()
    except (MemoryError, RecursionError) as error:
        raise BadFileError("needs an absurd amount of memory or nesting", "it is corrupt or malicious") from error
    if scan.n_bad == len(scan):
        raise BadFileError("has no torch.compile records", "record it again with TORCH_TRACE=FOLDER")
    maker.finish()
    yield from _tables(source, plain, scan, maker)


def _record(source: Source, seen: Seen) -> Record:
    meaning = seen.meaning
    key: dict[str, Any] = {
        "file_id": source.file_id,
        "record": seen.number,
        "compile_id": meaning.compile_id,
        "frame_id": meaning.frame_id,
        "frame_compile_id": meaning.frame_compile_id,
        "autograd_id": meaning.autograd_id,
        "attempt": meaning.attempt,
    }
    return Record(key, meaning.kind, meaning.name, seen.header, seen.tabbed)


def _tables(source: Source, plain: PlainLog, scan: Scan, maker: RowMaker) -> Iterator[Table]:
    index = scan.index(source.file_id)
    rank, ranks = _ranks(source, plain, index)
    index = index.replaced({"rank": ranks})
    yield index
    is_cut = scan.ends_in_the_middle() or bool(plain.problem)
    yield _log_table(source, plain, scan, maker, index, {"is_cut": is_cut})
    rank_of, time_of = ranks.tolist(), index.array("time_ns").tolist()
    for name, rows in maker.rows.items():
        for row in rows:
            row["rank"] = rank_of[row["record"]]
            row.setdefault("time_ns", time_of[row["record"]])
            row.setdefault("start_ns", row["time_ns"])
        yield Table.from_rows(name, rows)
    file = {**source.file_columns(), "source": NAME, "rank": rank, "host": "", "status": "read"}
    problem = _problem(plain, scan.n_bad + maker.n_broken, len(scan), is_cut)
    if problem:
        file.update(status="damaged", problem=problem, hint=CUT_HINT)
    yield Table.from_rows("files", [file])


def _ranks(source: Source, plain: PlainLog, index: Table) -> tuple[int, Array]:
    """The file's rank and each record's: the name's, as torch gave it, else what the lines or the records say."""
    named = rank_of_name(source.shown)
    if named != MISSING:
        return named, np.full(len(index), named, np.int32)
    ranks = index.array("rank")
    if plain.starts:
        section = np.searchsorted(np.array(plain.starts), index.array("start"), "right") - 1
        ranks = np.where(ranks == MISSING, np.array(plain.ranks, np.int32)[section], ranks)
    known = ranks[ranks != MISSING]
    rank = whole(np.bincount(known).argmax()) if len(known) and known.max() < 1 << 24 else MISSING
    return rank, np.where(ranks == MISSING, np.int32(rank), ranks)


def _log_table(
    source: Source, plain: PlainLog, scan: Scan, maker: RowMaker, index: Table, known: dict[str, Any]
) -> Table:
    """One row, or one for each rank where several wrote into one stream."""
    shared = {
        "file_id": source.file_id,
        "run": 0,
        "source": "trace",
        "plain_path": plain.path,
        "pid": scan.pid(),
        "n_bad": scan.n_bad + maker.n_broken,
        "n_unresolved": maker.n_unresolved,
        "clock": "absolute" if scan.clock.is_absolute else "assumed",
        "torch_version": maker.torch_version,
        **known,
    }
    ranks, times = index.array("rank"), index.array("time_ns")
    rows = []
    for rank in sorted(set(ranks.tolist())):
        record_times = times[ranks == rank]
        written = record_times[record_times != MISSING]
        span = (whole(written.min()), whole(written.max())) if len(written) else (MISSING, MISSING)
        rows.append({**shared, "rank": rank, "n_records": len(record_times), "first_ns": span[0], "last_ns": span[1]})
    return Table.from_rows("compile_logs", rows)


def _problem(plain: PlainLog, n_bad: int, n_records: int, is_cut: bool) -> str:
    problems = [plain.problem] if plain.problem else []
    if n_bad:
        problems.append(f"holds {n_bad:,} of {n_records:,} records that are not in torch's format")
    if is_cut and not plain.problem:
        problems.append("is truncated or changed in its last record")
    return " and ".join(problems) + "; all other records were read" if problems else ""
