"""Small profiler traces, written by hand: what one event looks like, and a file of them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from rankscope.model.tables import Trace
from rankscope.pipeline import load

BASE_NS = 7_889_238 * 10**9 * 227
Event = dict[str, Any]


def span(category: str, name: str, start: float, duration: float, **arguments: Any) -> Event:
    """A complete event; times in microseconds. `tid` may be given, arguments with spaces as {"External id": 1}."""
    event = {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": arguments.pop("tid", 7)}
    return {**event, "ts": start, "dur": duration, "args": arguments}


def kernel(name: str, start: float, duration: float, correlation: int, **arguments: Any) -> Event:
    return span("kernel", name, start, duration, tid=7, stream=7, device=0, correlation=correlation, **arguments)


def launch(start: float, duration: float, correlation: int, **arguments: Any) -> Event:
    return span("cuda_runtime", "cudaLaunchKernel", start, duration, correlation=correlation, **arguments)


def step(number: int, start: float, duration: float) -> Event:
    return span("user_annotation", f"ProfilerStep#{number}", start, duration)


def document(events: list[Event], **around: Any) -> dict[str, Any]:
    head = {"schemaVersion": 1, "deviceProperties": [], **around}
    return {**head, "traceEvents": events, "baseTimeNanoseconds": around.get("baseTimeNanoseconds", BASE_NS)}


def write_trace(path: Path, events: list[Event], **around: Any) -> Path:
    content = json.dumps(document(events, **around)).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def rows(trace: Trace, sql: str) -> list[Any]:
    return trace.sql(sql).rows()


def load_events(folder: Path, events: list[Event], **around: Any) -> Trace:
    return load(write_trace(folder / "kineto_trace_0.json", events, **around))
