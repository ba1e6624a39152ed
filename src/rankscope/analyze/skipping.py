"""Why a check could not run: what to collect for the table it needs, or that there was nothing to collect."""

from __future__ import annotations

from rankscope.analyze.manifests import asked_for
from rankscope.model.schema_compile import COMPILE_TABLES
from rankscope.model.tables import SCHEMA, Trace

_COMPILE_TABLES = {table.name for table in COMPILE_TABLES}
_NO_DUMPS = "no Flight Recorder dumps in this capture"
_NO_LOGS = "no torch.compile logs in this capture: record with TORCH_TRACE=FOLDER"
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
    "python_calls": "no Python calls: profile with with_stack=True, and read with --stacks",
    "compile_collectives": "no collective schedules in the logs: none were compiled, or torch is older than 2.8",
    "compile_estimates": "no runtime estimates in the logs: run with LOG_TLPARSE=1",
    "graph_executions": "no execution order in the logs: run under "
    "torch._inductor.debug.record_and_log_graph_execution_order()",
    "compile_ledger": "no compile times in the logs: record with TORCH_TRACE=FOLDER",
    "compilations": "no compilations in this log: run with TORCH_TRACE=FOLDER",
    "recompiles": "no recompilations in this log: run with TORCH_LOGS=recompiles, or TORCH_TRACE=FOLDER",
    "graph_breaks": "no graph breaks in this log: run with TORCH_LOGS=graph_breaks, or TORCH_TRACE=FOLDER",
    "cache_events": "no cache lookups in this log: run with TORCH_TRACE=FOLDER",
    "guards": "no symbolic shapes in this log: run with TORCH_LOGS=dynamic, or TORCH_TRACE=FOLDER",
    "compile_errors": "no compiler errors in this log",
    "log_lines": "no TORCH_LOGS output in this capture",
    "thread_stacks": "no thread stacks in this capture: record with `rankscope record`, or with py-spy dump",
    "metrics": "no metrics in this capture: record with `rankscope record`",
    "manifests": "no manifest in this capture: it was not made by `rankscope record`",
}
# Setting of the collector -> what it means when it was on, left nothing, and nothing failed.
_NOTHING_CAME = {
    "compile_log": "nothing was compiled",
    "recorder": "the Flight Recorder was on, but the job made no call that it records",
    "stacks": "no thread stacks: they are written when a job hangs or fails, or on request",
}
_SETTING_OF = {_NO_DUMPS: "recorder", _NO_LOGS: "compile_log", _WHY_ABSENT["thread_stacks"]: "stacks"}
# The same advice for those who record with the collector.
_TO_RECORD = {
    "kernels": "no device events: the job used no device, or one that torch's profiler does not see",
    "runtime_calls": "no device events: the job used no device, or one that torch's profiler does not see",
    "memory": "no allocations: record with `rankscope record --memory`",
    "python_calls": "no Python calls: record with `rankscope record --with-stack`, and read with --stacks",
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
    """Every rank was asked for it, none had a problem with it, and none lists a file of it (which would be lost)."""
    reported = (trace.table(name).text("what") for name in ("collection_problems", "collected_files"))
    if any(what.equals(setting).any() for what in reported):
        return False
    return all(asked_for(row).get(setting) is True for row in trace.table("manifests").rows())
