"""The options of the simulator, and the truth that it returns."""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.errors import UsageError

VERSIONS = ("2.10", "2.7", "2.4", "2.1", "1.0", "mixed")
PROGRAMS = ("example", "random")
SCHEDULES = ("gpipe", "1f1b", "interleaved")

FAULT_HELP: dict[str, str] = {
    "lost": "one rank dies before one of its calls and leaves no dump",
    "node": "one host dies with all its ranks, which leave no dumps",
    "stuck": "one rank gets stuck in Python before one of its calls",
    "op": "one rank takes a different branch and calls a different collective",
    "size": "one rank joins a collective with a tensor of a different size",
    "dtype": "one rank joins a collective with a tensor of a different dtype",
    "skip": "one rank skips a collective and continues",
    "repeat": "one rank calls a collective twice",
    "order": "one rank makes two calls on two groups in the wrong order",
    "p2p": "one rank skips a send or a recv of the pipeline",
    "groups": "one rank creates its groups in a different order",
    "stall": "all members join a collective that never completes",
    "straggler": "one rank is 80 ms late in every step; the job completes",
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
                f"a mesh of dp={self.dp}, tp={self.tp}, pp={self.pp} has only one rank",
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
    """Gradient buckets, each of a different size."""
    ranks_per_host: int = 8
    seed: int = 0
    run_ahead: int = 0
    """How many calls the CPU may enqueue ahead of the device; set it to 0 to wait for every call."""
    schedule: str = "gpipe"
    """How the pipeline's stages take turns: gpipe sends one by one, the others in batches of sends and receives."""
    experts: bool = False
    """Experts on the ranks of each dp group, which get uneven numbers of tokens: groups called ep, uneven sizes."""
    generations: int = 1
    """How often all groups are made in one run; before each but the first, those of the one before are destroyed."""
    program: str = "example"
    """What the ranks call: the example training program, or collectives drawn from the seed."""

    def __post_init__(self) -> None:
        for name in ("steps", "layers", "microbatches", "buckets", "ranks_per_host", "generations"):
            if getattr(self, name) < 1:
                raise UsageError(f"a job cannot have {name}={getattr(self, name)}", f"set {name} to 1 or more")
        for name, known in (("schedule", SCHEDULES), ("program", PROGRAMS)):
            if getattr(self, name) not in known:
                raise UsageError(f"unknown {name} {getattr(self, name)!r}", f"choose one of: {', '.join(known)}")
        if self.generations > self.steps:
            raise UsageError(
                f"{self.generations} generations do not fit into {self.steps} steps", "give each one step or more"
            )
        if self.run_ahead < 0:
            raise UsageError(f"run_ahead={self.run_ahead} is negative", "set it to 0 to wait for every call")

    def generation_of(self, step: int) -> int:
        return step * self.generations // self.steps

    def starts_generation(self, step: int) -> bool:
        return step == 0 or self.generation_of(step) != self.generation_of(step - 1)


@dataclass(frozen=True)
class Fault:
    kind: str
    rank: int | None = None
    """None: drawn from the job's seed."""
    step: int | None = None
    """Counted from 0. None: drawn from the job's seed."""
    n_calls: int = 1
    """How many calls in a row a skip leaves out."""

    def __post_init__(self) -> None:
        if self.kind not in FAULT_HELP:
            raise UsageError(f"unknown fault {self.kind!r}", f"choose one of: {', '.join(FAULTS)}")
        if self.n_calls < 1:
            raise UsageError(f"a fault in {self.n_calls} calls is none", "give n_calls a value of 1 or more")


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
    """The communicators were aborted at the timeout, which makes stuck calls look completed."""
    uneven_state: bool = False
    """Some ranks had not yet noticed that their last few calls completed."""
    same_ids: bool = False
    """The numbers of process groups (pg_id) start again with each generation of groups."""
    version: str = "2.10"

    def __post_init__(self) -> None:
        if self.version not in VERSIONS:
            raise UsageError(f"unknown dump version {self.version!r}", f"choose one of: {', '.join(VERSIONS)}")
        if self.ring < 1:
            raise UsageError(f"a ring of {self.ring} entries records nothing", "set ring to 1 or more")


@dataclass(frozen=True)
class Truth:
    rule: str | None
    """The rule that should report it; None for a healthy job."""
    ranks: tuple[int, ...]
    """The culprits, not their victims."""
    group_desc: str
    op: str
    """What the peers called where the fault struck."""
    location: Location | None
    """The statement of the culprits."""
    peer_location: Location | None
    """The statement of the peers."""
    note: str
