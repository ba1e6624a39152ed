"""A case: a job, the faults in it, and what became of its dumps on the way to the reader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from rankscope.errors import UsageError
from rankscope.simulate import Fault, JobSpec, Noise, Part, Simulation, simulate, write_parts

MINUTE = 60 * 10**9
HOUR = 60 * MINUTE
OTHER_SEED = 1_000_000
NO_NOISE = Noise()


@dataclass(frozen=True)
class Expected:
    """What is true: for each fault the rule that should speak and the ranks that it should name."""

    causes: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def ranks(self) -> set[int]:
        return {rank for _, ranks in self.causes for rank in ranks}


@dataclass(frozen=True)
class Found:
    """The folder as the reader finds it, and the right verdict on it."""

    parts: tuple[Part, ...]
    expected: Expected


class Damage(Protocol):
    def apply(self, found: Found) -> Found: ...


@dataclass(frozen=True)
class Case:
    spec: JobSpec
    faults: tuple[Fault, ...] = ()
    noise: Noise = NO_NOISE
    damages: tuple[Damage, ...] = ()

    def write(self, folder: Path) -> Expected | None:
        """The right verdict on what is now in the folder; None where the job has no place for the faults."""
        try:
            run = simulate(self.spec, self.faults, self.noise)
            found = Found((Part(run),), truth_of(run))
            for damage in self.damages:
                found = damage.apply(found)
        except UsageError:
            return None
        if self.damages:
            write_parts(folder, found.parts)
        else:
            run.write(folder)
        return found.expected


def truth_of(run: Simulation) -> Expected:
    return Expected(tuple((truth.rule, truth.ranks) for truth in run.truths if truth.rule is not None))


def another_run(run: Simulation, faults: Sequence[Fault] = ()) -> Simulation:
    return simulate(replace(run.spec, seed=run.spec.seed + OTHER_SEED), faults)


def spare_rank(run: Simulation) -> int:
    """A rank whose dump the noise took away: one that the verdict can do without."""
    spare = sorted(run.lost_ranks - truth_of(run).ranks)
    if not spare:
        raise UsageError("no rank can be spared in this job", "take a larger mesh")
    return spare[0]


# --- damages


@dataclass(frozen=True)
class StaleFile:
    """A rank's file is that of another run, in which nothing was wrong: the culprit's, or one that can be spared."""

    later_ns: int
    of_culprit: bool = False
    """Its peers then wait for a rank that left no dump of this run."""

    def apply(self, found: Found) -> Found:
        run = found.parts[0].run
        rank = min(found.expected.ranks) if self.of_culprit else spare_rank(run)
        others = tuple(other for other in range(run.world_size) if other != rank)
        parts = (Part(run, others), Part(another_run(run), (rank,), self.later_ns))
        return Found(parts, Expected((("rank-lost", (rank,)),)) if self.of_culprit else found.expected)


@dataclass(frozen=True)
class WrongClock:
    later_ns: int

    def apply(self, found: Found) -> Found:
        run = found.parts[0].run
        rank = max(set(range(run.world_size)) - found.expected.ranks)
        others = tuple(other for other in range(run.world_size) if other != rank)
        return replace(found, parts=(Part(run, others), Part(run, (rank,), self.later_ns)))


@dataclass(frozen=True)
class OlderRun:
    """A run an hour before is in the same tree, with a fault of its own."""

    fault: Fault | None
    folders: tuple[str, str]

    def apply(self, found: Found) -> Found:
        run = found.parts[0].run
        older = another_run(run, (self.fault,) if self.fault else ())
        parts = (Part(older, later_ns=-HOUR, folder=self.folders[0]), Part(run, folder=self.folders[1]))
        return replace(found, parts=parts)


@dataclass(frozen=True)
class SecondReplica:
    """The job is the second of two replicas that each count their ranks from 0; the first one is healthy."""

    def apply(self, found: Found) -> Found:
        run = found.parts[0].run
        n_ranks = run.world_size
        causes = tuple((rule, tuple(rank + n_ranks for rank in ranks)) for rule, ranks in found.expected.causes)
        return Found((Part(another_run(run)), Part(run, first_rank=n_ranks)), Expected(causes))


@dataclass(frozen=True)
class DumpedInTurn:
    """Each rank was dumped some calls earlier than the rank before it."""

    n_calls: int

    def apply(self, found: Found) -> Found:
        run = found.parts[0].run
        n_unmade = {rank: self.n_calls * (run.world_size - 1 - rank) for rank in range(run.world_size)}
        return replace(found, parts=(Part(run, n_unmade=n_unmade),))
