"""A training job that knows nothing of the collector: torchrun's ranks, or ranks that it forks itself."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import time

import torch
import torch.distributed as dist

N_STEPS = 13
FAILING_STEP = 4


def main() -> None:
    options = parse_options()
    if options.forks:
        fork_ranks(options)
        return
    dist.init_process_group("gloo")
    train(options)
    dist.destroy_process_group()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--forks", type=int, default=0)
    parser.add_argument("--compiles", action="store_true")
    parser.add_argument("--asks", action="store_true")
    parser.add_argument("--killed", type=int, default=-1)
    parser.add_argument("--sleeps", type=int, default=-1)
    parser.add_argument("--raises", type=int, default=-1)
    return parser.parse_args()


def fork_ranks(options: argparse.Namespace) -> None:
    """Each has what was imported here: torch, and the part of it that DDP would import."""
    import torch._dynamo  # noqa: F401

    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=work, args=(rank, options)) for rank in range(options.forks)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    raise SystemExit(max(abs(rank.exitcode or 0) for rank in ranks))


def work(rank: int, options: argparse.Namespace) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=options.forks)
    train(options)
    dist.destroy_process_group()


def train(options: argparse.Namespace) -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of = torch.compile(loss, backend="eager", dynamic=False) if options.compiles else loss
    for step in range(N_STEPS):
        optimizer.zero_grad()
        loss_of(model(torch.randn(4 if step < N_STEPS - 1 else 5, 8))).backward()  # the last batch has another size
        exchange(step, options)
        optimizer.step()
    if options.asks:
        ask_for_a_dump()
    print(f"rank {dist.get_rank()} has trained {N_STEPS} steps", flush=True)


def loss(predicted: torch.Tensor) -> torch.Tensor:
    """When compiled: a graph break in its first run, and a recompilation when the batch has another size."""
    squares = predicted * predicted
    if torch.compiler.is_compiling():
        torch._dynamo.graph_break()
    return squares.sum()


def exchange(step: int, options: argparse.Namespace) -> None:
    """A sum over all ranks, and a message from each even rank to the next one."""
    rank = dist.get_rank()
    if step == FAILING_STEP:
        fail(rank, options)
    dist.all_reduce(torch.ones(4))
    if rank % 2 == 1:
        dist.recv(torch.empty(2), rank - 1)
    elif rank + 1 < dist.get_world_size():
        dist.send(torch.ones(2), rank + 1)


def fail(rank: int, options: argparse.Namespace) -> None:
    if rank == options.killed:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == options.sleeps:
        time.sleep(3600)
    if rank == options.raises:
        raise RuntimeError("this rank cannot go on")


def ask_for_a_dump() -> None:
    """As a user at a shell does who wants to know how the job is; all ranks wait until that is written."""
    os.kill(os.getpid(), signal.SIGUSR2)
    time.sleep(1)
    dist.barrier()


if __name__ == "__main__":
    main()
