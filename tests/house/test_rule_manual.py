"""A rule's docstring is its manual page: `rankscope explain CODE` and docs/rules show nothing else."""

from __future__ import annotations

import re

import pytest

from rankscope.analyze import RULES, Rule
from rankscope.model.tables import SCHEMA

SECTIONS = ("What it means", "Why it happens", "What to do", "What could fool it")
ALL_RULES = pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.code)


def test_codes_and_names_are_unique_and_well_formed() -> None:
    assert RULES
    names = [rule.name for rule in RULES.values()]
    assert len(set(names)) == len(names)
    for code, rule in RULES.items():
        assert code == rule.code
        assert re.fullmatch(r"[HSPCLXD]\d{3}", code)
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name), code


def test_names_that_the_outside_relies_on_are_there() -> None:
    hangs = {"rank-lost", "rank-stuck", "op-mismatch", "size-mismatch", "dtype-mismatch", "call-skipped"}
    hangs |= {"order-deadlock", "p2p-unmatched", "collective-stalled", "straggler"}
    assert hangs <= {rule.name for rule in RULES.values()}


@ALL_RULES
def test_manual_has_all_sections_in_order(rule: Rule) -> None:
    summary, *parts = re.split(rf"(?m)^({'|'.join(SECTIONS)}):", rule.doc)
    assert tuple(parts[0::2]) == SECTIONS
    assert all(len(text.split()) >= 3 for text in parts[1::2])
    assert len(summary.strip().splitlines()) == 1
    assert summary.strip().endswith(".")


@ALL_RULES
def test_rule_needs_tables_that_exist(rule: Rule) -> None:
    assert set(rule.needs) <= set(SCHEMA)
