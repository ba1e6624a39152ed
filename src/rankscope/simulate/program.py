"""What each rank of a job calls, step by step."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain
from math import prod
from typing import NamedTuple

from rankscope.simulate.groups import Group, Groups
from rankscope.simulate.sites import Site
from rankscope.simulate.spec import JobSpec

Shape = tuple[int, ...]

_LATENCY_NS = 150_000
_NS_PER_ELEMENT = 0.06


class Transfer(NamedTuple):
    """One direction of point-to-point traffic; the peer is a global rank."""

    is_send: bool
    peer: int


@dataclass(frozen=True, eq=False)
class Call:
    """A call as one rank makes it. Equal calls are one object, which is what keeps big jobs small."""

    group: Group
    op: str
    site: Site
    input_sizes: tuple[Shape, ...] = ()
    output_sizes: tuple[Shape, ...] = ()
    dtype: str = "BFloat16"
    transfers: tuple[Transfer, ...] = ()
    alternative: Call | None = None
    """What the program's other branch calls here."""
    agreement: Hashable = None
    """If the sizes differ between members: what they follow from, which must be equal on all members."""

    @property
    def is_batch(self) -> bool:
        return self.op == "coalesced"

    @property
    def partners(self) -> tuple[int, ...]:
        """The global ranks that must come for the call to finish."""
        return tuple(transfer.peer for transfer in self.transfers) or self.group.ranks

    @property
    def n_entries(self) -> int:
        """A batch is recorded as its members and a trailer, anything else as one entry."""
        return len(self.transfers) + 1 if self.is_batch else 1

    @cached_property
    def device_ns(self) -> int:
        return _LATENCY_NS + int(_NS_PER_ELEMENT * sum(map(prod, self.input_sizes or self.output_sizes)))

    def is_compatible(self, other: Call) -> bool:
        if (self.op, self.dtype, self.agreement) != (other.op, other.dtype, other.agreement):
            return False
        if self.agreement is not None:
            return True
        return self.input_sizes == other.input_sizes and self.output_sizes == other.output_sizes

    def looks_like(self, other: Call) -> bool:
        """Whether the two leave the same traces, so that one can replace the other unnoticed."""
        return self.site is other.site and self.is_compatible(other)


Step = tuple[Call, ...]


@dataclass(frozen=True, eq=False)
class Program:
    steps: tuple[Step, ...]
    restarts: frozenset[int] = frozenset()
    """Steps before which the rank destroys its groups and makes them again."""
    descs: dict[Group, str] = field(default_factory=dict)
    """What the rank takes a group for, where it is not what its peers take it for."""

    def calls(self) -> list[Call]:
        return list(chain.from_iterable(self.steps))

    def step_starts(self) -> list[int]:
        return [0, *accumulate(len(step) for step in self.steps)][:-1]

    def with_step(self, number: int, step: Step) -> Program:
        return replace(self, steps=(*self.steps[:number], step, *self.steps[number + 1 :]))


@dataclass(frozen=True)
class Job:
    spec: JobSpec
    generations: tuple[Groups, ...]
    programs: tuple[Program, ...]

    def groups_at(self, step: int) -> Groups:
        return self.generations[self.spec.generation_of(step)]

    def groups_of(self, rank: int) -> tuple[tuple[Group, ...], ...]:
        """The rank's groups, generation by generation."""
        return tuple(groups.of_rank[rank] for groups in self.generations)
