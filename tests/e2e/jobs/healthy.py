"""Short jobs in which nothing is wrong, one per way to train: none of them may get a warning."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.fsdp import fully_shard
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 64
BATCH = 32


class Options(argparse.Namespace):
    kind: str
    steps: int
    scratch: Path
    leaves: str
    late_ms: float


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("--steps", type=int, default=13)
    parser.add_argument("--scratch", type=Path, default=Path())
    parser.add_argument("--leaves", choices=("destroying", "at-once", "by-exit"), default="destroying")
    parser.add_argument("--late-ms", type=float, default=0, help="the last rank sleeps so long in each step")
    options = parser.parse_args(namespace=Options())
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    KINDS[options.kind](options)
    print(f"rank {dist.get_rank()} of {options.kind} has trained", flush=True)
    if options.leaves == "destroying":
        dist.destroy_process_group()
    elif options.leaves == "by-exit":
        sys.exit(0)


def layers(depth: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(part for _ in range(depth) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))


def batches(options: Options, n_fewer: int = 0) -> Iterator[torch.Tensor]:
    for _ in range(options.steps - n_fewer):
        if options.late_ms and dist.get_rank() == dist.get_world_size() - 1:
            time.sleep(options.late_ms / 1e3)
        yield torch.randn(BATCH, WIDTH)


def train(model: nn.Module, given: Iterator[torch.Tensor], after: Callable[[int], object] = lambda step: None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, batch in enumerate(given):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        after(step)


def data_parallel(options: Options) -> None:
    train(DistributedDataParallel(layers()), batches(options))


def loading(options: Options) -> None:
    """The commonest script of all: a DataLoader without workers, clipped gradients."""
    model = DistributedDataParallel(layers())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    samples = TensorDataset(torch.randn(options.steps * BATCH, WIDTH))
    for (batch,) in DataLoader(samples, batch_size=BATCH, shuffle=True):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def accumulating(options: Options) -> None:
    """Gradients are summed over two batches before they are exchanged; the loss is averaged in the background."""
    model = DistributedDataParallel(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, batch in enumerate(batches(options)):
        is_last = step % 2 == 1
        with contextlib.nullcontext() if is_last else model.no_sync():
            loss = model(batch).square().mean()
            loss.backward()
        told = dist.all_reduce(loss.detach(), async_op=True)
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
        assert told is not None
        told.wait()


def fully_sharded(options: Options) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = layers()
    for part in model:
        if isinstance(part, nn.Linear):
            fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, batches(options))


def tensor_parallel(options: Options) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    block = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))
    model = parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    train(model, batches(options))


def compiled(options: Options) -> None:
    model = DistributedDataParallel(layers())
    train(torch.compile(model, backend="eager"), batches(options))


def evaluating(options: Options) -> None:
    """Every few steps: an evaluation whose result all ranks learn, and a checkpoint that the first rank writes."""
    model = DistributedDataParallel(layers())

    def after(step: int) -> None:
        if step % 5 != 4:
            return
        model.eval()
        with torch.no_grad():
            loss = sum(model(torch.randn(BATCH, WIDTH)).square().mean() for _ in range(3))
        dist.all_reduce(torch.as_tensor(loss))
        model.train()
        if dist.get_rank() == 0:
            torch.save(model.state_dict(), options.scratch / f"checkpoint_{step}.pt")
        dist.barrier()

    train(model, batches(options), after)
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), options.scratch / "last.pt")


def uneven(options: Options) -> None:
    """The last rank has fewer batches: Join answers for it."""
    model = DistributedDataParallel(layers())
    is_short = dist.get_rank() == dist.get_world_size() - 1
    with Join([model]):
        train(model, batches(options, n_fewer=3 if is_short else 0))


def pipelined(options: Options) -> None:
    """Stages hand on activations; the last one tells all others the loss."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    stage = layers(1)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.01)
    for batch in batches(options):
        optimizer.zero_grad()
        arrived = batch.requires_grad_()
        if rank > 0:
            with torch.no_grad():
                dist.recv(arrived, rank - 1)
        left = stage(arrived)
        if rank < last:
            dist.send(left.detach(), rank + 1)
            gradient = torch.empty_like(left)
            dist.recv(gradient, rank + 1)
            left.backward(gradient)
        else:
            left.square().mean().backward()
        if rank > 0 and arrived.grad is not None:
            dist.send(arrived.grad, rank - 1)
        optimizer.step()
        dist.broadcast(torch.ones(1), last)


def collectives_alone(options: Options) -> None:
    """No optimizer, no steps: a job that only exchanges."""
    for _ in range(options.steps):
        dist.all_reduce(torch.ones(WIDTH))
        gathered = [torch.empty(WIDTH) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, torch.ones(WIDTH))
    dist.barrier()


KINDS: dict[str, Callable[[Options], None]] = {
    "ddp": data_parallel,
    "loader": loading,
    "accumulate": accumulating,
    "fsdp": fully_sharded,
    "tensor": tensor_parallel,
    "compile": compiled,
    "evaluate": evaluating,
    "uneven": uneven,
    "pipeline": pipelined,
    "exchange": collectives_alone,
}

if __name__ == "__main__":
    main()
