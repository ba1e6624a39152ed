"""What the ranks of the example training program call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rankscope.simulate.groups import Group, Groups
from rankscope.simulate.pipelines import Post, turns_of
from rankscope.simulate.program import Call, Shape, Step, Transfer
from rankscope.simulate.sites import example_sites
from rankscope.simulate.spec import JobSpec
from rankscope.simulate.uneven import uneven_call

EVALUATE_EVERY = 4
_ACTIVATIONS: Shape = (4, 1024, 2048)


class ExampleProgram:
    """Writes the ranks' programs and shares every call between the ranks, layers and steps that make it."""

    def __init__(self, spec: JobSpec, groups: Groups) -> None:
        self.spec = spec
        self.groups = groups
        self.sites = example_sites()
        self.world_calls = self._world_calls()
        self.group_calls: dict[tuple[Group, str], Step] = {}

    def steps_of(self, rank: int, numbers: Iterable[int]) -> list[Step]:
        plain = (*self._pipeline(rank), *self._reduce(rank), *self.world_calls[:2])
        evaluating = (*plain, *self._evaluate(rank), self.world_calls[2])
        return [plain if (number + 1) % EVALUATE_EVERY else evaluating for number in numbers]

    def _pipeline(self, rank: int) -> Step:
        if self.spec.schedule == "gpipe" or rank not in self.groups.pp:
            return (*self._forward(rank), *self._backward(rank))
        group = self.groups.pp[rank]
        tp = self._tp_calls(self.groups.tp[rank]) if rank in self.groups.tp else ()
        work = {"forward": (*tp[:2], *self._exchange(rank)) * self.spec.layers, "backward": tp[2:] * self.spec.layers}
        calls: list[Call] = []
        for turn in turns_of(self.spec.schedule, len(group.ranks), self.spec.microbatches)[group.ranks.index(rank)]:
            calls += work[turn] if isinstance(turn, str) else self._post(group, turn)
        return tuple(calls)

    def _post(self, group: Group, turn: Post) -> Step:
        transfers = tuple(Transfer(half.is_send, group.ranks[half.stage]) for half in turn.halves)
        key = (group, repr((turn, transfers)))
        if key not in self.group_calls:
            if turn.is_batch:
                made = self._batch(group, transfers, "exchange_gradients")
            else:
                made = (
                    self._unbatched(
                        group, transfers[0], "send_activations" if transfers[0].is_send else "receive_activations"
                    ),
                )
            self.group_calls[key] = made
        return self.group_calls[key]

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
        position = group.ranks.index(rank)
        previous = group.ranks[position - 1] if position > 0 else None
        following = group.ranks[position + 1] if position + 1 < len(group.ranks) else None
        return group, previous, following

    def _forward(self, rank: int) -> Step:
        calls: list[Call] = []
        pp_group, previous, following = self._stage_neighbours(rank)
        if pp_group and previous is not None:
            calls.append(self._unbatched(pp_group, Transfer(False, previous), "receive_activations"))
        if rank in self.groups.tp:
            calls.extend(self._tp_calls(self.groups.tp[rank])[:2] * self.spec.layers)
        calls.extend(self._exchange(rank))
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

    def _exchange(self, rank: int) -> Step:
        """Tokens go to the experts and come back."""
        group = self.groups.ep.get(rank)
        if group is None:
            return ()
        key = (group, f"tokens of {rank}")
        if key not in self.group_calls:
            self.group_calls[key] = tuple(
                uneven_call("all_to_all", group, rank, self.sites[site]) for site in ("dispatch", "combine")
            )
        return self.group_calls[key]

    def _reduce(self, rank: int) -> Step:
        return (*self._reduce_buckets(rank), *self._reduce_experts(rank))

    def _reduce_experts(self, rank: int) -> Step:
        group = self.groups.ep.get(rank)
        if group is None:
            return ()
        key = (group, f"experts of {rank}")
        if key not in self.group_calls:
            self.group_calls[key] = (
                uneven_call("all_gather", group, rank, self.sites["gather_counts"]),
                uneven_call("reduce_scatter", group, rank, self.sites["scatter_gradients"]),
            )
        return self.group_calls[key]

    def _reduce_buckets(self, rank: int) -> Step:
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
