"""Analyses: shared steps that yield tables, and rules that yield findings."""

from __future__ import annotations

from importlib import import_module

from rankscope.analyze.measured import measured
from rankscope.analyze.registry import RULES, Effect, Rule, Skipped, find_rule, rule
from rankscope.model.finding import SEVERITIES, Check, Finding
from rankscope.model.schema_compile import COMPILE_TABLES
from rankscope.model.tables import SCHEMA, Trace

__all__ = ["RULES", "Effect", "Rule", "Skipped", "find_rule", "rule", "run_rules"]

RULE_MODULES = tuple(
    import_module(f"rankscope.analyze.{name}")
    for name in (
        "hangs.mismatch",
        "hangs.skipped",
        "hangs.stuck",
        "hangs.deadlock",
        "hangs.group_order",
        "hangs.late",
        "hangs.straggler",
        "hangs.holes",
        "hangs.elsewhere",
        "hangs.raised",
        "device.host_late",
        "device.exposed",
        "device.loading",
        "device.copies",
        "device.memory",
        "device.kernels",
        "host.rules",
        "whatif.rules",
        "comm.holes",
        "comm.late",
        "comm.traffic",
        "compile.recompiles",
        "compile.breaks",
        "compile.failures",
        "compile.caches",
        "compile.costs",
        "compile.graph_rules",
        "compile.rank_rules",
        "compile.skew",
        "compile.stalls",
        "compile.perf_hints",
        "training.losses",
        "training.speed",
        "training.growth",
        "link.rules",
        "collection",
    )
)

# What gives a table that a rule misses: said where a check could not be made.
_NO_DUMPS = "no Flight Recorder dumps in this capture"
_NO_LOGS = "no logs of torch.compile in this capture: record with TORCH_TRACE=FOLDER"
_NO_EXECUTION = "no execution traces in this capture"
_NO_DEVICE = "no device events: profile with ProfilerActivity.CUDA"
_WHY_ABSENT = {
    **dict.fromkeys(("ranks", "groups", "collectives", "matches"), _NO_DUMPS),
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
_ALWAYS_LOGGED = {"compilations", "recompiles", "graph_breaks", "compile_errors", "cache_events", "guards"}
_COMPILE_TABLES = {table.name for table in COMPILE_TABLES}
_ABOUT_TIME = "SP"  # families of rules that do not look at steps which the observer slowed down
_FAMILIES = "HXSPCLD"  # in which order what is equally severe is told: hangs first, holes in the data last


def run_rules(trace: Trace) -> tuple[list[Finding], list[Finding], list[Check]]:
    """Findings with the root cause first, their effects, and which rules could be checked."""
    findings: list[Finding] = []
    effects: list[Finding] = []
    checks: list[Check] = []
    for rule_ in sorted(RULES.values(), key=lambda rule: rule.code):
        seen = measured(trace) if rule_.code[0] in _ABOUT_TIME else trace
        absent = [table for table in rule_.needs if not (seen.has(table) or _is_known_empty(seen, table))]
        if absent:
            checks.append(Check(rule_.name, "skipped", _why_skipped(seen, absent[0])))
            continue
        checks.append(Check(rule_.name, "ran"))
        for result in rule_.function(seen):
            if isinstance(result, Effect):
                effects.append(result.finding)
            elif isinstance(result, Skipped):
                checks[-1] = Check(rule_.name, "skipped", result.why)
            else:
                findings.append(result)
    findings.sort(key=_importance)  # stable: rules are in order of their codes
    return findings, effects, checks


def _is_known_empty(trace: Trace, table: str) -> bool:
    """True when a log of torch.compile would have told: then no row means that there was nothing to tell."""
    return table in _ALWAYS_LOGGED and bool(trace.table("compile_logs").text("source").equals("trace").any())


def _why_skipped(trace: Trace, table: str) -> str:
    if table in _COMPILE_TABLES:
        return _WHY_ABSENT.get(table, f"no {table} in the logs") if trace.has("compile_logs") else _NO_LOGS
    is_profiled = trace.has("profiles")
    if SCHEMA[table].storage != "memory" or table == "profiles":
        return (
            _WHY_ABSENT.get(table, f"no {table} in the traces") if is_profiled else "no profiler traces in this capture"
        )
    return _WHY_ABSENT.get(table, f"no data for the table {table} in this capture")


def _importance(finding: Finding) -> tuple[int, int, int, float, int]:
    family = _FAMILIES.find(finding.code[:1]) % (len(_FAMILIES) + 1)
    cost = finding.evidence
    n_blocked = -(cost.n_blocked or 0) if finding.code[:1] == "H" else 0
    return SEVERITIES.index(finding.severity), family, n_blocked, -(cost.cost_pct or 0), -(cost.cost_ns or 0)
