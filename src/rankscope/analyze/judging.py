"""Runs all rules over a capture: the first finding is the root cause."""

from __future__ import annotations

from collections.abc import Callable

from rankscope.analyze.covered import describe_capture, describe_worlds
from rankscope.analyze.log_evidence import join_logs
from rankscope.analyze.measured import measured
from rankscope.analyze.merging import merge
from rankscope.analyze.registry import RULES, Effect, Result, Rule, Skipped
from rankscope.analyze.settling import settle
from rankscope.analyze.skipping import why_skipped
from rankscope.errors import RankscopeError
from rankscope.model.border import bug_text, bugs_are_raised
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
        try:
            results, check = _run_rule(rule, trace)
        except RankscopeError:
            raise
        except Exception as error:  # a bug of ours, or in a plug-in: it costs this rule
            if bugs_are_raised():
                raise
            results, check = [], Check(rule.name, "failed", bug_text(error))
        checks.append(check)
        effects += [result.finding for result in results if isinstance(result, Effect)]
        findings += [result for result in results if isinstance(result, Finding)]
    findings, settled = settle(findings)
    findings, explained = join_logs(findings)
    findings, same = merge(findings)
    effects += [*settled, *explained, *same]
    findings.sort(key=importance)  # stable: rules are in order of their codes
    return findings, effects, [*checks, *trace.failed]


def _run_rule(rule: Rule, trace: Trace) -> tuple[list[Result], Check]:
    seen = measured(trace) if rule.code[0] in _ABOUT_TIME else trace
    absent = [table for table in rule.needs if not (seen.has(table) or _is_known_empty(seen, table))]
    if absent:
        return [], Check(rule.name, "skipped", why_skipped(seen, absent[0]))
    results = list(rule.function(seen))
    skipped = [result.why for result in results if isinstance(result, Skipped)]
    return results, Check(rule.name, "skipped", skipped[-1]) if skipped else Check(rule.name, "ran")


def _is_known_empty(trace: Trace, table: str) -> bool:
    """True when a TORCH_TRACE log was read: it would have recorded any, so no rows means that nothing happened."""
    is_logged = SCHEMA[table].missing.is_always_logged
    return is_logged and bool(trace.table("compile_logs").text("source").equals("trace").any())


def importance(finding: Finding) -> tuple[int, int, int, float, int]:
    family = _FAMILIES.find(finding.code[:1]) % (len(_FAMILIES) + 1)
    cost = finding.evidence
    n_blocked = -(cost.n_blocked or 0) if finding.code[:1] == "H" else 0
    return SEVERITIES.index(finding.severity), family, n_blocked, -(cost.cost_pct or 0), -(cost.cost_ns or 0)
