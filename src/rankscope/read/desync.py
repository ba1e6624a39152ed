"""Desync reports (desync_<rank>.txt, and torch's own text, also in the output of a job) -> the table desync_states.

Ranks without a dump are judged by what the reports say about them: see reported_ranks.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rankscope.errors import BadFileError
from rankscope.model.tables import MISSING, Table
from rankscope.read import printed_stacks
from rankscope.read.desync_text import MAX_LINE, TITLE, TORCH_MARK, DesyncText, state_rows
from rankscope.read.files import Source
from rankscope.read.recorder_entries import entry_columns

NAME = "desync"
MARKS = ("rankscope desync report, ", "] Timeout at collective: ")
CUT_HINT = "the job ended while writing it, or the copy is incomplete: copy it again if the original is complete"
P2P_OPS = {"SEND": "send", "RECV": "recv", "RECVANYSOURCE": "recv"}

Row = dict[str, Any]


def sniff(head: bytes, name: str) -> bool:
    return (TITLE in head or TORCH_MARK in head) and b"\0" not in head


def read(source: Source) -> Iterator[Table]:
    if source.n_bytes == 0:
        raise BadFileError("is empty (0 bytes)", "the job ended before it wrote its report")
    text, problem = _scan(source)
    states = _states(source, text)
    if not len(states):
        raise BadFileError(
            problem or ("is truncated before its first statement" if text.is_cut else "has no desync report"),
            CUT_HINT if text.is_cut else "pass the folder of the job's traces, or its complete output",
        )
    rank = text.rank if text.rank != MISSING else source.rank
    yield states
    if not text.has_own:
        from rankscope.read import job_log  # which in turn reads the reports in a job's output

        yield from printed_stacks.in_output(source)
        yield from job_log.in_output(source)
    row = {**source.file_columns(), "source": NAME, "rank": rank, "host": text.host, "status": "read"}
    if problem or text.is_cut:
        row.update(status="damaged", problem=problem or "is truncated: the end of the report is missing", hint=CUT_HINT)
    yield Table.from_rows("files", [row])


def in_output(source: Source) -> Iterator[Table]:
    """The reports in a job's output, which is another reader's file: nothing where there are none."""
    states = _states(source, _scan(source)[0])
    if len(states):
        yield states


def _scan(source: Source) -> tuple[DesyncText, str]:
    """All of the text, and what ended it before its end."""
    text = DesyncText(source.modified_ns)
    with source.open() as stream:
        try:
            text.read(iter(lambda: stream.readline(MAX_LINE), b""))
        except (OSError, EOFError, zlib.error) as error:
            return text, f"cannot be fully decompressed ({error})"
    return text, ""


def _states(source: Source, text: DesyncText) -> Table:
    rows = state_rows(text.reports)
    return Table.from_rows("desync_states", [{**row, "file_id": source.file_id} for row in rows])


class LatestCall(NamedTuple):
    """The newest known collective of a rank in one group."""

    group_name: str
    group_desc: str
    seq: int
    op: str  # in torch's terms
    is_finished: bool
    backend: str = ""


def recorder_entry(call: LatestCall, pg_id: int, time_ns: int) -> dict[str, Any]:
    """The call as an entry of a Flight Recorder dump, as far as a report or a store shows it."""
    operation = P2P_OPS.get(call.op, call.op.lower())
    return {
        "record_id": max(call.seq - 1, 0),  # so many calls at least came before it, and are not told
        "pg_id": pg_id,
        "process_group": (call.group_name, call.group_desc),
        "collective_seq_id": call.seq,
        "p2p_seq_id": 0,
        "op_id": call.seq,
        "profiling_name": f"{call.backend}:{operation}" if call.backend else operation,
        "time_created_ns": time_ns,
        "input_sizes": [],
        "output_sizes": [],
        "input_dtypes": [],
        "output_dtypes": [],
        "state": "completed" if call.is_finished else "started",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": call.is_finished,
        "timeout_ms": 0,
        "is_p2p": call.op in P2P_OPS,
        "thread_name": "",
        "frames": [],
    }


def reported_ranks(parts: Mapping[str, Sequence[Table]]) -> list[Table]:
    """What desync reports say about the ranks without a dump, in the tables of the Flight Recorder.

    With dumps, only how far those ranks came: a report has no sizes to compare with a dump's. A rank
    that came further according to the dumps died before it updated the store: its position is unknown.
    """
    reports = parts.get("desync_states", ())
    known = {rank for table in parts.get("ranks", ()) for rank in table.array("rank").tolist()}
    newest = _newest_states(row for table in reports for row in table.rows() if row["member"] not in known)
    completed = _completed(parts.get("group_status", ()))
    rows = [row for row in newest.values() if not known or row["seq"] >= completed.get(row["group_name"], 1)]
    if not rows:
        return []
    numbers = {name: number for number, name in enumerate(dict.fromkeys(row["group_name"] for row in rows))}
    calls = [] if known else [row for row in rows if row["state"] in ("started", "finished")]
    return [
        *_call_tables(calls, numbers),
        Table.from_rows("group_config", [_config_row(row) for row in rows]),
        Table.from_rows("group_status", [_status_row(row, numbers) for row in rows]),
        Table.from_rows("ranks", _rank_rows(rows, calls)),
    ]


def _completed(statuses: Sequence[Table]) -> dict[str, int]:
    """The newest collective of each group that the dumps show to be complete: all its members have come so far."""
    completed: dict[str, int] = {}
    for table in statuses:
        for row in table.rows():
            completed[row["group_name"]] = max(completed.get(row["group_name"], 1), row["last_completed"])
    return completed


def _newest_states(rows: Iterator[Row]) -> dict[tuple[int, str, str], Row]:
    """The most advanced state of each rank in each group: ranks wrote their reports at different times."""
    newest: dict[tuple[int, str, str], Row] = {}
    for row in rows:
        if row["member"] == MISSING or row["state"] == "unreadable":
            continue
        key = row["member"], row["group_name"], row["members"]
        if key not in newest or _progress(row) > _progress(newest[key]):
            newest[key] = row
    return newest


def _progress(row: Row) -> tuple[int, bool]:
    return row["seq"], row["state"] == "finished"


def _call_tables(rows: Sequence[Row], numbers: Mapping[str, int]) -> Iterator[Table]:
    if not rows:
        return
    entries = []
    for row in rows:
        call = LatestCall(row["group_name"], row["group_desc"], row["seq"], row["op"], row["state"] == "finished")
        entries.append(recorder_entry(call, numbers[call.group_name], row["time_ns"]))
    calls, stacks, frames = entry_columns(entries, Source(Path(), "", 0))
    ranks = np.array([row["member"] for row in rows], np.int32)
    files = np.array([row["file_id"] for row in rows], np.int32)
    yield calls.replaced({"rank": ranks, "file_id": files})
    yield stacks
    yield frames


def _config_row(row: Row) -> Row:
    named = {"name": row["group_name"], "description": row["group_desc"], "members": row["members"]}
    return {"file_id": row["file_id"], "rank": row["member"], **named}


def _status_row(row: Row, numbers: Mapping[str, int]) -> Row:
    # Sequence numbers count from 1: who never joined is known to stand at 0.
    last = max(row["seq"], 0)
    is_open = row["state"] == "started" and row["op"] not in P2P_OPS  # a send has the number of the call before it
    return {
        "file_id": row["file_id"],
        "rank": row["member"],
        "pg_id": numbers[row["group_name"]],
        "group_name": row["group_name"],
        "last_enqueued": last,
        "last_started": last,
        "last_completed": last - is_open,
    }


def _rank_rows(rows: Sequence[Row], calls: Sequence[Row]) -> list[Row]:
    seqs_by_member: dict[int, list[int]] = {row["member"]: [] for row in rows}
    for row in calls:
        seqs_by_member[row["member"]].append(row["seq"])
    any_row = {row["member"]: row for row in rows}
    return [
        {
            "rank": rank,
            "file_id": any_row[rank]["file_id"],
            "n_calls": len(seqs),
            "n_dropped": max(min(seqs, default=0) - 1, 0),  # a report tells the last call only
            "last_created_ns": any_row[rank]["time_ns"],
            "written_ns": any_row[rank]["time_ns"],
            "clock_offset_ns": 0,
        }
        for rank, seqs in sorted(seqs_by_member.items())
    ]
