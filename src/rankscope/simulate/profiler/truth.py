"""What really happened in a simulated job: all times in nanoseconds on the true clock."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple


class HostClock(NamedTuple):
    """What the clock of a host shows: the true time + offset_ns + (the true time - at_ns) * drift_ppm / 1e6."""

    offset_ns: int
    drift_ppm: float
    at_ns: int
    """The middle of the simulated time, where the offset holds exactly."""

    def recorded_ns(self, true_ns: int) -> int:
        return true_ns + self.offset_ns + round((true_ns - self.at_ns) * self.drift_ppm / 1e6)


class RankStep(NamedTuple):
    """Where a step of one rank went. The device's times are those between the step's start and end on the host."""

    start_ns: int
    end_ns: int
    compute_ns: int
    """Some compute kernel runs."""
    memory_ns: int
    """Some copy or memset runs."""
    communication_ns: int
    """Some communication kernel runs, be it only to wait."""
    overlap_ns: int
    """Compute and communication run at once."""
    idle_ns: int
    """Nothing runs on any stream."""
    wait_ns: int
    """The compute stream is idle because some member of a collective or transfer has not joined yet."""
    transfer_ns: int
    """The compute stream is idle while data moves."""
    bubble_ns: int
    """The part of wait_ns that is spent on neighbors in the pipeline."""

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


class CollectiveTruth(NamedTuple):
    """A logical collective or transfer. Of a transfer, the source comes first and the destination second."""

    id: int
    group: str
    desc: str
    op: str
    is_p2p: bool
    step: int
    n_bytes: int
    ranks: tuple[int, ...]
    seqs: tuple[int, ...]
    """The number that each member counted for the call."""
    arrivals_ns: tuple[int, ...]
    """When the kernel of each member started."""
    ends_ns: tuple[int, ...]

    @property
    def last_arriver(self) -> int:
        return self.ranks[self.arrivals_ns.index(max(self.arrivals_ns))]

    @property
    def wait_ns(self) -> int:
        """From the first arrival to the last."""
        return max(self.arrivals_ns) - min(self.arrivals_ns)

    @property
    def transfer_ns(self) -> int:
        return min(self.ends_ns) - max(self.arrivals_ns)


@dataclass(frozen=True)
class ProfileTruth:
    cause: str | None
    """The kind of the fault; None for a healthy job."""
    ranks: tuple[int, ...]
    """The culprits, not their victims."""
    groups: tuple[str, ...]
    """Names of the groups whose transfers are slow."""
    steps: tuple[int, ...]
    """Where the fault strikes."""
    step_ns: dict[int, int]
    """Of the whole job: from the end of the step before on its last rank to the end of this one on its last rank."""
    healthy_step_ns: dict[int, int]
    """The same of the same job without the fault."""
    clocks: dict[str, HostClock]
    windows: dict[int, tuple[int, int]]
    """The first and the last step that each rank recorded."""
    rank_steps: dict[tuple[int, int], RankStep] = field(repr=False)
    """By rank and step, whether the rank recorded it or not."""
    collectives: tuple[CollectiveTruth, ...] = field(repr=False)

    def last_arrivals(self, min_wait_ns: int = 0) -> Counter[int]:
        """How often each rank joined last, counted where another rank had to wait for it."""
        return Counter(met.last_arriver for met in self.collectives if met.wait_ns >= min_wait_ns)
