"""What `make accuracy` counts: a small share of its cases, on seeds of its own, and what is counted of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyze.accuracy import CONDITIONS, HEALTHY, KINDS, all_rows, build, outcome, told
from analyze.cases import Expected
from rankscope import pipeline
from rankscope.model.finding import Report

FIRST_SEED = 1_000
# What a rank that leaves out five calls and more is blamed for is only measured yet: docs/accuracy.md says how often.
TESTED = tuple(kind for kind in KINDS if kind != "many")


def judged(name: str, seed: int, folder: Path) -> tuple[Expected, Report] | None:
    expected = build(name, seed, folder)
    return (expected, pipeline.diagnose(pipeline.load([folder]))) if expected is not None else None


@pytest.mark.slow
@pytest.mark.parametrize("kind", TESTED)
def test_no_innocent_is_accused_for_certain(kind: str, tmp_path: Path) -> None:
    """One job for each condition. How often verdicts are right is measured by `make accuracy` on many more."""
    wrong: list[str] = []
    for name, row in all_rows().items():
        if row.kind.name != kind:
            continue
        for seed in range(FIRST_SEED, FIRST_SEED + 6):
            case = judged(name, seed, tmp_path / name.replace("/", "_") / str(seed))
            if case is not None:
                result = outcome(*case)
                if result.get("certain") or result.get("alarm"):
                    wrong.append(f"{name} {seed}: {case[0].causes}, told: {told(case[1])}")
                break
    assert wrong == []


def test_every_condition_has_a_healthy_twin() -> None:
    rows = all_rows()
    assert {row.condition.name for row in rows.values() if row.kind.name == HEALTHY} == {*CONDITIONS} - {"yesterday"}


@pytest.mark.parametrize("seed", [70001, 70003])
def test_a_rank_dumped_before_its_first_call_of_a_group_is_not_stuck(seed: int, tmp_path: Path) -> None:
    """Defect: a healthy job, dumped rank after rank, got a certain error about the rank that was dumped first."""
    case = judged("healthy/in turn", seed, tmp_path)
    assert case is not None
    assert not outcome(*case)["alarm"]


def test_what_is_counted(tmp_path: Path) -> None:
    case = judged("size/jobs", FIRST_SEED, tmp_path)
    assert case is not None
    expected, report = case
    (ranks,) = (ranks for _, ranks in expected.causes)
    assert outcome(expected, report)["right"]
    other_rule = outcome(Expected((("collective-stalled", ranks),)), report)
    assert (other_rule["rank"], other_rule["wrong"], other_rule["certain"]) == (True, False, True)
    other_rank = outcome(Expected((("size-mismatch", (99,)),)), report)
    assert (other_rank["wrong"], other_rank["certain"]) == (True, True)
    one_of_two = outcome(Expected((*expected.causes, ("rank-stuck", (99,)))), report)
    assert (one_of_two["right"], one_of_two["wrong"]) == (False, True)
    assert outcome(Expected(), report) == {"alarm": True}
