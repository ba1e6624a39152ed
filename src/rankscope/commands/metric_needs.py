"""What has to be recorded for a metric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankscope.analyze.metric import Metric
    from rankscope.model.tables import Trace

# How to get rows in a table, or what a metric looks for: said where a capture has none. Each follows "record with".
RECORDED_BY = {
    "profiles": "torch.profiler or Nsight Systems",
    "kernels": "torch.profiler and ProfilerActivity.CUDA (or XPU)",
    "runtime_calls": "torch.profiler and ProfilerActivity.CUDA (or XPU)",
    "ops": "torch.profiler and ProfilerActivity.CPU",
    "steps": "schedule=torch.profiler.schedule(...), and call prof.step() after every step",
    "memory": "profile_memory=True",
    "python_calls": "with_stack=True, and read with --stacks",
    "counters": "experimental_config=_ExperimentalConfig(profiler_metrics=[...])",
    "syncs": "experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True)",
    "annotations": "torch.profiler.record_function around the code you want to measure",
    "comms": "torch.profiler in a job with collectives; record_shapes=True adds their sizes",
    "flows": "a backward pass in the recorded steps",
    "metrics": "rankscope record, or put TensorBoard, Weights & Biases, CSV or JSON-lines logs beside the traces",
    "modules": "with_stack=True and read with --stacks, or name modules with torch.profiler.record_function",
    "bubbles": "torch.profiler in a job with pipeline parallelism",
}


def how_to_record(tables: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(RECORDED_BY.get(table, f"data for the table {table}") for table in tables))


def all_metrics() -> Mapping[str, Metric]:
    from rankscope.analyze.metric import METRICS

    return METRICS


def absent_tables(trace: Trace, metric: Metric) -> list[str]:
    """The tables without rows that a metric needs. Derived ones are not computed for that: what they need counts."""
    makers = {other.table: other for other in all_metrics().values()}
    absent: list[str] = []
    for table in metric.needs:
        if table in makers and table not in trace.tables:
            absent += absent_tables(trace, makers[table])
        elif not trace.has(table):
            absent.append(table)
    return list(dict.fromkeys(absent))
