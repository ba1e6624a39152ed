"""What each rank of the job calls, step by step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain
from math import prod
from typing import NamedTuple

from rankscope.simulate.groups import Group, Groups, build_groups
from rankscope.simulate.sites import Site, example_sites
from rankscope.simulate.spec import JobSpec

Shape = tuple[int, ...]

EVALUATE_EVERY = 4
_ACTIVATIONS: Shape = (4, 1024, 2048)
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
    """What the program's other branch calls in this place."""

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
        return (
            self.op == other.op
            and self.input_sizes == other.input_sizes
            and self.output_sizes == other.output_sizes
            and self.dtype == other.dtype
        )

    def looks_like(self, other: Call) -> bool:
        """Whether the two leave the same traces, so that one can stand in for the other unnoticed."""
        return self.site is other.site and self.is_compatible(other)


Step = tuple[Call, ...]


@dataclass(frozen=True, eq=False)
class Program:
    steps: tuple[Step, ...]

    def calls(self) -> list[Call]:
        return list(chain.from_iterable(self.steps))

    def step_starts(self) -> list[int]:
        return [0, *accumulate(len(step) for step in self.steps)][:-1]

    def with_step(self, number: int, step: Step) -> Program:
        return replace(self, steps=(*self.steps[:number], step, *self.steps[number + 1 :]))


@dataclass(frozen=True)
class Job:
    spec: JobSpec
    groups: Groups
    programs: tuple[Program, ...]


def build_job(spec: JobSpec) -> Job:
    groups = build_groups(spec.mesh)
    writer = _ProgramWriter(spec, groups)
    return Job(spec, groups, tuple(writer.program_of(rank) for rank in range(spec.mesh.world)))


class _ProgramWriter:
    """Writes the ranks' programs and shares every call between the ranks, layers and steps that make it."""

    def __init__(self, spec: JobSpec, groups: Groups) -> None:
        self.spec = spec
        self.groups = groups
        self.sites = example_sites()
        self.world_calls = self._world_calls()
        self.group_calls: dict[tuple[Group, str], Step] = {}

    def program_of(self, rank: int) -> Program:
        plain = (*self._forward(rank), *self._backward(rank), *self._reduce(rank), *self.world_calls[:2])
        evaluating = (*plain, *self._evaluate(rank), self.world_calls[2])
        return Program(
            tuple(evaluating if step % EVALUATE_EVERY == 0 else plain for step in range(1, self.spec.steps + 1))
        )

    def _all_reduce(self, group: Group, site: str, shape: Shape, dtype: str = "BFloat16") -> Call:
        return Call(group, "all_reduce", self.sites[site], (shape,), (shape,), dtype)

    def _all_gather(self, group: Group, site: str, shape: Shape, dtype: str = "BFloat16") -> Call:
        gathered = (shape[0] * len(group.ranks), *shape[1:])
        return Call(group, "_all_gather_base", self.sites[site], (shape,), (gathered,), dtype)

    def _world_calls(self) -> Step:
        world = self.groups.world
        norm = self._all_reduce(world, "norm", (1,), "Float")
        shared = replace(norm, op="broadcast", site=self.sites["norm_broadcast"])
        return (
            replace(norm, alternative=shared),
            self._all_reduce(world, "loss", (1,), "Float"),
            Call(world, "all_reduce_barrier", self.sites["barrier"], dtype="Float"),
        )

    def _tp_calls(self, group: Group) -> Step:
        calls = self.group_calls.get((group, "layer"))
        if calls is None:
            feed_forward = self._all_reduce(group, "feed_forward", _ACTIVATIONS)
            gather = self._all_gather(group, "feed_forward_gather", _ACTIVATIONS)
            calls = self.group_calls[group, "layer"] = (
                self._all_reduce(group, "attention", _ACTIVATIONS),
                replace(feed_forward, alternative=gather),
                self._all_reduce(group, "tp_backward", _ACTIVATIONS),
            )
        return calls

    def _stage_neighbours(self, rank: int) -> tuple[Group | None, int | None, int | None]:
        group = self.groups.pp.get(rank)
        if group is None:
            return None, None, None
        place = group.ranks.index(rank)
        previous = group.ranks[place - 1] if place > 0 else None
        following = group.ranks[place + 1] if place + 1 < len(group.ranks) else None
        return group, previous, following

    def _forward(self, rank: int) -> Step:
        calls: list[Call] = []
        pp_group, previous, following = self._stage_neighbours(rank)
        if pp_group and previous is not None:
            calls.append(self._unbatched(pp_group, Transfer(False, previous), "receive_activations"))
        if rank in self.groups.tp:
            calls.extend(self._tp_calls(self.groups.tp[rank])[:2] * self.spec.layers)
        if pp_group and following is not None:
            calls.append(self._unbatched(pp_group, Transfer(True, following), "send_activations"))
        return tuple(calls) * self.spec.microbatches

    def _unbatched(self, group: Group, transfer: Transfer, site: str) -> Call:
        op = "send" if transfer.is_send else "recv"
        sizes = (_ACTIVATIONS,)
        return Call(group, op, self.sites[site], sizes, sizes, transfers=(transfer,))

    def _backward(self, rank: int) -> Step:
        """Gradients travel in batches: the one just finished goes out while the next one comes in."""
        pp_group, previous, following = self._stage_neighbours(rank)
        outgoing = (Transfer(True, previous),) if previous is not None else ()
        incoming = (Transfer(False, following),) if following is not None else ()
        layers = self._tp_calls(self.groups.tp[rank])[2:] * self.spec.layers if rank in self.groups.tp else ()
        if pp_group is None:
            return layers * self.spec.microbatches
        first = self._batch(pp_group, incoming, "exchange_gradients")
        between = self._batch(pp_group, outgoing + incoming, "exchange_gradients")
        last = self._batch(pp_group, outgoing, "hand_over_last_gradient")
        return (*first, *layers, *(between + layers) * (self.spec.microbatches - 1), *last)

    def _batch(self, group: Group, transfers: tuple[Transfer, ...], site: str) -> Step:
        if not transfers:
            return ()
        sizes = (_ACTIVATIONS,)
        return (Call(group, "coalesced", self.sites[site], sizes, sizes, transfers=transfers),)

    def _reduce(self, rank: int) -> Step:
        group = self.groups.dp.get(rank)
        if group is None:
            return ()
        calls = self.group_calls.get((group, "buckets"))
        if calls is None:
            calls = self.group_calls[group, "buckets"] = tuple(
                self._bucket(group, number) for number in range(self.spec.buckets)
            )
        return calls

    def _bucket(self, group: Group, number: int) -> Call:
        # Every bucket has a size of its own, as the parameters of a model seldom divide evenly.
        shape = (1_048_576 * (self.spec.buckets - number) + 2_048 * (number + 1),)
        return replace(
            self._all_reduce(group, "bucket", shape), alternative=self._all_gather(group, "bucket_gather", shape)
        )

    def _evaluate(self, rank: int) -> Step:
        group = self.groups.dp.get(rank)
        if group is None:
            return ()
        calls = self.group_calls.get((group, "evaluate"))
        if calls is None:
            calls = self.group_calls[group, "evaluate"] = (
                self._all_gather(group, "evaluate", (EVALUATE_EVERY,), "Float"),
            )
        return calls
