"""Runs all rules over a capture: the first finding is the root cause."""

from __future__ import annotations

from collections.abc import Callable

from rankscope.analyze.covered import describe_capture, describe_worlds
from rankscope.analyze.measured import measured
from rankscope.analyze.registry import RULES, Effect, Skipped
from rankscope.analyze.skipping import why_skipped
from rankscope.model.finding import SCHEMA_NAME, SEVERITIES, Check, Finding, Report
from rankscope.model.tables import SCHEMA, Trace

_ABOUT_TIME = "SP"  # families of rules that do not look at steps which the observer slowed down
_FAMILIES = "HXSPCLD"  # the order of equally severe findings: hangs first, holes in the data last
Progress = Callable[[int, int, str], None]


def judge(trace: Trace, progress: Progress | None = None) -> Report:
    """What all rules say. Worlds that were alive side by side are all judged."""
    if not trace.beside:
        findings, effects, checks = run_rules(trace, progress)
        return Report(SCHEMA_NAME, describe_capture(trace), tuple(findings), tuple(checks), tuple(effects))
    from rankscope.analyze.worlds import Judged, merge_worlds

    worlds = [Judged(world, *run_rules(world, progress)) for world in (trace, *trace.beside)]
    findings, effects, checks = merge_worlds(worlds)
    shown = findings[0].evidence.capture if findings else None
    capture = describe_worlds([world.trace for world in worlds], shown)
    return Report(SCHEMA_NAME, capture, tuple(findings), tuple(checks), tuple(effects))


def run_rules(trace: Trace, progress: Progress | None = None) -> tuple[list[Finding], list[Finding], list[Check]]:
    """Findings with the root cause first, their effects, and which rules could be checked."""
    findings: list[Finding] = []
    effects: list[Finding] = []
    checks: list[Check] = []
    for done, rule in enumerate(sorted(RULES.values(), key=lambda rule: rule.code)):
        if progress is not None:
            progress(done, len(RULES), f"checking {rule.name}")
        seen = measured(trace) if rule.code[0] in _ABOUT_TIME else trace
        absent = [table for table in rule.needs if not (seen.has(table) or _is_known_empty(seen, table))]
        if absent:
            checks.append(Check(rule.name, "skipped", why_skipped(seen, absent[0])))
            continue
        checks.append(Check(rule.name, "ran"))
        for result in rule.function(seen):
            if isinstance(result, Effect):
                effects.append(result.finding)
            elif isinstance(result, Skipped):
                checks[-1] = Check(rule.name, "skipped", result.why)
            else:
                findings.append(result)
    findings.sort(key=importance)  # stable: rules are in order of their codes
    return findings, effects, checks


def _is_known_empty(trace: Trace, table: str) -> bool:
    """True when a TORCH_TRACE log was read: it would have recorded any, so no rows means that nothing happened."""
    is_logged = SCHEMA[table].missing.is_always_logged
    return is_logged and bool(trace.table("compile_logs").text("source").equals("trace").any())


def importance(finding: Finding) -> tuple[int, int, int, float, int]:
    family = _FAMILIES.find(finding.code[:1]) % (len(_FAMILIES) + 1)
    cost = finding.evidence
    n_blocked = -(cost.n_blocked or 0) if finding.code[:1] == "H" else 0
    return SEVERITIES.index(finding.severity), family, n_blocked, -(cost.cost_pct or 0), -(cost.cost_ns or 0)
