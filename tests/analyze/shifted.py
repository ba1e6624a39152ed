"""Simulated jobs in which one rank leaves out, or makes again, a run of calls of any length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from analyze.verdicts import MESHES
from rankscope.simulate import JobSpec, Mesh, Noise, Simulation, Truth
from rankscope.simulate.engine import Disturbance, Run, run_job
from rankscope.simulate.jobs import build_job
from rankscope.simulate.program import Call, Job
from rankscope.simulate.simulation import _set_up_cameras

Kept = list[Call]


@dataclass(frozen=True)
class Shifted:
    """What was done to a rank's program, and what of it shows."""

    rank: int
    kind: str
    first: int  # place in the rank's program
    n_calls: int
    normal: list[Call]
    simulation: Simulation

    @property
    def calls(self) -> list[Call]:
        return self.normal[self.first : self.first + self.n_calls]

    @property
    def shown(self) -> tuple[int, int] | None:
        """Line of the first call at which the rank's own calls differ from its program, and how few explain it."""
        run = self.simulation.run.ranks[self.rank]
        made = run.calls[: len(run.created_ns)]
        place = next((n for n, call in enumerate(made) if not call.looks_like(self.normal[n])), None)
        if place is None:
            return None
        rest = made[place:]
        for n_calls in range(1, len(self.normal) - place):
            ahead = self.normal[place + n_calls :]
            if all(mine.looks_like(theirs) for mine, theirs in zip(rest, ahead, strict=False)):
                return self.normal[place].site.location[1], n_calls
        return None

    def __str__(self) -> str:
        called = [f"{call.op} {call.group.desc} {call.site.location[1]}" for call in self.calls]
        return f"rank {self.rank} {self.kind} {self.n_calls} at {self.first}: {', '.join(called[:6])}"


def shifted(spec: JobSpec, rank: int, first: int, n_calls: int, *, again: bool = False, ring: int = 2000) -> Shifted:
    job = build_job(spec)
    normal = job.programs[rank].calls()
    skipped = normal[first : first + n_calls]
    kept = [*normal[:first], *skipped, *skipped, *normal[first + n_calls :]] if again else normal[:first]
    kept += [] if again else normal[first + n_calls :]
    program = type(job.programs[rank])(steps=(tuple(kept),))
    run = run_job(job, Disturbance(programs={rank: program}))
    simulation = _photographed(job, run, Noise(ring=ring), rank)
    return Shifted(rank, "repeated" if again else "skipped", first, n_calls, normal, simulation)


def _photographed(job: Job, run: Run, noise: Noise, rank: int) -> Simulation:
    cameras = _set_up_cameras(job, noise, run, {rank}, Random(job.spec.seed))
    truth = Truth("call-skipped", (rank,), "", "", None, None, "")
    return Simulation(job.spec, (), noise, (truth,), job, run, frozenset(), frozenset(), cameras)


def drawn(seed: int, sizes: tuple[int, ...] = (5, 6, 8, 12, 20, 40, 60), *, again: bool = False) -> Iterator[Shifted]:
    """A random place for each size, where the job then hangs."""
    random = Random(f"shifted {seed}")
    mesh = Mesh(*random.choice([mesh for mesh in MESHES if mesh[0] * mesh[1] > 2]))
    spec = JobSpec(
        mesh,
        steps=random.choice((5, 7, 10)),
        layers=random.choice((2, 4)),
        microbatches=random.choice((2, 4)),
        seed=seed,
        run_ahead=random.choice((0, 0, 4, 16)),
    )
    rank = random.randrange(mesh.world)
    n_all = len(build_job(spec).programs[rank].calls())
    for n_calls in sizes:
        if n_calls < n_all // 2:
            first = random.randrange(n_all // 4, n_all - n_calls)
            yield shifted(spec, rank, first, n_calls, again=again)
