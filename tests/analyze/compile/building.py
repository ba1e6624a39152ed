"""Tables about compilations made by hand: a few rows of each kind, with what a test does not care about filled in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankscope.analyze import RULES, Effect, table_makers
from rankscope.model import schema_compile
from rankscope.model.finding import Finding
from rankscope.model.tables import Table, Trace

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND
FILE = "train.py"
_COMPILE_TABLES = {table.name for table in schema_compile.COMPILE_TABLES}
Made = tuple[str, dict[str, Any]]


def compiled(compile_id: str, *, rank: int = 0, seconds: float = 1.0, **columns: Any) -> Made:
    """A compilation that went well; each rank has one log, whose number is its own."""
    frame, version = (int(part) for part in compile_id.split("/"))
    row = {
        "file_id": rank,
        "rank": rank,
        "record": 100 * frame + version,
        "compile_id": compile_id,
        "frame_id": frame,
        "frame_compile_id": version,
        "attempt": 0,
        "phase": "forward",
        "status": "ok",
        "function": "step",
        "file": FILE,
        "line": 10,
        "start_ns": START + (100 * frame + version) * SECOND,
        "duration_ns": int(seconds * SECOND),
        "n_ops": 1,
    }
    return "compilations", row | columns


def guard_failed(compile_id: str, against: str, guard: str, *, rank: int = 0, **columns: Any) -> Made:
    frame, version = (int(part) for part in compile_id.split("/"))
    row = {"file_id": rank, "rank": rank, "compile_id": compile_id, "frame_id": frame, "frame_compile_id": version}
    return "recompiles", row | {"time_ns": START, "against": against, "guard": guard, "cause": "other"} | columns


def size_changed(compile_id: str, expected: int, actual: int, *, rank: int = 0, **columns: Any) -> Made:
    """The version before fits another size of dimension 0 of x."""
    frame, version = (int(part) for part in compile_id.split("/"))
    guard = f"tensor 'x' size mismatch at index 0. expected {expected}, actual {actual}"
    told = {"cause": "size", "subject": "x", "dimension": 0, "expected": str(expected), "actual": str(actual)}
    return guard_failed(compile_id, f"{frame}/{version - 1}", guard, rank=rank, **told, **columns)


def symbol(compile_id: str, source: str, value: str, *, rank: int = 0, **columns: Any) -> Made:
    row = {"file_id": rank, "rank": rank, "compile_id": compile_id, "attempt": 0, "kind": "symbol", "symbol": "s0"}
    return "guards", row | {"source": source, "value": value, "expression": "[2, int_oo]"} | columns


def broke(compile_id: str, line: int = 12, reason: str = "print", *, rank: int = 0, **columns: Any) -> Made:
    row = {"file_id": rank, "rank": rank, "compile_id": compile_id, "attempt": 0, "time_ns": START, "file": FILE}
    told = {"line": line, "function": "step", "reason": reason, "is_user": True}
    return "graph_breaks", row | told | columns


def looked_up(compile_id: str, outcome: str, key: str, *, rank: int = 0, **columns: Any) -> Made:
    row = {"file_id": rank, "rank": rank, "record": 7, "compile_id": compile_id, "attempt": 0, "time_ns": START}
    told = {"cache": "fx_graph", "outcome": outcome, "key": key, "taken_ns": SECOND}
    return "cache_events", row | told | columns


def frame(compile_id: str, depth: int, file: str, line: int, function: str, *, is_user: bool, rank: int = 0) -> Made:
    place = {"file": file, "line": line, "function": function, "is_user": is_user}
    return "compile_stacks", {"file_id": rank, "rank": rank, "compile_id": compile_id, "depth": depth} | place


def log(file_id: int = 0, *, rank: int = 0, run: int = 0, **columns: Any) -> Made:
    times = {"first_ns": START, "last_ns": START + 1000 * SECOND, "source": "trace"}
    return "compile_logs", {"file_id": file_id, "rank": rank, "run": run} | times | columns


def trace_of(*made: Made) -> Trace:
    """The trace that holds the rows; logs that none of them describes are of run 0."""
    rows: dict[str, list[dict[str, Any]]] = {"compile_logs": []}
    for table, row in made:
        rows.setdefault(table, []).append(row)
    described = {row["file_id"] for row in rows["compile_logs"]}
    named = {row["file_id"]: row["rank"] for table, row in made if table in _COMPILE_TABLES}
    for file_id in sorted(named.keys() - described):
        rows["compile_logs"].append(log(file_id, rank=named[file_id])[1])
    tables = {name: Table.from_rows(name, own) for name, own in rows.items()}
    return Trace(("made",), tables, makers=table_makers())


def findings(trace: Trace, code: str) -> list[Finding]:
    return [result for result in RULES[code].function(trace) if isinstance(result, Finding)]


def effects(trace: Trace, code: str) -> list[Finding]:
    return [result.finding for result in RULES[code].function(trace) if isinstance(result, Effect)]


def payload_log(path: Path, file_id: int, run: int, payloads: Sequence[object]) -> list[Made]:
    """A log on disk whose records are nothing but their payloads, with its index; record numbers count from 0."""
    made: list[Made] = [log(file_id, rank=0, run=run, plain_path=str(path))]
    content = b""
    for number, payload in enumerate(payloads):
        text = b"\t" + json.dumps(payload).encode() + b"\n"
        place = {"file_id": file_id, "rank": 0, "record": number, "kind": "artifact"}
        place |= {"payload_start": len(content), "n_payload_bytes": len(text)}
        made.append(("compile_records", place))
        content += text
    path.write_bytes(content)
    return made
