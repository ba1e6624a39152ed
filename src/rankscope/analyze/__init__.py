"""Analyses: shared steps that yield tables, and rules that yield findings. `prepare` and `judge` run them all."""

from __future__ import annotations

from rankscope.analyze.judging import judge, run_rules
from rankscope.analyze.registry import RULES, Effect, Meanings, Rule, Skipped, find_rule, rule
from rankscope.analyze.stages import prepare, table_makers

__all__ = [
    "RULES",
    "Effect",
    "Meanings",
    "Rule",
    "Skipped",
    "find_rule",
    "judge",
    "prepare",
    "rule",
    "run_rules",
    "table_makers",
]
