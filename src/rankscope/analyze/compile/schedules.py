"""Tables of what Inductor logs about each graph: its collectives, its estimates, when it ran."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from rankscope.analyze.derived import table
from rankscope.model.code_collectives import code_calls
from rankscope.model.payloads import payloads
from rankscope.model.tables import MISSING, Table, Trace

Row = dict[str, Any]
_MAX_NS = 1 << 62


class _Operation(msgspec.Struct):
    name: Any = None
    type: Any = None
    estimated_runtime_ns: Any = None
    outputs: msgspec.Raw = msgspec.Raw(b"[]")


class _Graph(msgspec.Struct):
    ops: list[_Operation] = []


class _Executed(msgspec.Struct):
    compile_id: str | None = None


class _Order(msgspec.Struct):
    graph_execution_order: list[_Executed | str] = []


@table("compile_collectives", needs=("compile_records",))
def compile_collectives(trace: Trace) -> Table:
    """A graph that was taken from a cache has no schedule in the log; what its code calls is the same."""
    rows = [
        (record, str(op))
        for record, ops in _decoded(trace, "inductor_collective_schedule", list[Any])
        for op in ops
        if op is not None
    ]
    scheduled = {(record["file_id"], record["compile_id"]) for record, _ in rows}
    rows += [
        (record, op)
        for record, ops in _called_in_code(trace)
        for op in ops
        if (record["file_id"], record["compile_id"]) not in scheduled
    ]
    rows.sort(key=lambda row: (row[0]["file_id"], row[0]["record"]))
    return _positioned(trace, "compile_collectives", [{**record, "op": op} for record, op in rows], "compile_id")


@table("compile_estimates", needs=("compile_records",))
def compile_estimates(trace: Trace) -> Table:
    rows = [
        {
            **record,
            "op": "" if op.name is None else str(op.name),
            "kind": str(op.type or ""),
            "estimate_ns": _whole(op.estimated_runtime_ns),
            "outputs": msgspec.json.format(bytes(op.outputs), indent=-1).decode(),
        }
        for record, graph in _decoded(trace, "inductor_runtime_and_tensor_meta", _Graph)
        for op in graph.ops
    ]
    return _positioned(trace, "compile_estimates", rows, "compile_id")


@table("graph_executions", needs=("compile_records",))
def graph_executions(trace: Trace) -> Table:
    """A rank that recorded its order several times ran one after the other."""
    rows = [
        {**record, "compile_id": compile_id}
        for record, order in _decoded(trace, "graph_execution", _Order)
        for graph in order.graph_execution_order
        if (compile_id := graph if isinstance(graph, str) else graph.compile_id)
    ]
    return _positioned(trace, "graph_executions", rows, "rank")


def _decoded(trace: Trace, artifact: str, type_: Any) -> Iterator[tuple[Row, Any]]:
    """Payloads that are not what they should be are left out: the rest of the log is still good."""
    decoder = msgspec.json.Decoder(type_)
    for record, payload in payloads(trace, "artifact", artifact):
        try:
            decoded = decoder.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # the last: nested too deep
            continue
        yield record, decoded


def _called_in_code(trace: Trace) -> Iterator[tuple[Row, tuple[str, ...]]]:
    calls = code_calls(trace)
    records = trace.table("compile_records")
    for record in records.take(records.text("kind").equals("inductor_output_code").nonzero()[0]).rows():
        yield record, calls.get((record["file_id"], record["record"]), ())


def _positioned(trace: Trace, table: str, rows: list[Row], counted_by: str) -> Table:
    """Adds the run, and positions that keep counting if several records are about one graph."""
    logs = trace.table("compile_logs")
    runs = dict(zip(logs.array("file_id").tolist(), logs.array("run").tolist(), strict=True))
    counts: dict[tuple[int, Any], int] = {}
    for row in rows:
        key = (row["file_id"], row[counted_by])
        row["run"], row["position"] = runs[row["file_id"]], counts.get(key, 0)
        counts[key] = row["position"] + 1
    return Table.from_rows(table, rows)


def _whole(nanoseconds: object) -> int:
    return int(nanoseconds) if isinstance(nanoseconds, int | float) and 0 <= nanoseconds < _MAX_NS else MISSING
