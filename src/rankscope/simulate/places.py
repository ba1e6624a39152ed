"""The calls of a job, one of which a fault is put into."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from rankscope.simulate.engine import Disturbance
from rankscope.simulate.groups import Groups
from rankscope.simulate.program import Call, Job, Program
from rankscope.simulate.sites import Site
from rankscope.simulate.spec import Fault

_DRAWS = 50


@dataclass(frozen=True)
class Place:
    """A call of one rank, before anything happened to it."""

    job: Job
    rank: int
    step: int
    index: int
    """Within the step."""
    n_calls: int = 1
    """How many calls a fault is asked to leave out from here on."""

    @property
    def groups(self) -> Groups:
        return self.job.groups_at(self.step)

    @property
    def is_first_step(self) -> bool:
        return self.job.spec.starts_generation(self.step)

    @property
    def program(self) -> Program:
        return self.job.programs[self.rank]

    @property
    def calls(self) -> tuple[Call, ...]:
        return self.program.steps[self.step]

    @property
    def call(self) -> Call:
        return self.calls[self.index]

    @property
    def flat_index(self) -> int:
        return self.program.step_starts()[self.step] + self.index

    @property
    def position(self) -> int:
        """How many collectives on the same group the rank made before."""
        return sum(
            call.group is self.call.group and not call.transfers for call in self.program.calls()[: self.flat_index]
        )

    def replace_calls(self, n_calls: int, *calls: Call) -> Program:
        """The rank's program with the next n_calls replaced."""
        step = (*self.calls[: self.index], *calls, *self.calls[self.index + n_calls :])
        return self.program.with_step(self.step, step)

    def changes(self, program: Program) -> Disturbance:
        return Disturbance(programs={self.rank: program})


def draw_places(job: Job, fault: Fault, salt: str = "") -> Iterator[Place]:
    """All calls of some ranks and steps, in random order."""
    random = Random(f"{job.spec.seed} {fault.kind}{salt}")
    # With a fault in an earlier generation there would be no newer one.
    steps = [step for step in range(job.spec.steps) if job.spec.generation_of(step) == job.spec.generations - 1]
    for _ in range(_DRAWS):
        rank = random.randrange(job.spec.mesh.world) if fault.rank is None else fault.rank
        step = steps[random.randrange(len(steps))] if fault.step is None else fault.step
        # Line by line: drawn one by one, the many calls in the layers would crowd out all others.
        by_site: dict[Site, list[int]] = {}
        for index, call in enumerate(job.programs[rank].steps[step]):
            by_site.setdefault(call.site, []).append(index)
        rows = list(by_site.values())
        random.shuffle(rows)
        for row in rows:
            random.shuffle(row)
            yield from (Place(job, rank, step, index, fault.n_calls) for index in row)
