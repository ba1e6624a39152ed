"""Analyses: shared steps that yield tables, and rules that yield findings."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from rankscope.analyze.measured import measured
from rankscope.analyze.registry import RULES, Effect, Rule, Skipped, find_rule, rule
from rankscope.analyze.skipping import why_skipped
from rankscope.model.finding import SEVERITIES, Check, Finding
from rankscope.model.tables import Trace

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
        "hangs.outside",
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
        "compile.bypasses",
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

_ALWAYS_LOGGED = {"compilations", "recompiles", "graph_breaks", "compile_errors", "cache_events", "guards"}
_ABOUT_TIME = "SP"  # families of rules that do not look at steps which the observer slowed down
_FAMILIES = "HXSPCLD"  # the order of equally severe findings: hangs first, holes in the data last


def run_rules(
    trace: Trace, progress: Callable[[int, int, str], None] | None = None
) -> tuple[list[Finding], list[Finding], list[Check]]:
    """Findings with the root cause first, their effects, and which rules could be checked."""
    findings: list[Finding] = []
    effects: list[Finding] = []
    checks: list[Check] = []
    for done, rule_ in enumerate(sorted(RULES.values(), key=lambda rule: rule.code)):
        if progress is not None:
            progress(done, len(RULES), f"checking {rule_.name}")
        seen = measured(trace) if rule_.code[0] in _ABOUT_TIME else trace
        absent = [table for table in rule_.needs if not (seen.has(table) or _is_known_empty(seen, table))]
        if absent:
            checks.append(Check(rule_.name, "skipped", why_skipped(seen, absent[0])))
            continue
        checks.append(Check(rule_.name, "ran"))
        for result in rule_.function(seen):
            if isinstance(result, Effect):
                effects.append(result.finding)
            elif isinstance(result, Skipped):
                checks[-1] = Check(rule_.name, "skipped", result.why)
            else:
                findings.append(result)
    findings.sort(key=importance)  # stable: rules are in order of their codes
    return findings, effects, checks


def _is_known_empty(trace: Trace, table: str) -> bool:
    """True when a TORCH_TRACE log was read: it would have recorded any, so no rows means that nothing happened."""
    return table in _ALWAYS_LOGGED and bool(trace.table("compile_logs").text("source").equals("trace").any())


def importance(finding: Finding) -> tuple[int, int, int, float, int]:
    family = _FAMILIES.find(finding.code[:1]) % (len(_FAMILIES) + 1)
    cost = finding.evidence
    n_blocked = -(cost.n_blocked or 0) if finding.code[:1] == "H" else 0
    return SEVERITIES.index(finding.severity), family, n_blocked, -(cost.cost_pct or 0), -(cost.cost_ns or 0)
