"""Programs that nobody wrote, and one random fault: whoever is named is the rank that departed from its own program."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from analyze.verdicts import diagnose
from rankscope.errors import UsageError
from rankscope.model.finding import Report
from rankscope.simulate import Fault, JobSpec, Mesh, Noise, simulate

FAULTS = ("skip", "repeat", "op", "size", "stuck", "p2p", "lost")
MESHES = ((4, 1, 1), (2, 2, 1), (3, 2, 1), (2, 1, 2), (2, 2, 2), (4, 2, 1), (1, 2, 3), (4, 2, 2))
N_SEEDS = 10


def draw(seed: int, kind: str) -> tuple[JobSpec, Noise]:
    random = Random(f"{kind} {seed}")
    meshes = [mesh for mesh in MESHES if kind != "p2p" or mesh[2] > 1]
    spec = JobSpec(
        Mesh(*random.choice(meshes)),
        steps=random.choice((4, 6, 9)),
        seed=seed,
        run_ahead=random.choice((0, 0, 6)),
        experts=random.random() < 0.4,
        program="random",
    )
    return spec, Noise(ring=random.choice((2000, 2000, 60)))


def is_named(report: Report, culprits: set[int]) -> bool:
    """Exactly the culprits; of a transfer without its other half both ends, where nothing shows who left it out."""
    errors = [finding for finding in report.findings if finding.code[0] == "H" and finding.severity == "error"]
    if not errors:
        return False
    named = set(errors[0].ranks)
    missing = errors[0].evidence.facts.get("missing", [])
    is_either = errors[0].rule == "p2p-unmatched" and errors[0].certainty == "likely" and len(missing) == 2
    return named == culprits or (is_either and len(named) == 2 and culprits < named)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAULTS)
def test_the_rank_that_departed_from_its_program_is_named(kind: str, tmp_path: Path) -> None:
    wrong: list[str] = []
    n_judged = 0
    for seed in range(N_SEEDS):
        spec, noise = draw(seed, kind)
        try:
            # The first step of a pipeline too, where there is nothing yet that a schedule could be compared with.
            step = Random(spec.seed).randrange(spec.steps) if kind == "p2p" else None
            simulation = simulate(spec, Fault(kind, step=step), noise)
        except UsageError:
            continue
        n_judged += 1
        report = diagnose(simulation, tmp_path / str(seed))
        if not is_named(report, set(simulation.truth.ranks)):
            wrong.append(f"{kind} {seed}: {simulation.truth.note} Told: {[f.title for f in report.findings[:2]]}")
    assert n_judged >= N_SEEDS / 2
    assert wrong == []


@pytest.mark.slow
def test_the_same_programs_without_a_fault_get_no_error(tmp_path: Path) -> None:
    for kind in FAULTS:
        for seed in range(0, N_SEEDS, 2):
            spec, noise = draw(seed, kind)
            report = diagnose(simulate(spec, None, noise), tmp_path / f"{kind}{seed}")
            alarms = [finding for finding in report.findings if finding.code[0] in "HS" and finding.severity != "info"]
            assert alarms == [], f"{kind} {seed}: {alarms[0].title}"
