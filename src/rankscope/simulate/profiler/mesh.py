"""The process groups of a job of pipeline stages and data-parallel replicas, named as torch names them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from rankscope.simulate.groups import Group
from rankscope.simulate.profiler.program import Exchange, StepProgram
from rankscope.simulate.profiler.spec import ProfileSpec


@dataclass(frozen=True)
class Mesh:
    spec: ProfileSpec
    world: Group
    of_stage: tuple[Group, ...]
    """The group over which each stage reduces its gradients."""
    of_hop: dict[tuple[int, int], Group]
    """The group through which a source rank sends to a destination rank."""
    of_rank: tuple[tuple[Group, ...], ...]
    """For each rank its groups in the order of creation."""

    def peer(self, rank: int, exchange: Exchange) -> int:
        return rank + exchange.towards * self.spec.data_parallel

    def hop(self, rank: int, exchange: Exchange) -> tuple[int, int]:
        """The source and the destination of a transfer."""
        peer = self.peer(rank, exchange)
        return (rank, peer) if exchange.op == "send" else (peer, rank)

    def group(self, rank: int, exchange: Exchange) -> Group:
        if exchange.is_p2p:
            return self.of_hop[self.hop(rank, exchange)]
        return self.of_stage[self.spec.stage_of(rank)]

    def members(self, rank: int, exchange: Exchange) -> tuple[int, ...]:
        """Who must come for the exchange to begin."""
        return self.hop(rank, exchange) if exchange.is_p2p else self.group(rank, exchange).ranks

    def sequence_number(self, exchange: Exchange, program: StepProgram, step: int) -> int:
        """The number that the process counts for the call. Collectives and transfers are counted apart."""
        if not exchange.is_p2p:
            return step * program.n_collectives + exchange.local_ordinal + 1
        if self.spec.pipeline_groups == "line":
            return step * program.n_transfers + exchange.local_ordinal + 1
        return step * self.spec.n_microbatches + exchange.ordinal + 1


def make_mesh(spec: ProfileSpec) -> Mesh:
    world = Group("0", "default_pg", tuple(range(spec.world_size)))
    groups = [world]

    def add(desc: str, ranks: tuple[int, ...]) -> Group:
        groups.append(Group(str(len(groups)), desc, ranks))
        return groups[-1]

    of_stage: tuple[Group, ...] = (world,)
    if spec.stages > 1:
        of_stage = tuple(add("dp", spec.ranks_of_stage(stage)) for stage in range(spec.stages))
    of_hop: dict[tuple[int, int], Group] = {}
    for replica in range(spec.data_parallel):
        line = spec.ranks_of_replica(replica)
        whole = add("pp", line) if spec.pipeline_groups == "line" and len(line) > 1 else None
        for lower, upper in pairwise(line):
            of_hop[lower, upper] = whole or add("pp_forward", (lower, upper))
            of_hop[upper, lower] = whole or add("pp_backward", (lower, upper))
    of_rank = tuple(tuple(group for group in groups if rank in group.ranks) for rank in range(spec.world_size))
    return Mesh(spec, world, of_stage, of_hop, of_rank)
