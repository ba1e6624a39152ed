"""A 2 x 2 mesh on gloo: collectives, transfers and batches inside subgroups, groups made again, FSDP2 and a pipeline.

Each rank writes what it really called to truth_<rank>.json: when, in which group of which generation, with which peer.
All calls of one operation move as many elements, so that sizes show nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

STEPS = 6
WIDTH = 16
RANK = int(os.environ["RANK"])
CALLED = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "all_gather_single": "all_gather",
    "reduce_scatter_single": "reduce_scatter",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
}


class Truth:
    """Notes every call on the groups of this process, below whatever library makes it."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.generation = 0
        for name, op in CALLED.items():
            setattr(dist.ProcessGroup, name, self._noting(getattr(dist.ProcessGroup, name), op))

    def _noting(self, call: Callable[..., Any], op: str) -> Callable[..., Any]:
        def noting(group: dist.ProcessGroup, *args: Any, **options: Any) -> Any:
            members = dist.get_process_group_ranks(group)
            note = {
                "time_ns": time.time_ns(),
                "generation": self.generation,
                "op": op,
                "group": group.group_name,
                "members": members,
                "peer": members[args[1]] if op in ("send", "recv") else None,
            }
            self.calls.append(note)
            return call(group, *args, **options)

        return noting


def mesh_step(mesh: dist.DeviceMesh) -> None:
    rows, columns = mesh.get_group("dp"), mesh.get_group("tp")
    for group in (rows, columns, columns, dist.group.WORLD):
        dist.all_reduce(torch.ones(64), group=group)
    for group in (columns, rows):
        dist.all_gather([torch.empty(64) for _ in range(2)], torch.ones(64), group=group)
    dist.all_gather_into_tensor(torch.empty(128), torch.ones(64), group=rows)
    first, second = dist.get_process_group_ranks(rows)
    if dist.get_rank() == first:
        dist.send(torch.ones(64), second, group=rows)
        dist.recv(torch.empty(64), second, group=rows)
    else:
        dist.recv(torch.empty(64), first, group=rows)
        dist.send(torch.ones(64), first, group=rows)
    other = next(rank for rank in dist.get_process_group_ranks(columns) if rank != dist.get_rank())
    batch = [
        dist.P2POp(dist.isend, torch.ones(64), other, group=columns),
        dist.P2POp(dist.irecv, torch.empty(64), other, group=columns),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()


def short_lived_step() -> None:
    """A group for one step, over the diagonals of the mesh."""
    groups = [dist.new_group(ranks, group_desc="diagonal") for ranks in ([0, 3], [1, 2])]
    mine = groups[0 if dist.get_rank() in (0, 3) else 1]
    dist.all_reduce(torch.ones(64), group=mine)
    dist.all_reduce(torch.ones(64), group=mine)
    dist.destroy_process_group(mine)


def sharded_step(mesh: dist.DeviceMesh) -> Callable[[], None]:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        model(torch.ones(4, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def pipeline_step(mesh: dist.DeviceMesh) -> Callable[[], None]:
    group = mesh.get_group("dp")
    stage = PipelineStage(nn.Linear(WIDTH, WIDTH), dist.get_rank(group), 2, torch.device("cpu"), group=group)
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda output, target: (output - target).square().mean())

    def step() -> None:
        if stage.is_first:
            schedule.step(torch.ones(4, WIDTH))
        else:
            schedule.step(target=torch.zeros(4, WIDTH))

    return step


def train() -> None:
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    sharded, pipelined = sharded_step(mesh), pipeline_step(mesh)
    for _ in range(STEPS):
        mesh_step(mesh)
        short_lived_step()
        pipelined()
        sharded()
    dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--truth", type=Path, required=True)
    args = parser.parse_args()
    truth = Truth()
    for truth.generation in range(2):  # all groups are made again in the same processes, under the same names
        store = f"file://{args.truth}/store_{truth.generation}"
        dist.init_process_group("gloo", init_method=store, rank=RANK, world_size=4)
        train()
        dist.destroy_process_group()
    (args.truth / f"truth_{RANK}.json").write_text(json.dumps(truth.calls))


if __name__ == "__main__":
    main()
