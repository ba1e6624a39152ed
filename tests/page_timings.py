"""Hand-made tables of profiled and measured jobs, for the page's charts."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.model.finding import SCHEMA_NAME, Capture, Evidence, Finding, Report
from rankscope.model.tables import Array, Table, Trace

MS = 10**6
MARKUP = "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script>&lt;b&gt;\u202e"


def report(n_ranks: int = 4, *findings: Finding) -> Report:
    capture = Capture(("traces",), tuple(range(n_ranks)), n_ranks, {"kineto": n_ranks})
    return Report(SCHEMA_NAME, capture, findings, ())


def straggler(rank: int, late_steps: list[int], n_steps: int = 8) -> Finding:
    facts = {"late_steps": late_steps, "n_steps": n_steps}
    return Finding(
        code="S202",
        rule="late-rank",
        severity="warning",
        certainty="certain",
        title="late",
        ranks=(rank,),
        evidence=Evidence(facts=facts),
    )


def profiled(n_ranks: int, n_steps: int, slow: int = -1, *, has_device: bool = True, first_step: int = 1) -> Trace:
    """Steps of 100 ms: 60 of computation (on a slow rank 85), 30 (5) of communication, 10 of nothing."""
    rank, step = (each.ravel() for each in np.mgrid[0:n_ranks, first_step : first_step + n_steps])
    is_slow = rank == slow
    compute = np.where(is_slow, 85, 60) * MS
    zero = np.zeros(len(rank), np.int64)
    columns: dict[str, Array] = {
        "file_id": rank,
        "rank": rank,
        "step": step,
        "start_ns": step * 100 * MS,
        "duration_ns": zero + 100 * MS,
        "kernel_ns": compute if has_device else zero,
        "memcpy_ns": zero,
        "memset_ns": zero,
        "communication_ns": np.where(is_slow, 5, 30) * MS,
        "runtime_ns": zero,
        "data_loader_ns": zero,
        "cpu_ns": zero if has_device else compute,
        "other_ns": zero + 10 * MS,
        "device_busy_ns": compute if has_device else zero,
        "device_busy_pct": zero + 60.0,
    }
    profiles = [
        {"file_id": number, "rank": number, "source": "kineto", "n_kernels": 100 if has_device else 0}
        for number in range(n_ranks)
    ]
    tables = {"step_breakdown": Table("step_breakdown", columns), "profiles": Table.from_rows("profiles", profiles)}
    return Trace(("traces",), tables)


def with_tables(trace: Trace, **rows: list[dict[str, Any]]) -> Trace:
    trace.tables |= {name: Table.from_rows(name, each) for name, each in rows.items()}
    return trace


def measured(name: str, values: Array, *, has_steps: bool = True) -> Trace:
    """Values of a metric as ranks x steps, one every 100 ms."""
    n_ranks, n_steps = values.shape
    rows = [
        {
            "rank": rank,
            "step": step if has_steps else -1,
            "time_ns": 10**18 + step * 100 * MS,
            "name": name,
            "value": float(values[rank, step]),
        }
        for rank in range(n_ranks)
        for step in range(n_steps)
    ]
    return Trace(("traces",), {"metrics": Table.from_rows("metrics", rows)})
