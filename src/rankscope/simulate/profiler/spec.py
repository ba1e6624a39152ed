"""The options of the simulator of profiler traces."""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.errors import UsageError

PROFILE_FAULT_HELP: dict[str, str] = {
    "slow-kernels": "the compute kernels of one rank are slower",
    "host-bound": "the CPU of one rank is slow: its kernels are as fast as on other ranks, but launched late",
    "data-loading": "one rank waits a long time for its batches",
    "garbage-collection": "garbage collection pauses Python on one rank in some steps, outside of any operator",
    "more-work": "one rank has longer sequences: the same kernels on larger tensors",
    "compile": "one rank compiles in the middle of a step",
    "slow-link": "all traffic over the links of one host is slower",
    "stage-imbalance": "the last pipeline stage has more work than the others",
}
PROFILE_FAULTS: tuple[str, ...] = tuple(PROFILE_FAULT_HELP)

FIRST_STEP = 1
"""Step 0 runs unrecorded, so that the first recorded step begins as any other."""

PIPELINE_GROUPS = ("pair", "line")
_DEFAULT_FACTOR = {
    "slow-kernels": 1.3,
    "host-bound": 10.0,
    "more-work": 1.4,
    "slow-link": 5.0,
    "stage-imbalance": 1.5,
}
_DEFAULT_SECONDS = {"data-loading": 0.03, "garbage-collection": 0.08, "compile": 0.25}


@dataclass(frozen=True)
class ProfileSpec:
    """The job, and what its profilers record. Rank = stage * data_parallel + replica."""

    data_parallel: int = 8
    stages: int = 1
    ranks_per_host: int = 8
    n_steps: int = 4
    """Steps that each rank records."""
    n_layers: int = 4
    """Layers of each pipeline stage."""
    n_microbatches: int = 4
    """In a pipeline those of its schedule, without one the rounds of gradient accumulation."""
    seed: int = 0
    pipeline_groups: str = "pair"
    """`pair`: a group for each direction between two stages, so that both ends count alike. `line`: one group over all
    stages, whose sends and receives each process counts alone, as torch does: the numbers of the two ends differ."""
    with_metadata: bool = True
    """What NCCL was asked to do is written to its kernels and the groups to the head of the trace."""
    with_seq: bool = True
    """The metadata hold the sequence number and the id of each call."""
    with_sync: bool = True
    with_stack: bool = False
    with_steps: bool = True

    def __post_init__(self) -> None:
        for name in ("data_parallel", "stages", "ranks_per_host", "n_steps", "n_layers", "n_microbatches"):
            if getattr(self, name) < 1:
                raise UsageError(f"a job cannot have {name}={getattr(self, name)}", f"set {name} to 1 or more")
        if self.world_size < 2:
            raise UsageError("a job with one rank has no communication", "raise data_parallel or stages")
        if self.pipeline_groups not in PIPELINE_GROUPS:
            raise UsageError(
                f"unknown pipeline_groups {self.pipeline_groups!r}", f"choose one of: {', '.join(PIPELINE_GROUPS)}"
            )

    @property
    def world_size(self) -> int:
        return self.data_parallel * self.stages

    def stage_of(self, rank: int) -> int:
        return rank // self.data_parallel

    def replica_of(self, rank: int) -> int:
        return rank % self.data_parallel

    def host_of(self, rank: int) -> int:
        return rank // self.ranks_per_host

    def ranks_of_stage(self, stage: int) -> tuple[int, ...]:
        return tuple(range(stage * self.data_parallel, (stage + 1) * self.data_parallel))

    def ranks_of_replica(self, replica: int) -> tuple[int, ...]:
        return tuple(range(replica, self.world_size, self.data_parallel))

    def ranks_of_host(self, host: int) -> tuple[int, ...]:
        return tuple(range(host * self.ranks_per_host, min((host + 1) * self.ranks_per_host, self.world_size)))


@dataclass(frozen=True)
class ProfileFault:
    kind: str
    rank: int | None = None
    """None: drawn from the job's seed."""
    factor: float | None = None
    """How many times slower or larger; None: a plausible one for the kind."""
    seconds: float | None = None
    """How long each pause is; None: a plausible one for the kind."""
    steps: tuple[int, ...] | None = None
    """Where the pauses are. None: data loading in all steps, garbage collection in every second, compiling in one."""

    def __post_init__(self) -> None:
        if self.kind not in PROFILE_FAULT_HELP:
            raise UsageError(f"unknown fault {self.kind!r}", f"choose one of: {', '.join(PROFILE_FAULTS)}")
        if self.factor is not None and self.factor <= 0:
            raise UsageError(f"a factor of {self.factor} is not positive", "set factor to a value above 0")
        if self.seconds is not None and self.seconds < 0:
            raise UsageError(f"a pause cannot last {self.seconds} s", "set seconds to 0 or more")

    @property
    def actual_factor(self) -> float:
        return _DEFAULT_FACTOR.get(self.kind, 1.0) if self.factor is None else self.factor

    @property
    def actual_seconds(self) -> float:
        return _DEFAULT_SECONDS.get(self.kind, 0.0) if self.seconds is None else self.seconds

    @property
    def is_pause(self) -> bool:
        return self.kind in _DEFAULT_SECONDS


@dataclass(frozen=True)
class ProfileNoise:
    """What makes the traces of a real cluster differ from those of an ideal one."""

    clock_skew_ms: float = 5.0
    """Standard deviation of the offsets of the hosts' clocks."""
    drift_ppm: float = 0.0
    """Standard deviation of the hosts' clock rates."""
    jitter: float = 0.02
    """Relative standard deviation of everything that takes time."""
    window_offset: int = 0
    """Each rank begins to record at a different step, up to this many steps after the first."""
    drop_collectives: float = 0.0
    """Share of the communication kernels that are missing from the traces."""
    lost_ranks: tuple[int, ...] = ()
    cut_ranks: tuple[int, ...] = ()
    """Ranks whose files are truncated."""
    mixed_bases: bool = False
    """Every other rank was started in the quarter before, so that its times count from another base."""

    def __post_init__(self) -> None:
        if not 0 <= self.drop_collectives <= 1:
            raise UsageError(
                f"drop_collectives={self.drop_collectives} is not a share",
                "set drop_collectives to a value from 0 to 1",
            )
        if min(self.clock_skew_ms, self.drift_ppm, self.jitter, self.window_offset) < 0:
            raise UsageError("noise cannot be negative", "set every number of the noise to 0 or more")
