"""What a run of the job is made of: the conditions it runs under, the randomness in it, and what comes out."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random

from rankscope.simulate.profiler.program import Exchange, StepProgram

_N_DRAWS = 1 << 14


@dataclass(frozen=True)
class Conditions:
    """How the run differs from one in which everything takes its usual time."""

    seed: int
    jitter: float
    kernel_factor: dict[int, float] = field(default_factory=dict)
    """By rank, as in the following."""
    host_factor: dict[int, float] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    slow_ranks: frozenset[int] = frozenset()
    """Those behind a slow link."""
    link_factor: float = 1.0
    last_stage_factor: float = 1.0
    pauses: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    """By rank and step: what holds the host up, and for how many ns."""


@dataclass(frozen=True)
class RankRun:
    """One step of one rank, in true time."""

    program: StepProgram
    clock: array[int]
    """When each tick began, and when the last one ended."""
    starts: array[int]
    """Of the work on the device; 0 as long as unknown, as in the ends."""
    ends: array[int]
    pause: str
    """What held the host up, if anything did."""


@dataclass(frozen=True)
class Meeting:
    """A collective or transfer that took place; the columns have an entry per member."""

    step: int
    ranks: tuple[int, ...]
    exchanges: tuple[Exchange, ...]
    work: tuple[int, ...]
    arrivals_ns: tuple[int, ...]
    ends_ns: tuple[int, ...]


@dataclass(frozen=True)
class JobRun:
    steps: tuple[tuple[RankRun, ...], ...]
    """By step, then by rank."""
    meetings: tuple[Meeting, ...]

    @property
    def start_ns(self) -> int:
        return min(run.clock[0] for run in self.steps[0])

    @property
    def end_ns(self) -> int:
        return max(run.clock[-1] for run in self.steps[-1])

    def step_ns(self) -> dict[int, int]:
        """From the end of the step before on its last rank to the end of each step on its last rank."""
        ends = [max(run.clock[-1] for run in ranks) for ranks in self.steps]
        return {step: ends[step] - ends[step - 1] for step in range(1, len(ends))}


@lru_cache(maxsize=4)
def _normal_draws(seed: int) -> tuple[float, ...]:
    random = Random(f"{seed} draws")
    return tuple(max(-3.0, min(3.0, random.gauss(0, 1))) for _ in range(_N_DRAWS))


class Jitter:
    """Random times that depend on what is timed and not on what came before, so that the same job with and without a
    fault differs by the fault alone."""

    def __init__(self, conditions: Conditions) -> None:
        self.seed = conditions.seed
        self.relative = conditions.jitter
        self._factors = [1 + self.relative * draw for draw in _normal_draws(self.seed)]

    def factors(self, count: int, *what: object) -> Sequence[float]:
        """Factors around 1, read from a table at a place that belongs to what is timed."""
        drawn = Random(f"{self.seed} {what}").randrange(_N_DRAWS)
        while drawn + count > len(self._factors):
            self._factors *= 2
        return self._factors[drawn : drawn + count]

    def delays_ns(self, count: int, typical_ns: float, *what: object) -> list[int]:
        """Delays of 0 or more; all 0 in a job without jitter."""
        if not self.relative:
            return [0] * count
        random = Random(f"{self.seed} {what}")
        return [int(abs(random.gauss(0, typical_ns))) for _ in range(count)]
