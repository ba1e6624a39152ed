"""Simulated jobs with a known fault against the same job without it: the comparison names what was put in."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from rankscope import pipeline
from rankscope.analyze.compare.captures import Side, compare_captures
from rankscope.analyze.compare.steps import COMPUTING
from rankscope.analyze.covered import describe_capture
from rankscope.model.changes import Changes
from rankscope.model.finding import SCHEMA_NAME, Report
from rankscope.simulate import Fault, JobSpec, Mesh, simulate
from rankscope.simulate.profiler import PROFILE_FAULTS, ProfileFault, ProfileSpec, simulate_profile

CULPRIT = 2
Reads = Callable[[ProfileSpec, str | None], Side]


@pytest.fixture(scope="module")
def reads(tmp_path_factory: pytest.TempPathFactory) -> Reads:
    """A simulated job as it is read, without its findings: they have tests of their own."""
    root = tmp_path_factory.mktemp("profiles")

    @cache
    def read(spec: ProfileSpec, kind: str | None) -> Side:
        folder = root / f"{kind}-{len(list(root.iterdir()))}"
        simulate_profile(spec, ProfileFault(kind, rank=CULPRIT) if kind else None).write(folder)
        return _undiagnosed(folder)

    return read


def _undiagnosed(folder: Path) -> Side:
    trace = pipeline.load(folder, jobs=1)
    return Side(trace, Report(SCHEMA_NAME, describe_capture(trace), (), ()))


def _spec(kind: str | None = None, seed: int = 0, ranks: int = 4, n_steps: int = 4) -> ProfileSpec:
    stages = 2 if kind == "stage-imbalance" else 1
    return ProfileSpec(ranks // stages, stages, ranks_per_host=2, n_layers=2, seed=seed, n_steps=n_steps)


_CAUSES = {
    "slow-kernels": f"computing on rank {CULPRIT}, mostly nvjet",
    "more-work": f"computing on rank {CULPRIT}, mostly nvjet",
    "host-bound": f"host time on rank {CULPRIT}",
    "data-loading": f"host time on rank {CULPRIT}: data loading",
    "garbage-collection": f"host time on rank {CULPRIT}: Python or waiting",
    "compile": f"host time on rank {CULPRIT}: operators",
    "slow-link": "moving data in all_reduce",
    "stage-imbalance": "computing on ranks 2,3, mostly",
}


@pytest.mark.cases
@pytest.mark.parametrize("kind", PROFILE_FAULTS)
def test_the_cause_of_a_slower_job_is_named(reads: Reads, kind: str) -> None:
    changes = compare_captures(reads(_spec(kind, seed=1), None), reads(_spec(kind), kind))
    assert changes.worst == "warning"
    assert changes.step is not None
    assert changes.step.is_worse
    assert _CAUSES[kind] in changes.verdict


def test_kernels_are_slower_where_they_were_slowed_and_nowhere_else(reads: Reads) -> None:
    changes = compare_captures(reads(_spec(seed=1), None), reads(_spec(), "slow-kernels"))
    slower = [kernel for kernel in changes.kernels if kernel.kind != "same"]
    assert slower
    assert {(kernel.kind, kernel.ranks) for kernel in slower} == {("slower", (CULPRIT,))}
    assert [part.ranks for part in changes.parts if part.name == COMPUTING] == [(CULPRIT,)]
    [waiting] = [call for call in changes.collectives if call.kind != "same"]
    assert (waiting.part, waiting.waits_for) == ("waiting", (CULPRIT,))


def test_the_way_back_is_faster_for_the_same_reason(reads: Reads) -> None:
    changes = compare_captures(reads(_spec(), "slow-kernels"), reads(_spec(seed=1), None))
    assert changes.worst is None
    assert "faster than A" in changes.verdict
    assert f"computing on rank {CULPRIT}" in changes.verdict


@pytest.mark.cases
@pytest.mark.parametrize("seeds", [(0, 0), (0, 1), (1, 2), (2, 0)])
def test_two_runs_of_a_healthy_job_do_not_differ(reads: Reads, seeds: tuple[int, int]) -> None:
    changes = compare_captures(*(reads(_spec(seed=seed), None) for seed in seeds))
    assert changes.verdict == "no difference beyond noise"
    assert _told(changes) == []


@pytest.mark.slow
def test_other_numbers_of_ranks_and_steps_compare_fairly(reads: Reads) -> None:
    changes = compare_captures(reads(_spec(seed=1), None), reads(_spec(ranks=6, n_steps=6), None))
    assert changes.step is not None
    assert (changes.step.kind, changes.worst) == ("same", None)
    assert not [kernel for kernel in changes.kernels if kernel.kind != "same"]
    assert [(change.name, change.old, change.new) for change in changes.setup if change.name == "ranks"] == [
        ("ranks", "4", "6")
    ]
    assert any("traces of 4 ranks, B of 6" in note for note in changes.notes)
    changes = compare_captures(reads(_spec(ranks=6, n_steps=6), None), reads(_spec(), "slow-kernels"))
    assert _CAUSES["slow-kernels"] in changes.verdict


def _told(changes: Changes) -> list[str]:
    times = (*changes.parts, *changes.collectives, *changes.kernels)
    return [time.name for time in times if time.kind != "same"]


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Side]:
    """The same job hung, healthy, healthy in another run, and with a rank that comes late."""
    sides = {}
    for name, fault, seed in (
        ("hung", Fault("op"), 0),
        ("healthy", None, 0),
        ("again", None, 3),
        ("late", Fault("straggler"), 0),
    ):
        folder = tmp_path_factory.mktemp(name)
        simulate(JobSpec(Mesh(2, 2, 2), seed=seed), fault).write(folder, "nccl_trace_rank_")
        trace = pipeline.load(folder, jobs=1)
        sides[name] = Side(trace, pipeline.diagnose(trace))
    return sides


def test_a_hang_is_told_before_everything_else(hung: dict[str, Side]) -> None:
    changes = compare_captures(hung["healthy"], hung["hung"])
    assert changes.verdict.startswith("B hangs where A did not: error[H102] ")
    assert changes.worst == "error"
    changes = compare_captures(hung["hung"], hung["healthy"])
    assert changes.verdict.startswith("B does not hang where A did: error[H102] ")
    assert changes.worst is None


def test_the_same_hang_twice_is_no_difference(hung: dict[str, Side]) -> None:
    changes = compare_captures(hung["hung"], hung["hung"])
    assert changes.verdict.startswith("no difference beyond noise; both have error[H102] ")
    assert (changes.findings, changes.worst) == ((), None)


def test_two_healthy_runs_have_the_same_call_sites(hung: dict[str, Side]) -> None:
    changes = compare_captures(hung["healthy"], hung["again"])
    assert (changes.verdict, _told(changes)) == ("no difference beyond noise", [])
    assert {call.part for call in changes.collectives} == {"arrival"}


def test_a_late_rank_is_named_at_the_call_site_it_comes_late_to(hung: dict[str, Side]) -> None:
    changes = compare_captures(hung["healthy"], hung["late"])
    [culprit] = hung["late"].report.findings[0].ranks
    assert (culprit,) in [call.waits_for for call in changes.collectives if call.kind == "slower"]
    assert changes.verdict.startswith("B has 1 warning that A does not have: warning[S201] ")


def test_a_source_that_one_side_lacks_is_said(hung: dict[str, Side], reads: Reads) -> None:
    changes = compare_captures(hung["healthy"], reads(_spec(), None))
    assert "A has no profiler traces: steps, kernels and collective times are not compared" in changes.not_compared
    assert "B has no Flight Recorder dumps: call sites of collectives are not compared" in changes.not_compared
    assert changes.step is None
