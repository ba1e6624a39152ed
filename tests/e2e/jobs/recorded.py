"""A small training job that knows nothing of rankscope: alone, under torchrun, or with workers that it spawns."""

from __future__ import annotations

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist

N_STEPS = 13


def train(options: argparse.Namespace) -> None:
    model: torch.nn.Module = torch.nn.Linear(8, 8)
    if dist.is_initialized():
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(N_STEPS):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        if step == 3 and options.fails_on == int(os.environ.get("RANK", "0")):
            raise RuntimeError("this rank fails")
    if options.sleeps:
        print("ready", flush=True)
        time.sleep(60)


def compile_twice() -> None:
    """A graph break in the first run, a recompilation in the second."""

    @torch.compile(backend="eager")
    def twice(x: torch.Tensor, factor: int) -> torch.Tensor:
        y = x * factor
        torch._dynamo.graph_break()
        return y + 1

    for factor in (2, 3):
        twice(torch.ones(3), factor)


def work(rank: int, options: argparse.Namespace) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(options.spawns)}
    dist.init_process_group("gloo", rank=rank, world_size=options.spawns)
    train(options)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fails-on", type=int, default=-1)
    parser.add_argument("--spawns", type=int, default=0)
    for switch in ("--sleeps", "--compiles", "--reads"):
        parser.add_argument(switch, action="store_true")
    options = parser.parse_args()
    if options.spawns:
        torch.multiprocessing.spawn(work, (options,), options.spawns)
        return
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    if options.compiles:
        compile_twice()
    train(options)
    if options.reads:
        print(f"read {sys.stdin.read()!r}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
