"""What `make accuracy` counts: a small share of its cases, on seeds of its own, and what is counted of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyze.accuracy import CONDITIONS, HEALTHY, KINDS, all_rows, build, outcome, told
from analyze.cases import Expected
from rankscope import pipeline
from rankscope.model.finding import Report

FIRST_SEED = 1_000


def judged(name: str, seed: int, folder: Path) -> tuple[Expected, Report] | None:
    expected = build(name, seed, folder)
    return (expected, pipeline.diagnose(pipeline.load([folder]))) if expected is not None else None


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
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


@pytest.mark.parametrize("seed", [70001, 70003, 90003])
def test_a_rank_dumped_before_its_first_call_of_a_group_is_not_stuck(seed: int, tmp_path: Path) -> None:
    """Defect: a healthy job, dumped rank after rank, got a certain error about the rank that was dumped first."""
    case = judged("healthy/in turn", seed, tmp_path)
    assert case is not None
    assert not outcome(*case)["alarm"]


@pytest.mark.parametrize(
    ("name", "seed", "what"),
    [
        (
            "skip/damaged",
            80003,
            "an abort completes the counters of a rank whose dump is cut: it may wait",
        ),
        ("skip/drawn", 90001, "a call that comes seldom, reached too early, is no op-mismatch for certain"),
        ("p2p/batched", 91000, "a transfer left out shifts all later ones: no deadlock by order for certain"),
        ("order/stale", 420001, "a dump that is minutes off may be of another attempt: no stall for certain"),
        ("repeat/drawn", 500009, "of two ranks, the one that waits may have made its last call once too often"),
    ],
)
def test_what_was_called_certain_and_was_wrong(name: str, seed: int, what: str, tmp_path: Path) -> None:
    case = judged(name, seed, tmp_path)
    assert case is not None
    assert not outcome(*case)["certain"], what


@pytest.mark.parametrize(
    ("name", "seed"),
    [("repeat/jobs", 91003), ("skip/stale", 90004), ("three/clean", 90004), ("stall/batched", 90004)],
)
def test_what_was_blamed_on_another_cause(name: str, seed: int, tmp_path: Path) -> None:
    """A call made twice, a bystander's stale file, a skip beside other faults, and ranks of another stage."""
    case = judged(name, seed, tmp_path)
    assert case is not None
    assert outcome(*case)["right"], told(case[1])


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
