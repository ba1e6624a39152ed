"""Analyses: shared steps that yield tables, and rules that yield findings."""

from __future__ import annotations

from rankscope.analyze import deadlock, holes, late, mismatch, skipped, straggler, stuck
from rankscope.analyze.registry import RULES, Effect, Rule, find_rule, rule
from rankscope.model.finding import SEVERITIES, Check, Finding
from rankscope.model.tables import Trace

__all__ = ["RULES", "Effect", "Rule", "find_rule", "rule", "run_rules"]

RULE_MODULES = (mismatch, skipped, stuck, deadlock, late, straggler, holes)

# What gives a table that a rule misses: said where a check could not be made.
_SOURCE_OF_TABLE = {
    "collectives": "Flight Recorder dumps",
    "matches": "Flight Recorder dumps",
}


def run_rules(trace: Trace) -> tuple[list[Finding], list[Finding], list[Check]]:
    """Findings with the root cause first, their effects, and which rules could be checked."""
    findings: list[Finding] = []
    effects: list[Finding] = []
    checks: list[Check] = []
    for rule_ in sorted(RULES.values(), key=lambda rule: rule.code):
        absent = [table for table in rule_.needs if not trace.has(table)]
        if absent:
            wanted = _SOURCE_OF_TABLE.get(absent[0], f"data for the table {absent[0]}")
            checks.append(Check(rule_.name, "skipped", f"no {wanted} in this capture"))
            continue
        checks.append(Check(rule_.name, "ran"))
        for result in rule_.function(trace):
            if isinstance(result, Effect):
                effects.append(result.finding)
            else:
                findings.append(result)
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))  # stable: rules are in order of their codes
    return findings, effects, checks
