"""Builds profiler tables by hand, in microseconds, for the tests of what the device did with its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankscope.analyze import table_makers
from rankscope.analyze.metric import METRICS, Selection
from rankscope.analyze.registry import RULES
from rankscope.model.finding import Finding
from rankscope.model.tables import Table, Trace

EPOCH_NS = 1_700_000_000_000_000_000
Row = dict[str, Any]


def at(microseconds: float) -> int:
    """Nanoseconds since the epoch."""
    return EPOCH_NS + round(microseconds * 1000)


def span(start: float, end: float, **columns: Any) -> Row:
    """From one microsecond to another, of rank 0 in file 0 unless told otherwise."""
    return {"file_id": 0, "rank": 0, "start_ns": at(start), "duration_ns": at(end) - at(start), **columns}


def kernel(start: float, end: float, launch: float | None = None, **columns: Any) -> Row:
    """A computing kernel on stream 7, launched from thread 1 where a time of launch is given."""
    launched = (
        {"launch_start_ns": at(launch), "launch_end_ns": at(launch + 1), "launch_tid": 1, "call_id": 1}
        if launch is not None
        else {}
    )
    known = {"name": "gemm", "kind": "kernel", "type": "computation", "device": 0, "stream": 7}
    return span(start, end, **{**known, **launched, **columns})


def copy(start: float, end: float, **columns: Any) -> Row:
    return kernel(
        start, end, **{"name": "Memcpy HtoD (Pinned -> Device)", "kind": "memcpy", "type": "memory", **columns}
    )


def collective(start: float, end: float, **columns: Any) -> Row:
    """The kernel of a collective, on a stream of its own."""
    return kernel(start, end, **{"name": "ncclDevKernel_AllReduce", "type": "communication", "stream": 20, **columns})


def step(number: int, start: float, end: float, **columns: Any) -> Row:
    return span(start, end, step=number, name=f"ProfilerStep#{number}", tid=1, **columns)


def on_ranks(ranks: Sequence[int], rows: Sequence[Row]) -> list[Row]:
    """The same rows for each of the ranks, each in a file of its own."""
    return [{**row, "rank": rank, "file_id": rank} for rank in ranks for row in rows]


def trace_of(**tables: Sequence[Mapping[str, Any]]) -> Trace:
    trace = Trace(("made by hand",), {name: Table.from_rows(name, rows) for name, rows in tables.items()})
    trace.makers = table_makers()
    return trace


def rows_of(trace: Trace, metric: str, selection: Selection | None = None) -> list[Row]:
    return list(METRICS[metric].compute(trace, selection or Selection()).rows())


def only_row(trace: Trace, metric: str, selection: Selection | None = None) -> Row:
    [row] = rows_of(trace, metric, selection)
    return row


def findings(trace: Trace, code: str) -> list[Finding]:
    return [found for found in RULES[code].function(trace) if isinstance(found, Finding)]
