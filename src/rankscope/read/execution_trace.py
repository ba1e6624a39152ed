"""PyTorch execution traces (ExecutionTraceObserver), layouts 1.0.1 to 1.1.1 -> nodes, tensors, process groups.

Nodes stream in and go to Parquet in the cache: a trace of gigabytes is never in memory.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from rankscope.errors import BadFileError
from rankscope.model.numbers import rank_number
from rankscope.model.tables import MISSING, Part, Table
from rankscope.read import cache
from rankscope.read.event_stream import EventStream
from rankscope.read.execution_nodes import group_rows
from rankscope.read.execution_stage import NodeStage
from rankscope.read.files import Source
from rankscope.read.profile_store import CUT_HINT
from rankscope.read.staging import staging

NAME = "execution_trace"
ORDER = 2
COST = 15

_SCHEMA = re.compile(rb'"schema"\s*:\s*"\d+\.\d+\.\d+')
_OWN_NAME = re.compile(r"(torch_et|pytorch_et|execution_trace|[_-]et)[_.-]?\d*(\.json)?(\.gz|\.zst)?$", re.IGNORECASE)
_RANK_IN_NAME = re.compile(r"(?:rank|et|trace|host|worker)[-_.]?(\d{1,9})", re.IGNORECASE)
_HEAD = ("schema", "pid", "time", "start_ts", "finish_ts")


class _Note(msgspec.Struct):
    """What is kept beside the parts."""

    trace: dict[str, Any]
    groups: list[dict[str, Any]]
    n_rows: dict[str, int]
    problem: str = ""


def sniff(head: bytes, name: str) -> bool:
    if head.lstrip()[:1] == b"{":
        return bool(_SCHEMA.search(head)) and b'"nodes"' in head and b'"traceEvents"' not in head
    return not head and bool(_OWN_NAME.search(name))


def read(source: Source) -> Iterator[Table | Part]:
    entry = cache.stored(source.workspace)
    if entry is None:
        if source.n_bytes == 0:
            raise BadFileError("is empty (0 bytes)", "the process ended before it wrote its trace")
        with cache.filling(source.workspace) as aside:
            cache.note_done(aside, msgspec.json.encode(_convert(source, aside)))
        entry = cache.kept(source.workspace)
    note = msgspec.json.decode(entry.note, type=_Note)
    rank = _rank(source)
    key = {"file_id": source.file_id, "rank": rank}
    # What stands before the rank in its name is no host, as it is with dumps.
    about = {**source.file_columns(), **key, "host": "", "source": NAME}
    status = {"status": "damaged", "problem": note.problem, "hint": CUT_HINT} if note.problem else {"status": "read"}
    yield Table.from_rows("files", [{**about, **status}])
    yield Table.from_rows("et_traces", [{**note.trace, **key}])
    yield Table.from_rows("et_groups", [{**group, **key} for group in note.groups])
    for table, n_rows in note.n_rows.items():
        yield Part(table, posixpath.join(entry.folder, f"{table}.parquet"), n_rows, source.file_id, rank)


def _rank(source: Source) -> int:
    """From the words before a number in the name; the traces do not have the rank."""
    match = _RANK_IN_NAME.search(source.shown.rsplit("/", 1)[-1])
    return max(rank_number(match.group(1)), 0) if match else 0


def _convert(source: Source, folder: Path) -> _Note:
    with staging() as connection, source.open() as stream:
        stage = NodeStage(connection, folder)
        events = EventStream(stream, "nodes")
        for part in events:
            stage.add(part)
        if not stage.n_nodes:
            raise BadFileError(events.problem or "has no nodes", "start the observer before the first step to record")
        trace = _description(events) | stage.counts()
        groups = [group for inputs in stage.group_descriptions() for group in group_rows(inputs)]
        n_rows = stage.write()
    problems = [events.problem + ": read up to the last complete node"] if events.problem else []
    if stage.n_damaged:
        problems.append("has text that is not a node, which was left out")
    return _Note(trace, groups, n_rows, "; ".join(problems))


def _description(events: EventStream) -> dict[str, Any]:
    around = events.around
    others = {key: value for key, value in around.items() if key not in (*_HEAD, events.key)}
    return {
        "schema": str(around.get("schema", "")),
        "pid": _number(around.get("pid")),
        "recorded": str(around.get("time", "")),
        "start_ms": _number(around.get("start_ts")),
        "finish_ms": _number(around.get("finish_ts")),
        "is_cut": bool(events.problem),
        "extra": msgspec.json.encode(others).decode() if others else "",
    }


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**63 else MISSING
