"""Compares what rankscope says about a simulated job with what was done to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

from rankscope import pipeline
from rankscope.errors import UsageError
from rankscope.model.finding import Finding, Location, Report
from rankscope.simulate import Fault, JobSpec, Mesh, Noise, Simulation, simulate

MESHES = (
    *[(dp, tp, pp) for dp in (1, 2, 4) for tp in (1, 2, 4) for pp in (1, 2) if dp * tp * pp > 1],
    (3, 2, 1),
    (2, 3, 1),
    (8, 1, 1),
)
VERSIONS = ("2.10", "2.10", "2.7", "mixed", "2.4")


@dataclass(frozen=True)
class Case:
    seed: int
    kind: str | None

    def __str__(self) -> str:
        return f"{self.kind or 'healthy'}-{self.seed}"

    def simulate(self) -> Simulation | None:
        """A random job with the fault; None where the mesh has no place for it."""
        random = Random(f"{self.kind} {self.seed}")
        mesh = Mesh(*random.choice(MESHES))
        world = mesh.dp * mesh.tp * mesh.pp
        steps, run_ahead = random.choice([5, 7, 10]), random.choice([0, 0, 4, 16])
        spec = JobSpec(mesh=mesh, steps=steps, seed=self.seed, run_ahead=run_ahead)
        noise = random_noise(random, world, is_hung=self.kind != "straggler")
        try:
            return simulate(spec, Fault(self.kind) if self.kind else None, noise)
        except UsageError:
            return None


def random_noise(random: Random, world: int, *, is_hung: bool) -> Noise:
    # In a job of four ranks a lost dump is a quarter of all that is known: there, verdicts may depend on it.
    spare = world >= 8
    return Noise(
        ring=random.choice([2000, 2000, 80, 120]) if is_hung else 2000,
        lost=random.choice([0, 0, 1]) if spare else 0,
        cut=random.choice([0, 0, 0, 1]) if spare else 0,
        clock_skew_ms=random.choice([0, 0, 3000]) if is_hung else 0,
        timing=random.random() < 0.3,
        abort=random.random() < 0.3,
        uneven_state=random.random() < 0.3,
        version=random.choice(VERSIONS),
    )


def diagnose(simulation: Simulation, folder: Path) -> Report:
    simulation.write(folder)
    return pipeline.diagnose(pipeline.load([folder]))


def place(location: Location | None) -> tuple[str, int, str] | None:
    return (location.file, location.line, location.function) if location else None


def first_error(report: Report) -> Finding | None:
    return next((finding for finding in report.findings if finding.severity == "error"), None)
