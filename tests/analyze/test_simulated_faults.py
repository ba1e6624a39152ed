"""Hundreds of seeded jobs, each with one fault and all kinds of noise: rule, rank and line must be the truth's."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyze.verdicts import Case, diagnose, first_error, place
from rankscope.model.finding import Finding, Report
from rankscope.simulate import FAULTS, Fault, JobSpec, Mesh, Simulation, Truth, simulate

pytestmark = pytest.mark.slow

N_CASES = 36
# A lost host and groups in another order need jobs of their own: tests of these have them.
HANGS = tuple(kind for kind in FAULTS if kind not in ("straggler", "node", "groups"))

# Where the records of two ranks differ only in who is odd, both are named: rightly, as nothing else is known.
TIES = frozenset({"tie"})


@pytest.mark.parametrize("kind", HANGS)
def test_a_hang_is_traced_to_its_rank_and_line(kind: str, tmp_path: Path) -> None:
    wrong: list[str] = []
    n_judged = 0
    for seed in range(N_CASES):
        case = Case(seed, kind)
        simulation = case.simulate()
        if simulation is None:
            continue
        n_judged += 1
        report = diagnose(simulation, tmp_path / str(case))
        problem = _problem(simulation, report)
        if problem:
            wrong.append(f"{case}: {problem}\n    truth: {simulation.truth.note}")
    assert n_judged >= N_CASES / 3
    # Some of the noise leaves too little to decide by; more than one case in twenty would be our fault.
    assert len(wrong) <= n_judged / 20, "\n".join(wrong)


def _problem(simulation: Simulation, report: Report) -> str:
    truth, finding = simulation.truth, first_error(report)
    if finding is None:
        return "nothing was found"
    problems = [*_wrong_verdict(truth, finding), *_wrong_place(simulation, finding)]
    return "; ".join(problems) + f" | {finding.title}" if problems else ""


def _wrong_verdict(truth: Truth, finding: Finding) -> list[str]:
    problems = []
    if finding.rule != truth.rule:
        problems.append(f"rule {finding.rule}")
    is_tie = finding.evidence.facts.get("basis") in TIES
    if not (set(truth.ranks) <= set(finding.ranks) if is_tie else set(truth.ranks) == set(finding.ranks)):
        problems.append(f"ranks {finding.ranks}, not {truth.ranks}")
    return problems


def _wrong_place(simulation: Simulation, finding: Finding) -> list[str]:
    truth = simulation.truth
    problems = []
    # A transfer's and a cycle's culprit is shown where it left the path, the truth where it waits.
    is_elsewhere = truth.rule in ("p2p-unmatched", "order-deadlock", "collective-stalled")
    if not is_elsewhere and place(finding.location) != truth.location:
        problems.append(f"at {place(finding.location)}, not {truth.location}")
    # Which of the peers waited first is a matter of clocks, and with skewed ones not always known.
    is_known = truth.peer_location is not None and truth.rule not in ("collective-stalled", "rank-lost")
    if is_known and not simulation.noise.clock_skew_ms and place(finding.peer_location) != truth.peer_location:
        problems.append(f"peers at {place(finding.peer_location)}, not {truth.peer_location}")
    return problems


def test_healthy_jobs_raise_no_alarm(tmp_path: Path) -> None:
    for seed in range(2 * N_CASES):
        case = Case(seed, None)
        simulation = case.simulate()
        assert simulation is not None
        report = diagnose(simulation, tmp_path / str(case))
        alarms = [finding for finding in report.findings if finding.code[0] in "HS" and finding.severity != "info"]
        assert not alarms, f"{case}: {alarms[0].title}"


def test_a_straggler_is_named_and_nobody_else(tmp_path: Path) -> None:
    missed = []
    for seed in range(N_CASES):
        simulation = Case(seed, "straggler").simulate()
        if simulation is None:
            continue
        report = diagnose(simulation, tmp_path / str(seed))
        assert first_error(report) is None
        named = [finding.ranks for finding in report.findings if finding.rule == "straggler"]
        assert named in ([], [simulation.truth.ranks]), f"seed {seed}: {named}, not {simulation.truth.ranks}"
        if not named:
            missed.append(seed)
    assert len(missed) <= N_CASES / 10, f"not found with seeds {missed}"


def test_equal_dumps_give_equal_reports(tmp_path: Path) -> None:
    simulation = Case(3, "op").simulate()
    assert simulation is not None
    assert diagnose(simulation, tmp_path / "a").findings == diagnose(simulation, tmp_path / "a").findings


@pytest.mark.parametrize("kind", ["op", "stuck", "skip", "lost"])
def test_a_large_mesh_is_judged_like_a_small_one(kind: str, tmp_path: Path) -> None:
    simulation = simulate(JobSpec(mesh=Mesh(16, 8, 2), steps=3, seed=5, run_ahead=8), Fault(kind))
    finding = first_error(diagnose(simulation, tmp_path))
    assert finding is not None
    assert (finding.rule, finding.ranks) == (simulation.truth.rule, simulation.truth.ranks)
    assert finding.evidence.n_blocked is not None
    assert finding.evidence.n_blocked > 128  # the hang spreads over the groups, and one finding counts it
