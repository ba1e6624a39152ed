"""What has to be recorded for a metric."""

from __future__ import annotations

from collections.abc import Iterable

# What a table is recorded by: said where a capture lacks it.
RECORDED_BY = {
    "profiles": "a trace of torch.profiler or Nsight Systems",
    "kernels": "torch.profiler with ProfilerActivity.CUDA (or XPU) among its activities",
    "runtime_calls": "torch.profiler with ProfilerActivity.CUDA (or XPU) among its activities",
    "ops": "torch.profiler with ProfilerActivity.CPU among its activities",
    "steps": "schedule=torch.profiler.schedule(...) and prof.step() after every step",
    "memory": "profile_memory=True",
    "python_calls": "with_stack=True, and reading with --stacks",
    "counters": "experimental_config=_ExperimentalConfig(profiler_metrics=[...])",
    "syncs": "experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True)",
    "annotations": "torch.profiler.record_function around what is to be told apart",
    "comms": "a job with collectives; their sizes with record_shapes=True",
    "flows": "a backward pass in the recorded steps",
    "metrics": "rankscope record, or logs of TensorBoard, Weights & Biases, CSV or JSON lines beside the traces",
}


def how_to_record(tables: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(RECORDED_BY.get(table, f"data for the table {table}") for table in tables))
