"""Pipelines that exchange batches of transfers: one half left out, or one too many, in any step."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

import rankscope
from analyze.pipelined import ALL_REDUCE, Run, one_forward_one_backward
from rankscope.model.finding import Report

N_STEPS = 4


def diagnosed(run: Run, folder: Path) -> Report:
    run.write(folder)
    return rankscope.diagnose(rankscope.load(str(folder)))


def step_of(program: list[tuple[tuple[str, int], ...]], place: int) -> int:
    return program[:place].count(ALL_REDUCE)


@pytest.mark.parametrize(("n_ranks", "n_microbatches"), [(2, 1), (2, 4), (4, 4), (4, 8), (4, 30), (6, 8)])
def test_a_healthy_pipeline_gets_no_finding(n_ranks: int, n_microbatches: int, tmp_path: Path) -> None:
    run = Run(one_forward_one_backward(n_ranks, n_microbatches, N_STEPS))
    assert not run.is_hung
    assert diagnosed(run, tmp_path).findings == ()


@pytest.mark.parametrize("seed", range(40))
def test_a_half_that_was_left_out_is_named_with_its_neighbor(seed: int, tmp_path: Path) -> None:
    """Defect: a device or network fault, or a deadlock of others, for certain."""
    random = Random(seed)
    n_ranks = random.choice((2, 4, 6))
    programs = one_forward_one_backward(n_ranks, random.choice((4, 8, 30)), N_STEPS)
    rank = random.randrange(n_ranks)
    places = [place for place, step in enumerate(programs[rank]) if step and step_of(programs[rank], place) >= 2]
    place = random.choice(places)
    step = programs[rank][place]
    gone = random.choice(step)
    kept = tuple(half for half in step if half is not gone)
    programs[rank][place : place + 1] = [kept] if kept else []
    run = Run(programs)
    assert run.is_hung
    report = diagnosed(run, tmp_path)
    first = report.findings[0]
    assert (first.rule, first.ranks, first.certainty) == ("p2p-unmatched", (rank,), "likely"), first.title
    assert {"op": gone[0], "peer": gone[1]} in first.evidence.facts["missing"], first.title
    assert [finding.rule for finding in report.findings if finding.severity == "error"] == ["p2p-unmatched"]


@pytest.mark.parametrize("seed", range(10))
def test_a_fault_in_the_first_step_is_not_blamed_on_the_hardware(seed: int, tmp_path: Path) -> None:
    """There is nothing to compare with: a stall of the device is the one thing that it certainly is not."""
    random = Random(seed)
    programs = one_forward_one_backward(4, 8, 1)
    rank = random.randrange(4)
    place = random.choice([place for place, step in enumerate(programs[rank]) if step])
    programs[rank][place : place + 1] = [programs[rank][place][1:]] if len(programs[rank][place]) > 1 else []
    report = diagnosed(Run(programs), tmp_path)
    assert report.findings[0].rule in ("order-deadlock", "p2p-unmatched"), report.findings[0].title
    assert rank in report.findings[0].ranks
