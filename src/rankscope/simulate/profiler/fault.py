"""Turns a fault into the conditions that the job runs under, and says which ranks cause it."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import NamedTuple

from rankscope.errors import UsageError
from rankscope.simulate.profiler.mesh import Mesh
from rankscope.simulate.profiler.operators import TOKENS
from rankscope.simulate.profiler.run import Conditions
from rankscope.simulate.profiler.spec import FIRST_STEP, ProfileFault, ProfileNoise

_PAUSE_SPREAD = 0.05


class Struck(NamedTuple):
    """A job with a fault in it."""

    conditions: Conditions
    ranks: tuple[int, ...]
    """The culprits."""
    groups: tuple[str, ...]
    steps: tuple[int, ...]


def strike(mesh: Mesh, healthy: Conditions, fault: ProfileFault, noise: ProfileNoise) -> Struck:
    spec = mesh.spec
    rank = _culprit(mesh, fault)
    factor = fault.actual_factor
    steps = tuple(range(FIRST_STEP, FIRST_STEP + spec.n_steps + noise.window_offset))
    groups: tuple[str, ...] = ()
    ranks: tuple[int, ...] = (rank,)
    if fault.is_pause:
        steps = _pause_steps(fault, steps, noise.window_offset)
        conditions = replace(healthy, pauses=_pauses(fault, rank, steps, spec.seed))
    elif fault.kind == "slow-kernels":
        conditions = replace(healthy, kernel_factor={rank: factor})
    elif fault.kind == "host-bound":
        conditions = replace(healthy, host_factor={rank: factor})
    elif fault.kind == "more-work":
        # Longer sequences pass through all stages of their pipeline.
        ranks = spec.ranks_of_replica(spec.replica_of(rank))
        conditions = replace(healthy, tokens=dict.fromkeys(ranks, round(TOKENS * factor)))
    elif fault.kind == "slow-link":
        ranks = spec.ranks_of_host(spec.host_of(rank))
        conditions = replace(healthy, slow_ranks=frozenset(ranks), link_factor=factor)
        used = [*mesh.of_stage, *mesh.of_hop.values()]
        slow = {group.name for group in used if len(group.ranks) > 1 and not set(ranks).isdisjoint(group.ranks)}
        groups = tuple(sorted(slow, key=int))
    else:
        ranks = spec.ranks_of_stage(spec.stages - 1)
        conditions = replace(healthy, last_stage_factor=factor)
    return Struck(conditions, ranks, groups, steps)


def _culprit(mesh: Mesh, fault: ProfileFault) -> int:
    spec = mesh.spec
    if fault.kind == "stage-imbalance" and spec.stages == 1:
        raise UsageError("a job with one stage cannot have unbalanced stages", "set stages to 2 or more")
    if fault.rank is None:
        return Random(f"{spec.seed} culprit").randrange(spec.world_size)
    if not 0 <= fault.rank < spec.world_size:
        raise UsageError(f"the job has no rank {fault.rank}", f"choose a rank from 0 to {spec.world_size - 1}")
    return fault.rank


def _pause_steps(fault: ProfileFault, steps: tuple[int, ...], window_offset: int) -> tuple[int, ...]:
    if fault.steps is not None:
        return fault.steps
    if fault.kind == "garbage-collection":
        return steps[::2]
    if fault.kind == "compile":
        # Where all ranks record, if there is such a step.
        common = steps[window_offset : len(steps) - window_offset] or steps
        return (common[len(common) // 2],)
    return steps


def _pauses(
    fault: ProfileFault, rank: int, steps: tuple[int, ...], seed: int
) -> dict[tuple[int, int], tuple[str, int]]:
    random = Random(f"{seed} pauses")
    pauses = {}
    for step in steps:
        seconds = fault.actual_seconds * random.uniform(1 - _PAUSE_SPREAD, 1 + _PAUSE_SPREAD)
        pauses[rank, step] = fault.kind, int(seconds * 1e9)
    return pauses
