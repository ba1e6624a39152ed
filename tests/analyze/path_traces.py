"""Small profiler traces made by hand: times in microseconds, on the clock of each rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rankscope.analyze import table_makers
from rankscope.model.tables import Table, Trace

BASE_NS = 1_700_000_000_000_000_000
MAIN, BACKWARD = 100, 101
COMPUTE, NCCL = 7, 20


def ns(microseconds: float) -> int:
    return BASE_NS + round(microseconds * 1000)


class Process:
    """One traced process. What is launched gets a runtime call of 5 us, unless told otherwise."""

    def __init__(self, rank: int, file_id: int | None = None) -> None:
        self.keys = {"file_id": rank if file_id is None else file_id, "rank": rank}
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.n_ids = 0

    def add(self, table: str, start: float, end: float, **columns: Any) -> None:
        row = {**self.keys, "start_ns": ns(start), "duration_ns": ns(end) - ns(start), **columns}
        self.rows.setdefault(table, []).append(row)

    def number(self) -> int:
        self.n_ids += 1
        return self.n_ids

    def op(self, name: str, start: float, end: float, tid: int = MAIN, **columns: Any) -> None:
        self.add("ops", start, end, op_id=self.number(), name=name, tid=tid, **columns)

    def annotation(self, name: str, start: float, end: float, tid: int = MAIN) -> None:
        self.add("annotations", start, end, name=name, kind="host", tid=tid)

    def step(self, number: int, start: float, end: float) -> None:
        self.add("steps", start, end, step=number, name=f"ProfilerStep#{number}", tid=MAIN)

    def call(self, name: str, start: float, end: float, tid: int = MAIN) -> int:
        """Returns the correlation."""
        number = self.number()
        self.add("runtime_calls", start, end, call_id=number, correlation=number, name=name, kind="runtime", tid=tid)
        return number

    def kernel(
        self, name: str, start: float, end: float, launch: float | None = None, stream: int = COMPUTE, **columns: Any
    ) -> int:
        """Returns the kernel's number. Without a launch, that is not in the trace."""
        row: dict[str, Any] = {"kind": "kernel", "type": "computation", "device": 0, "step": -1, **columns}
        tid, launch_end = row.pop("tid", MAIN), row.pop("launch_end", None if launch is None else launch + 5)
        number = self.number()
        if launch is not None:
            correlation = self.call("cudaLaunchKernel", launch, launch_end, tid)
            row |= {"launch_start_ns": ns(launch), "launch_end_ns": ns(launch_end), "launch_tid": tid}
            row |= {"correlation": correlation, "call_id": correlation}
        self.add("kernels", start, end, kernel_id=number, name=name, stream=stream, **row)
        return number

    def collective(
        self, match: int, start: float, end: float, launch: float | None = None, stream: int = NCCL, **columns: Any
    ) -> None:
        """A collective on the device, part of the logical one with this number (-1: not known)."""
        op, step = columns.pop("op", "all_reduce"), columns.pop("step", -1)
        number = self.kernel("ncclDevKernel", start, end, launch, stream, type="communication", step=step, **columns)
        self.describe(match, start, end, op=op, kernel_id=number, stream=stream, step=step)

    def describe(self, match: int, start: float, end: float, **columns: Any) -> None:
        is_p2p = columns["op"] in ("send", "recv")
        comm_id = self.number()
        self.add("comms", start, end, comm_id=comm_id, is_p2p=is_p2p, n_bytes=1024, **columns)
        self.rows.setdefault("comm_calls", []).append({**self.keys, "comm_id": comm_id, "match_id": match})

    def event_wait(self, stream: int, awaited_stream: int, recorded: float, told: float) -> None:
        """The stream was told to wait for an event that had been recorded on another one."""
        record = self.call("cudaEventRecord", recorded, recorded + 1)
        wait = self.call("cudaStreamWaitEvent", told, told + 1)
        columns = {"kind": "stream-wait", "stream": stream, "wait_on_stream": awaited_stream}
        self.add("syncs", told, told + 1, device=0, correlation=wait, wait_on_call=record, **columns)

    def synchronize(self, start: float, end: float, name: str = "cudaStreamSynchronize", tid: int = MAIN) -> None:
        self.call(name, start, end, tid)


def trace_of(*processes: Process, clocks: Sequence[dict[str, Any]] = ()) -> Trace:
    """`clocks` are rows of profile_clocks; without any the clocks agree."""
    rows: dict[str, list[dict[str, Any]]] = {"comm_calls": [], "comm_matches": [], "comm_groups": []}
    for process in processes:
        for name, own in process.rows.items():
            rows.setdefault(name, []).extend(own)
        rows.setdefault("profiles", []).append({**process.keys, "device_type": "cuda", "source": "kineto"})
    matches = {row["match_id"] for row in rows["comm_calls"]} - {-1}
    rows["comm_matches"] = [{"match_id": match, "op": "any", "n_bytes": 1024} for match in sorted(matches)]
    rows["profile_clocks"] = list(clocks)
    tables = {name: Table.from_rows(name, own) for name, own in rows.items()}
    return Trace(("hand-made",), tables, makers=table_makers())
