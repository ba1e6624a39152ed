"""Events of traced processes made by hand, for the analyses of the host. Times are microseconds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankscope.analyze import table_makers
from rankscope.analyze.metric import METRICS, Selection
from rankscope.model.tables import Table, Trace

SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "samples" / "kineto"
MAIN, BACKWARD = 1, 2
EPOCH_NS = 1_700_000_000 * 10**9


class Process:
    """One traced process. The methods return the number of what they add."""

    def __init__(self, rank: int = 0, file_id: int | None = None) -> None:
        self.keys = {"rank": rank, "file_id": rank if file_id is None else file_id}
        self.rows: dict[str, list[dict[str, Any]]] = {}

    def _add(self, table: str, start: float, end: float, **columns: Any) -> int:
        rows = self.rows.setdefault(table, [])
        times = {"start_ns": EPOCH_NS + round(start * 1000), "duration_ns": round((end - start) * 1000)}
        rows.append({**self.keys, **times, **columns})
        return len(rows) - 1

    def step(self, step: int, start: float, end: float) -> None:
        self._add("steps", start, end, step=step, name=f"ProfilerStep#{step}", tid=MAIN)

    def op(self, name: str, start: float, end: float, tid: int = MAIN, **more: Any) -> int:
        number = len(self.rows.get("ops", ()))
        return self._add("ops", start, end, **{"op_id": number, "name": name, "tid": tid, **more})

    def call(self, name: str, start: float, end: float, tid: int = MAIN, **more: Any) -> int:
        number = len(self.rows.get("runtime_calls", ()))
        columns = {"call_id": number, "correlation": number + 1, "name": name, "tid": tid, "kind": "runtime", **more}
        return self._add("runtime_calls", start, end, **columns)

    def kernel(self, name: str, start: float, end: float, call: int | None = None, **more: Any) -> int:
        """Launched by a call; what the call knows (thread, times, step) the kernel knows."""
        linked = {}
        if call is not None:
            row = self.rows["runtime_calls"][call]
            linked = {"call_id": call, "launch_tid": row["tid"], "launch_start_ns": row["start_ns"]}
            linked["launch_end_ns"] = row["start_ns"] + row["duration_ns"]
            linked |= {key: row[key] for key in ("correlation", "step") if key in row}
        number = len(self.rows.get("kernels", ()))
        columns = {"kernel_id": number, "name": name, "kind": "kernel", "type": "computation", "device": 0, "stream": 7}
        return self._add("kernels", start, end, **{**columns, **linked, **more})

    def launch(self, launch: tuple[float, float], run: tuple[float, float], **more: Any) -> int:
        """A call that launches one kernel, and that kernel. Returns the kernel."""
        step = {"step": more["step"]} if "step" in more else {}
        call = self.call(more.pop("call", "cudaLaunchKernel"), *launch, tid=more.pop("tid", MAIN), **step)
        return self.kernel(more.pop("name", "kernel"), *run, call, **more)

    def annotation(self, name: str, start: float, end: float, tid: int = MAIN) -> None:
        self._add("annotations", start, end, name=name, kind="host", tid=tid)

    def python(self, name: str, start: float, end: float, tid: int = MAIN) -> None:
        self._add("python_calls", start, end, name=name, tid=tid)


def capture(*processes: Process) -> Trace:
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for process in processes:
        for name, added in process.rows.items():
            rows.setdefault(name, []).extend(added)
        rows.setdefault("profiles", []).append(process.keys)
    trace = Trace(("made by hand",), {name: Table.from_rows(name, added) for name, added in rows.items()})
    trace.makers = table_makers()
    return trace


def measure(trace: Trace, name: str, selection: Selection | None = None, **settings: Any) -> list[dict[str, Any]]:
    chosen = selection or Selection(settings=settings)
    return list(METRICS[name].compute(trace, chosen).rows())
