"""Pipelines that exchange batches of transfers: one half left out, or one too many, in any step."""

from __future__ import annotations

import pickle
from pathlib import Path
from random import Random

import pytest

import rankscope
from analyze.pipelined import ALL_REDUCE, Half, Program, Run, one_forward_one_backward
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


@pytest.mark.cases
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


def without(programs: list[Program], rank: int, gone: Half, step: int) -> Run:
    """The run in which a rank leaves out its last half of this kind in a step."""
    program = programs[rank]
    places = [n for n, halves in enumerate(program) if gone in halves and step_of(program, n) == step]
    kept = tuple(half for half in program[places[-1]] if half != gone)
    program[places[-1] : places[-1] + 1] = [kept] if kept else []
    return Run(programs)


@pytest.mark.parametrize("n_microbatches", [4, 8, 30])
def test_a_rank_that_went_on_to_the_collective_left_out_the_transfer(n_microbatches: int, tmp_path: Path) -> None:
    """Defect: in the first step, a deadlock blamed on the rank that still waits in its send."""
    run = without(one_forward_one_backward(2, n_microbatches, 2), 0, ("recv", 1), 0)
    first = diagnosed(run, tmp_path).findings[0]
    assert (first.rule, first.ranks, first.certainty) == ("p2p-unmatched", (0,), "likely")
    assert first.evidence.facts["missing"] == [{"op": "recv", "peer": 1}]
    assert "without its receive from rank 1; rank 1 is waiting for it" in first.title


def test_in_a_short_ring_a_missing_send_is_no_certain_fault_of_the_hardware(tmp_path: Path) -> None:
    """Defect: "all 2 ranks joined", certain, by pairs that were counted from the middle of the job."""
    run = without(one_forward_one_backward(4, 4, 4), 2, ("send", 3), 2)
    run.write(tmp_path)
    for path in tmp_path.iterdir():
        dump = pickle.loads(path.read_bytes())
        dump["entries"] = dump["entries"][-40:]
        path.write_bytes(pickle.dumps(dump, 2))
    first = rankscope.diagnose(rankscope.load(str(tmp_path))).findings[0]
    assert first.rule == "p2p-unmatched"
    assert first.certainty == "likely"
    assert 2 in first.ranks
