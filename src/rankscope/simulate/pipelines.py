"""Schedules of a pipeline: in which order each stage computes, and which transfers it posts together."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from rankscope.errors import UsageError

_CHUNKS = 2  # layers that an interleaved stage holds apart from each other


class Half(NamedTuple):
    """One side of a transfer; the stage is that of the other side."""

    is_send: bool
    stage: int


class Post(NamedTuple):
    """Transfers that a stage starts together and waits for."""

    halves: tuple[Half, ...]
    is_batch: bool


Turn = str | Post  # forward or backward: the stage computes


@lru_cache(maxsize=16)
def turns_of(schedule: str, n_stages: int, n_microbatches: int) -> tuple[tuple[Turn, ...], ...]:
    """What each stage does in one step of training."""
    if schedule == "1f1b":
        return tuple(_one_forward_one_backward(stage, n_stages, n_microbatches) for stage in range(n_stages))
    if schedule == "interleaved":
        return _Interleaving(n_stages, n_microbatches).turns()
    raise UsageError(f"no such schedule: {schedule!r}", "choose 1f1b or interleaved")


def _one_forward_one_backward(stage: int, n_stages: int, n_microbatches: int) -> tuple[Turn, ...]:
    is_first, is_last = stage == 0, stage == n_stages - 1
    n_warm = min(n_stages - 1 - stage, n_microbatches)

    def single(is_send: bool, peer: int, is_absent: bool) -> list[Turn]:
        return [] if is_absent else [Post((Half(is_send, peer),), is_batch=False)]

    def pair(peer: int) -> list[Turn]:
        return [Post((Half(True, peer), Half(False, peer)), is_batch=True)]

    receive_forward, send_forward = single(False, stage - 1, is_first), single(True, stage + 1, is_last)
    receive_backward, send_backward = single(False, stage + 1, is_last), single(True, stage - 1, is_first)
    turns: list[Turn] = []
    for _ in range(n_warm):
        turns += [*receive_forward, "forward", *send_forward]
    turns += receive_forward if n_microbatches > n_warm else []
    for number in range(n_warm, n_microbatches):
        turns += ["forward", *([] if is_last else pair(stage + 1)), "backward"]
        if not is_first:
            turns += send_backward if number == n_microbatches - 1 else pair(stage - 1)
    for _ in range(n_warm):
        turns += [*receive_backward, "backward", *send_backward]
    return tuple(turns)


class _Interleaving:
    """All stages in lockstep: each computes one chunk of layers, then all hand on what they made in one batch each."""

    def __init__(self, n_stages: int, n_microbatches: int) -> None:
        self.n_stages, self.n_microbatches = n_stages, n_microbatches
        self.last = n_stages * _CHUNKS - 1  # of the chunks, in the order in which a microbatch visits them
        self.done: set[tuple[str, int, int]] = set()

    def turns(self) -> tuple[tuple[Turn, ...], ...]:
        turns: list[list[Turn]] = [[] for _ in range(self.n_stages)]
        n_left = 2 * self.n_microbatches * (self.last + 1)
        while n_left:
            works = [self._next_work(stage) for stage in range(self.n_stages)]
            halves: list[list[Half]] = [[] for _ in range(self.n_stages)]
            for stage, work in enumerate(works):
                if work is None:
                    continue
                n_left -= 1
                self.done.add(work)
                turns[stage].append(work[0])
                target = work[2] + (1 if work[0] == "forward" else -1)
                if 0 <= target <= self.last:
                    halves[stage].append(Half(True, target % self.n_stages))
                    halves[target % self.n_stages].append(Half(False, stage))
            for stage, posted in enumerate(halves):
                turns[stage] += [Post(tuple(posted), is_batch=True)] if posted else []
        return tuple(tuple(stage) for stage in turns)

    def _next_work(self, stage: int) -> tuple[str, int, int] | None:
        """A backward pass as soon as there is one, otherwise the next forward pass, a few microbatches at a time."""
        chunks = range(stage, self.last + 1, self.n_stages)
        order = sorted(
            (number // self.n_stages, chunk, number) for chunk in chunks for number in range(self.n_microbatches)
        )
        backward = [("backward", number, chunk) for _, chunk, number in sorted(order, key=lambda work: work[2])]
        forward = [("forward", number, chunk) for _, chunk, number in order]
        return next((work for work in backward + forward if work not in self.done and self._is_ready(work)), None)

    def _is_ready(self, work: tuple[str, int, int]) -> bool:
        kind, number, chunk = work
        if kind == "forward":
            return chunk == 0 or ("forward", number, chunk - 1) in self.done
        needed = ("forward", number, chunk) if chunk == self.last else ("backward", number, chunk + 1)
        return needed in self.done
