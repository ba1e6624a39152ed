"""A finished simulation: the dumps of its ranks, as files or as plain dicts, and the truth about it."""

from __future__ import annotations

import gzip as gzip_format
import json
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from os import PathLike
from pathlib import Path
from random import Random
from typing import Any

from rankscope.simulate.engine import Run
from rankscope.simulate.faults import inject_faults, members_around
from rankscope.simulate.jobs import build_job
from rankscope.simulate.program import Job
from rankscope.simulate.recorder import TIMEOUT_MS, Camera, take_dump, to_json
from rankscope.simulate.spec import Fault, JobSpec, Noise, Truth

_NO_NOISE = Noise()
_MIXED_VERSIONS = ("2.10", "2.7")
_MAX_UNNOTICED = 3


@dataclass(frozen=True)
class Simulation:
    spec: JobSpec
    faults: tuple[Fault, ...]
    noise: Noise
    truths: tuple[Truth, ...]
    """One for each fault; of a healthy job one that says so."""
    job: Job = field(repr=False)
    run: Run = field(repr=False)
    lost_ranks: frozenset[int]
    """Ranks without a dump, whether by the fault or by the noise."""
    cut_ranks: frozenset[int]
    """Ranks whose files are written truncated."""
    cameras: tuple[Camera, ...] = field(repr=False)

    @property
    def truth(self) -> Truth:
        return self.truths[0]

    @property
    def world_size(self) -> int:
        return self.spec.mesh.world

    def host_of(self, rank: int) -> str:
        return f"node{rank // self.spec.ranks_per_host:02d}"

    def dumps(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Each rank's dump in turn; one at a time, since those of a large job do not fit into memory together."""
        for rank, camera in enumerate(self.cameras):
            if rank not in self.lost_ranks:
                yield rank, take_dump(self.run.ranks[rank], self.job.groups_of(rank), camera)

    def write(
        self,
        folder: str | PathLike[str],
        prefix: str = "nccl_trace_rank_",
        *,
        host_in_name: bool = False,
        as_json: bool = False,
        gzip: bool = False,
    ) -> list[Path]:
        """Write one file per rank that left a dump, and return their paths in the order of the ranks."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        extension = (".json" if as_json else "") + (".gz" if gzip else "")
        random = Random(self.spec.seed)
        paths = []
        for rank, dump in self.dumps():
            content = json.dumps(to_json(dump)).encode() if as_json else pickle.dumps(dump, protocol=2)
            if gzip:
                # Without a time stamp, so that the same seed gives the same bytes.
                content = gzip_format.compress(content, compresslevel=1, mtime=0)
            if rank in self.cut_ranks:
                content = content[: int(len(content) * random.uniform(0.1, 0.9))]
            host = f"{self.host_of(rank)}_" if host_in_name else ""
            path = folder / f"{prefix}{host}{rank}{extension}"
            path.write_bytes(content)
            paths.append(path)
        return paths


def simulate(spec: JobSpec, faults: Fault | Sequence[Fault] | None = None, noise: Noise = _NO_NOISE) -> Simulation:
    """Run the job, with the faults if any are given, and look at it through the noise; equal arguments, equal dumps."""
    asked = () if faults is None else (faults,) if isinstance(faults, Fault) else tuple(faults)
    job = build_job(spec)
    run, truths = inject_faults(job, asked)
    random = Random(f"{spec.seed} noise")
    bystanders = _draw_bystanders(job, truths, random, noise.lost + noise.cut)
    lost = set(bystanders[: noise.lost])
    lost.update(rank for truth in truths if truth.rule == "rank-lost" for rank in truth.ranks)
    culprits = [rank for truth in truths for rank in truth.ranks]
    return Simulation(
        spec=spec,
        faults=asked,
        noise=noise,
        truths=truths,
        job=job,
        run=run,
        lost_ranks=frozenset(lost),
        cut_ranks=frozenset(bystanders[noise.lost :]),
        cameras=_set_up_cameras(job, noise, run, lost.union(bystanders, culprits), random),
    )


def _draw_bystanders(job: Job, truths: Sequence[Truth], random: Random, wanted: int) -> list[int]:
    """Ranks whose dumps the verdict can do without, as many as there are up to the wanted number.

    Ranks outside the culprits' groups come first. Members of these groups follow only where enough of the others stay
    to form a majority.
    """
    culprits = {rank for truth in truths for rank in truth.ranks}
    close = {rank for truth in truths for rank in members_around(job, truth)}
    ranks = range(job.spec.mesh.world)
    outside = [rank for rank in ranks if rank not in close and rank not in culprits]
    inside = [rank for rank in ranks if rank in close and rank not in culprits]
    random.shuffle(outside)
    random.shuffle(inside)
    # Nothing tells a member that died from one that joined and whose dump was lost, and no majority holds for two.
    has_spare = len(truths) == 1 and truths[0].rule != "rank-lost"
    n_spare = max(0, len(inside) - max(2, ceil(len(inside) / 2))) if has_spare else 0
    return (outside + inside[:n_spare])[:wanted]


def _choose_unnoticing(job: Job, silent: set[int], random: Random) -> set[int]:
    """Ranks whose watchdog lags behind: at most one of each group but the world, as a lag is never common to all."""
    ranks = list(range(job.spec.mesh.world))
    random.shuffle(ranks)
    chosen: set[int] = set()
    of_rank = job.generations[-1].of_rank
    for rank in ranks:
        close = {other for group in of_rank[rank] if len(group.ranks) < len(ranks) for other in group.ranks}
        is_alone = any(set(group.ranks) <= {rank, *silent} for group in of_rank[rank])  # nobody else noticed
        if rank not in silent and not is_alone and not close & chosen and len(chosen) < len(ranks) // 2:
            chosen.add(rank)
    return chosen


def _set_up_cameras(job: Job, noise: Noise, run: Run, silent: set[int], random: Random) -> tuple[Camera, ...]:
    spec = job.spec
    unnoticing = _choose_unnoticing(job, silent, random) if noise.uneven_state else set()
    world = spec.mesh.world
    skew_ns = int(noise.clock_skew_ms * 1e6)
    offsets = [random.randint(-skew_ns, skew_ns) for _ in range(ceil(world / spec.ranks_per_host))]
    timeout_ns = TIMEOUT_MS * 1_000_000
    dump_ns = run.last_event_ns + (timeout_ns if run.is_hung else 1_000_000_000)
    cameras = []
    for rank in range(world):
        n_unnoticed = 0
        if rank in unnoticing:
            n_unnoticed = min(random.randint(1, _MAX_UNNOTICED), len(run.ranks[rank].done_ns))
        cameras.append(
            Camera(
                rank=rank,
                version=_MIXED_VERSIONS[rank % 2] if noise.version == "mixed" else noise.version,
                ring=noise.ring,
                dump_ns=dump_ns,
                clock_offset_ns=offsets[rank // spec.ranks_per_host],
                timing=noise.timing,
                abort_ns=dump_ns + 1_000_000 if noise.abort and run.is_hung else None,
                n_unnoticed=n_unnoticed,
                same_ids=noise.same_ids,
            )
        )
    return tuple(cameras)
