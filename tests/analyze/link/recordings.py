"""Runs made by hand, and what the observer and a profiler would have recorded of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rankscope.analyze import table_makers
from rankscope.model.tables import Table, Trace

EPOCH_NS = 1_700_000_000 * 10**9  # 2023-11-14 22:13:20
RECORDED = "2023-11-15 00:13:19"  # the same on the local clock of another zone, a second earlier
PID = 4000
MAIN, BACKWARD = 1, 2
Rows = dict[str, list[dict[str, Any]]]


@dataclass
class Call:
    number: int  # record function, and the order of beginnings
    name: str
    thread: int
    start: int
    end: int
    parent: int
    seq: int
    shapes: str
    step: int
    ran_on: int  # thread in the profiler's eyes


@dataclass
class Run:
    """One process at work. Every call begins and ends a microsecond after what came before it."""

    first_number: int = 1
    calls: list[Call] = field(default_factory=list)
    now: int = 0
    open: dict[int, list[int]] = field(default_factory=dict)
    step_number: int = -1

    @contextmanager
    def call(self, name: str, thread: int = MAIN, seq: int = -1, shapes: str = "", ran_on: int = 0) -> Iterator[None]:
        around = self.open.setdefault(thread, [])
        number = self.first_number + len(self.calls)
        parent = around[-1] if around else 0
        made = Call(number, name, thread, self.tick(), 0, parent, seq, shapes, self.step_number, ran_on or thread)
        self.calls.append(made)
        around.append(number)
        yield
        around.pop()
        made.end = self.tick()

    def leaf(self, name: str, *, takes: int = 0, **more: Any) -> None:
        with self.call(name, **more):
            self.now += takes

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        self.step_number = number
        with self.call(f"ProfilerStep#{number}"):
            yield

    def tick(self) -> int:
        self.now += 1000
        return self.now


def training(n_steps: int = 3, *, is_numbered: bool = True, first_number: int = 1, n_layers: int = 3) -> Run:
    """Steps of a small model: forward on the main thread, backward on another."""
    run = Run(first_number)
    for number in range(n_steps):
        with run.step(number):
            for layer in range(n_layers):
                seq = (number * n_layers + layer) if is_numbered else -1
                with run.call("aten::linear", seq=seq):
                    run.leaf("aten::t")
                    run.leaf("aten::addmm", takes=5000)
            for layer in reversed(range(n_layers)):
                seq = (number * n_layers + layer) if is_numbered else -1
                with run.call("AddmmBackward0", thread=BACKWARD, seq=seq):
                    run.leaf("aten::mm", thread=BACKWARD)
            run.leaf("Optimizer.step#SGD.step")
    return run


def observed(calls: Iterable[Call], *, file_id: int = 1, rank: int = 0, has_ids: bool = True, **head: Any) -> Rows:
    """The execution trace of some calls. Node numbers have gaps, as tensors have numbers, too."""
    keys = {"file_id": file_id, "rank": rank}
    nodes: list[dict[str, Any]] = [{**keys, "node_id": 1, "name": "process", "kind": "process", "thread": 0}]
    calls = list(calls)
    known = {call.number for call in calls}
    for thread in sorted({call.thread for call in calls}):
        root = {"node_id": 1 + thread, "parent_id": 1, "name": "thread", "kind": "thread", "thread": thread}
        nodes.append({**keys, **root})
    for call in calls:
        parent = 100 + 3 * call.parent if call.parent in known else 1 + call.thread
        node: dict[str, Any] = {"node_id": 100 + 3 * call.number, "parent_id": parent, "name": call.name, "kind": "op"}
        node |= {"thread": call.thread, "seq_id": call.seq, "input_shapes": call.shapes or "[]"}
        nodes.append({**keys, **node, "record_id": call.number if has_ids else -1})
    trace = {"pid": PID, "recorded": RECORDED, "start_ms": 0, "finish_ms": 60_000, "n_nodes": len(nodes), **head}
    return {"et_traces": [{**keys, "has_record_ids": has_ids, **trace}], "et_nodes": nodes}


def profiled(
    calls: Sequence[Call], *, file_id: int = 0, rank: int = 0, ids: str = "same", pid: int = PID, shift_ns: int = 0
) -> Rows:
    """The profiler's trace of some calls; its numbers are the same, zero (no observer ran) or absent (older)."""
    keys = {"file_id": file_id, "rank": rank}
    ops: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for place, call in enumerate(calls):
        row: dict[str, Any] = {**keys, "name": call.name, "pid": pid, "tid": 7000 + call.ran_on, "step": call.step}
        row |= {"start_ns": EPOCH_NS + shift_ns + call.start, "duration_ns": call.end - call.start}
        row["record_id"] = {"same": call.number, "zero": 0, "absent": -1}[ids]
        if "#" in call.name or call.name.startswith("gloo:"):
            annotations.append({**row, "kind": "host", "annotation_id": place})
        else:
            ops.append({**row, "op_id": place, "sequence_number": call.seq, "input_dims": call.shapes})
    start, end = EPOCH_NS + shift_ns + calls[0].start, EPOCH_NS + shift_ns + max(call.end for call in calls)
    profile = {**keys, "source": "kineto", "start_ns": start, "end_ns": end, "n_ops": len(ops)}
    return {"profiles": [profile], "ops": ops, "annotations": annotations}


def trace_of(*parts: Rows) -> Trace:
    names = {name for part in parts for name in part}
    tables = {name: Table.from_rows(name, [row for part in parts for row in part.get(name, ())]) for name in names}
    return Trace(("made",), tables, makers=table_makers())


def pair_of(trace: Trace) -> dict[str, Any]:
    [row] = trace.table("et_pairs").rows()
    return row


def links_of(trace: Trace) -> dict[int, dict[str, Any]]:
    """By the number of the record function that observed() made the node of; the roots are left out."""
    return {(row["node_id"] - 100) // 3: row for row in trace.table("et_links").rows() if row["node_id"] > 100}


def found_calls(trace: Trace) -> dict[int, int]:
    """Linked nodes: the number of the call, and the place of the event among the calls that were profiled."""
    return {
        number: max(row["op_id"], row["annotation_id"])
        for number, row in links_of(trace).items()
        if row["how"] != "none"
    }
