"""Trains a small transformer on a mesh of data-, tensor- and pipeline-parallel ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from pipeline import Neighbours, run_microbatches
from torch import Tensor

from model import Stage

EVALUATE_EVERY = 4
MAX_GRADIENT_NORM = 1.0


@dataclass
class Bucket:
    """Gradients of several parameters, flattened into one tensor."""

    gradients: Tensor
    is_sparse: bool = False


@dataclass
class Trainer:
    stage: Stage
    optimizer: torch.optim.Optimizer
    dp_group: dist.ProcessGroup
    neighbours: Neighbours
    buckets: list[Bucket]
    share_norm: bool = False


def reduce_gradients(trainer: Trainer) -> None:
    for bucket in trainer.buckets:
        if bucket.is_sparse:
            rows = bucket.gradients.new_empty(trainer.dp_group.size() * bucket.gradients.numel())
            dist.all_gather_into_tensor(rows, bucket.gradients, group=trainer.dp_group)
        else:
            dist.all_reduce(bucket.gradients, group=trainer.dp_group)


def clip_gradients(trainer: Trainer) -> Tensor:
    squared_norm = torch.stack([bucket.gradients.float().square().sum() for bucket in trainer.buckets]).sum()[None]
    if trainer.share_norm:
        dist.broadcast(squared_norm, src=0)
    else:
        dist.all_reduce(squared_norm)
    scale = (MAX_GRADIENT_NORM / (squared_norm.sqrt() + 1e-6)).clamp(max=1.0)
    for bucket in trainer.buckets:
        bucket.gradients.mul_(scale)
    return squared_norm.sqrt()


def sync_loss(loss: Tensor) -> float:
    mean_loss = loss.detach().reshape(1) / dist.get_world_size()
    dist.all_reduce(mean_loss)
    return mean_loss.item()


def evaluate(trainer: Trainer, recent_losses: list[float]) -> float:
    losses = torch.tensor(recent_losses, device="cuda")
    gathered = losses.new_empty(trainer.dp_group.size() * losses.numel())
    dist.all_gather_into_tensor(gathered, losses, group=trainer.dp_group)
    dist.barrier()
    return gathered.mean().item()


def train_step(trainer: Trainer, batches: list[Tensor]) -> float:
    trainer.optimizer.zero_grad(set_to_none=True)
    loss = run_microbatches(trainer.stage, batches, trainer.neighbours)
    reduce_gradients(trainer)
    clip_gradients(trainer)
    trainer.optimizer.step()
    return sync_loss(loss)


def train(trainer: Trainer, batches_per_step: Iterable[list[Tensor]]) -> None:
    losses: list[float] = []
    for batches in batches_per_step:
        losses.append(train_step(trainer, batches))
        if len(losses) % EVALUATE_EVERY == 0:
            score = evaluate(trainer, losses[-EVALUATE_EVERY:])
            print(f"step {len(losses)}: loss {losses[-1]:.4f}, mean of all replicas {score:.4f}")


def build_trainer() -> Trainer:
    mesh = dist.init_device_mesh("cuda", (1, 4, 2), mesh_dim_names=("pp", "dp", "tp"))
    stage = Stage(layers=2, width=2048, heads=16, tp_group=mesh["tp"].get_group()).to("cuda", torch.bfloat16)
    pp_group = mesh["pp"].get_group()
    order = dist.get_process_group_ranks(pp_group)
    position = order.index(dist.get_rank())
    neighbours = Neighbours(
        group=pp_group,
        previous=order[position - 1] if position > 0 else None,
        following=order[position + 1] if position + 1 < len(order) else None,
    )
    buckets = [Bucket(torch.cat([p.new_zeros(p.numel()) for p in block.parameters()])) for block in stage.blocks]
    optimizer = torch.optim.AdamW(stage.parameters(), lr=3e-4)
    return Trainer(stage, optimizer, mesh["dp"].get_group(), neighbours, buckets)


def main() -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    samples = torch.randn(8, 1024, 2048, device="cuda", dtype=torch.bfloat16)
    train(build_trainer(), (list(samples.split(4)) for _ in range(1000)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
