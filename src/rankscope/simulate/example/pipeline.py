"""Runs the microbatches of one step through the pipeline: all forward passes, then all backward passes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Neighbours:
    """The ranks that hold the stages before and after this one; None at the ends of the pipeline."""

    group: dist.ProcessGroup
    previous: int | None
    following: int | None


def receive_activations(like: Tensor, neighbours: Neighbours) -> Tensor:
    activations = torch.empty_like(like, requires_grad=True)
    dist.recv(activations, src=neighbours.previous, group=neighbours.group)
    return activations


def send_activations(activations: Tensor, neighbours: Neighbours) -> None:
    dist.send(activations.detach(), dst=neighbours.following, group=neighbours.group)


def exchange_gradients(outgoing: Tensor | None, incoming: Tensor | None, neighbours: Neighbours) -> None:
    """Hand one gradient to the stage before while taking the next one from the stage after."""
    operations = []
    if outgoing is not None and neighbours.previous is not None:
        operations.append(dist.P2POp(dist.isend, outgoing, neighbours.previous, neighbours.group))
    if incoming is not None and neighbours.following is not None:
        operations.append(dist.P2POp(dist.irecv, incoming, neighbours.following, neighbours.group))
    if operations:
        for work in dist.batch_isend_irecv(operations):
            work.wait()


def run_forward(stage: nn.Module, batches: list[Tensor], neighbours: Neighbours) -> list[tuple[Tensor, Tensor]]:
    passes = []
    for batch in batches:
        hidden = batch
        if neighbours.previous is not None:
            hidden = receive_activations(batch, neighbours)
        output = stage(hidden)
        if neighbours.following is not None:
            send_activations(output, neighbours)
        passes.append((hidden, output))
    return passes


def run_backward(passes: list[tuple[Tensor, Tensor]], neighbours: Neighbours) -> None:
    finished: Tensor | None = None
    for hidden, output in passes:
        gradient = torch.ones_like(output)
        exchange_gradients(finished, gradient, neighbours)
        output.backward(gradient)
        finished = hidden.grad
    exchange_gradients(finished, None, neighbours)


def run_microbatches(stage: nn.Module, batches: list[Tensor], neighbours: Neighbours) -> Tensor:
    passes = run_forward(stage, batches, neighbours)
    run_backward(passes, neighbours)
    return torch.stack([output.detach().float().mean() for _, output in passes]).mean()
