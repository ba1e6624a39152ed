"""What can be asked of the simulator, and the truth that it gives back."""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.errors import UsageError

VERSIONS = ("2.10", "2.7", "2.4", "2.1", "1.0", "mixed")

FAULT_HELP: dict[str, str] = {
    "lost": "a rank dies before one of its calls and leaves no dump",
    "stuck": "a rank stops in Python before one of its calls",
    "op": "a rank takes another branch and calls another collective",
    "size": "a rank joins a collective with a tensor of another size",
    "dtype": "a rank joins a collective with a tensor of another dtype",
    "skip": "a rank leaves out one collective and goes on",
    "repeat": "a rank makes one collective twice",
    "order": "a rank makes two calls on two groups in the wrong order",
    "p2p": "a rank leaves out one send or one recv of the pipeline",
    "stall": "all members join a collective that never finishes",
    "straggler": "a rank is 80 ms late at every step; the job runs to its end",
}
FAULTS: tuple[str, ...] = tuple(FAULT_HELP)

Location = tuple[str, int, str]
"""File, line and function of a statement."""


@dataclass(frozen=True)
class Mesh:
    """The parallel dimensions of the job; tp varies fastest with the rank, then dp, then pp."""

    dp: int = 4
    tp: int = 2
    pp: int = 1

    def __post_init__(self) -> None:
        if min(self.dp, self.tp, self.pp) < 1 or self.world < 2:
            raise UsageError(
                f"a mesh of dp={self.dp}, tp={self.tp}, pp={self.pp} has nobody to talk to",
                "every dimension must be at least 1 and their product at least 2",
            )

    @property
    def world(self) -> int:
        return self.dp * self.tp * self.pp

    def rank_at(self, pp_index: int, dp_index: int, tp_index: int) -> int:
        return (pp_index * self.dp + dp_index) * self.tp + tp_index

    def stage_of(self, rank: int) -> int:
        return rank // (self.dp * self.tp)


@dataclass(frozen=True)
class JobSpec:
    mesh: Mesh
    steps: int = 8
    layers: int = 2
    """Layers of each pipeline stage."""
    microbatches: int = 2
    buckets: int = 3
    """Gradient buckets, each of its own size."""
    ranks_per_host: int = 8
    seed: int = 0
    run_ahead: int = 0
    """How many calls the CPU may enqueue ahead of the device; 0 waits for every call."""

    def __post_init__(self) -> None:
        for name in ("steps", "layers", "microbatches", "buckets", "ranks_per_host"):
            if getattr(self, name) < 1:
                raise UsageError(f"a job cannot have {name}={getattr(self, name)}", f"give {name} a value of 1 or more")
        if self.run_ahead < 0:
            raise UsageError(f"run_ahead={self.run_ahead} is negative", "0 waits for every call")


@dataclass(frozen=True)
class Fault:
    kind: str
    rank: int | None = None
    """None: drawn from the job's seed."""
    step: int | None = None
    """Counted from 0. None: drawn from the job's seed."""

    def __post_init__(self) -> None:
        if self.kind not in FAULT_HELP:
            raise UsageError(f"unknown fault {self.kind!r}", f"choose one of: {', '.join(FAULTS)}")


@dataclass(frozen=True)
class Noise:
    """How the evidence is damaged on its way to the reader; none of it changes what happened."""

    ring: int = 2000
    """Entries that each rank keeps, over all its groups."""
    lost: int = 0
    """How many ranks that have no part in the fault leave no dump."""
    cut: int = 0
    """How many ranks that have no part in the fault leave a truncated file."""
    clock_skew_ms: float = 0.0
    """Bound of the constant offset of each host's clock."""
    timing: bool = False
    """Start events are recorded, as with TORCH_NCCL_ENABLE_TIMING=1."""
    abort: bool = False
    """The communicators were aborted at the time-out, which makes stuck calls look completed."""
    uneven_state: bool = False
    """Some ranks had not yet noticed that their last few calls completed."""
    version: str = "2.10"

    def __post_init__(self) -> None:
        if self.version not in VERSIONS:
            raise UsageError(f"unknown dump version {self.version!r}", f"choose one of: {', '.join(VERSIONS)}")
        if self.ring < 1:
            raise UsageError(f"a ring of {self.ring} entries records nothing", "give ring a value of 1 or more")


@dataclass(frozen=True)
class Truth:
    rule: str | None
    """The rule that should speak; None for a healthy job."""
    ranks: tuple[int, ...]
    """The culprits, not their victims."""
    group_desc: str
    op: str
    """What the peers called where the fault struck."""
    location: Location | None
    """The culprits' own statement."""
    peer_location: Location | None
    """The statement at which the peers were."""
    note: str
