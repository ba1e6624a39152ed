"""Why a check could not be made: what gives the table that it misses, or that there was nothing to collect."""

from __future__ import annotations

from rankscope.analyze.manifests import asked_for
from rankscope.model.schema_compile import COMPILE_TABLES
from rankscope.model.tables import SCHEMA, Trace

_COMPILE_TABLES = {table.name for table in COMPILE_TABLES}
_NO_DUMPS = "no Flight Recorder dumps in this capture"
_NO_LOGS = "no logs of torch.compile in this capture: record with TORCH_TRACE=FOLDER"
_NO_EXECUTION = "no execution traces in this capture"
_NO_DEVICE = "no device events: profile with ProfilerActivity.CUDA"
_WHY_ABSENT = {
    **dict.fromkeys(("ranks", "groups", "group_config", "collectives", "matches"), _NO_DUMPS),
    **dict.fromkeys(("kernels", "runtime_calls"), _NO_DEVICE),
    "et_traces": _NO_EXECUTION,
    "et_collectives": "no collectives in the execution traces",
    "memory": "no allocations: profile with profile_memory=True",
    "comms": "no collectives in the traces",
    "steps": "no steps: call profiler.step() after each one",
    "python_calls": "no Python functions: profile with with_stack=True, and read with --stacks",
    "compile_collectives": "no collective schedules in the logs: none was compiled, or torch is older than 2.8",
    "compile_estimates": "no estimates in the logs: run with LOG_TLPARSE=1",
    "graph_executions": "no order of execution in the logs: run under "
    "torch._inductor.debug.record_and_log_graph_execution_order()",
    "compile_ledger": "no times of compilations in the logs: record with TORCH_TRACE=FOLDER",
    "compilations": "the text tells no compilation: run with TORCH_TRACE=FOLDER",
    "recompiles": "the text tells no recompilation: run with TORCH_LOGS=recompiles, or TORCH_TRACE=FOLDER",
    "graph_breaks": "the text tells no graph break: run with TORCH_LOGS=graph_breaks, or TORCH_TRACE=FOLDER",
    "cache_events": "text has no look-ups in caches: run with TORCH_TRACE=FOLDER",
    "guards": "the text tells no symbolic shape: run with TORCH_LOGS=dynamic, or TORCH_TRACE=FOLDER",
    "compile_errors": "the text tells no error of the compiler",
    "log_lines": "no text of TORCH_LOGS in this capture",
    "thread_stacks": "no stacks of threads in this capture: record with `rankscope record`, or with py-spy dump",
    "metrics": "no metrics in this capture: record with `rankscope record`",
    "manifests": "no manifest in this capture: it was not made by `rankscope record`",
}
# What the collector was asked for, by its setting -> what it means that nothing of it is there and nothing failed.
_NOTHING_CAME = {
    "compile_log": "nothing was compiled",
    "recorder": "the Flight Recorder was on, and the job made no call that it keeps",
    "stacks": "no stacks of threads: they are written when a job hangs, fails or is asked for them",
}
_SETTING_OF = {_NO_DUMPS: "recorder", _NO_LOGS: "compile_log", _WHY_ABSENT["thread_stacks"]: "stacks"}
# The same advice for those who record with the collector.
_TO_RECORD = {
    "kernels": "no device events: the job used no device, or one that torch's profiler does not see",
    "runtime_calls": "no device events: the job used no device, or one that torch's profiler does not see",
    "memory": "no allocations: rankscope record --memory",
    "python_calls": "no Python functions: rankscope record --with-stack, and read with --stacks",
    "steps": "no training step was profiled",
}


def why_skipped(trace: Trace, table: str) -> str:
    why = _why_absent(trace, table)
    if not trace.has("manifests"):
        return why
    setting = _SETTING_OF.get(why)
    if setting is not None:
        return _NOTHING_CAME[setting] if _was_collected(trace, setting) else why
    return _TO_RECORD.get(table, why) if trace.has("profiles") else why


def _why_absent(trace: Trace, table: str) -> str:
    if table in _COMPILE_TABLES:
        return _WHY_ABSENT.get(table, f"no {table} in the logs") if trace.has("compile_logs") else _NO_LOGS
    is_profiled = trace.has("profiles")
    if SCHEMA[table].storage != "memory" or table == "profiles":
        return (
            _WHY_ABSENT.get(table, f"no {table} in the traces") if is_profiled else "no profiler traces in this capture"
        )
    return _WHY_ABSENT.get(table, f"no data for the table {table} in this capture")


def _was_collected(trace: Trace, setting: str) -> bool:
    """Every rank was asked for it, and none had a problem with it or has a file of it, which got lost then."""
    told = (trace.table(name).text("what") for name in ("collection_problems", "collected_files"))
    if any(what.equals(setting).any() for what in told):
        return False
    return all(asked_for(row).get(setting) is True for row in trace.table("manifests").rows())
