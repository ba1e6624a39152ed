"""Runs of calls that one rank left out: a layer, a backward pass, most of a step, told with their number and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyze.shifted import Shifted, drawn, shifted
from analyze.verdicts import diagnose, first_error
from rankscope.model.finding import Finding
from rankscope.simulate import JobSpec, Mesh


def told(case: Shifted, folder: Path) -> Finding:
    finding = first_error(diagnose(case.simulation, folder))
    assert finding is not None
    return finding


@pytest.mark.cases
@pytest.mark.parametrize("seed", [6, 14])
def test_a_run_of_calls_that_was_left_out_is_counted(seed: int, tmp_path: Path) -> None:
    """Defect: an op-mismatch or a deadlock of others, for certain, where more than four calls were left out."""
    wrong, n_judged = [], 0
    for case in drawn(seed, sizes=(5, 8, 12, 20, 40)):
        finding = told(case, tmp_path / str(case.n_calls))
        facts = finding.evidence.facts
        n_judged += 1
        is_right = (finding.rule, finding.ranks, finding.certainty) == ("call-skipped", (case.rank,), "likely")
        if not is_right or (facts["call"]["line"], facts["n_calls"]) != case.shown:
            wrong.append(f"{case}, shown {case.shown}: {finding.rule} {finding.title}")
    assert n_judged >= 4
    assert wrong == []


def test_one_call_left_out_between_equal_layers_is_one(tmp_path: Path) -> None:
    """Defect: "and 1 more", by an earlier layer that looked alike."""
    spec = JobSpec(Mesh(dp=2, tp=4, pp=2))
    n_step = len(shifted(spec, 1, 0, 0).normal) // spec.steps
    case = shifted(spec, 1, 4 * n_step + 3, 1)
    finding = told(case, tmp_path)
    assert (finding.evidence.facts["call"]["line"], finding.evidence.facts["n_calls"]) == case.shown
    assert "more in" not in finding.title


def test_almost_a_whole_step_is_not_left_out_where_a_call_was_made_twice(tmp_path: Path) -> None:
    spec = JobSpec(Mesh(dp=2, tp=2), run_ahead=16)
    case = shifted(spec, 0, 30, 2, again=True)
    finding = told(case, tmp_path)
    assert (finding.rule, finding.ranks) == ("call-skipped", (0,))
    assert (finding.evidence.facts["what"], finding.evidence.facts["n_calls"]) == ("repeated", 2)
    assert "made 2 extra calls" in finding.title
