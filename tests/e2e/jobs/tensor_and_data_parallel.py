"""Four ranks as a 2 x 2 mesh: activations summed over tensor-parallel pairs, gradients over data-parallel pairs."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from blackbox import BlackBox, recording
from job_options import Fault, parse_job_options

STEPS = 12
LAYERS = 6


@dataclass(frozen=True)
class Mesh:
    tp: dist.ProcessGroup
    dp: dist.ProcessGroup


def build_mesh() -> Mesh:
    tp = group_of_this_rank([[0, 1], [2, 3]], "mesh_tp")
    dp = group_of_this_rank([[0, 2], [1, 3]], "mesh_dp")
    return Mesh(tp, dp)


def group_of_this_rank(memberships: list[list[int]], description: str) -> dist.ProcessGroup:
    groups = [dist.new_group(ranks, group_desc=description) for ranks in memberships]
    own: dist.ProcessGroup = next(
        group for ranks, group in zip(memberships, groups, strict=True) if dist.get_rank() in ranks
    )
    return own


def attention(hidden: torch.Tensor, mesh: Mesh, fault: Fault, step: int, layer: int) -> torch.Tensor:
    if fault.strikes("stuck", step) and layer == 1:
        compile_kernel()
    dist.all_reduce(hidden, group=mesh.tp)
    return hidden / 2


def compile_kernel() -> None:
    while True:
        time.sleep(3600)


def average_gradients(gradients: torch.Tensor, mesh: Mesh) -> None:
    dist.all_reduce(gradients, group=mesh.dp)


def report_loss(loss: torch.Tensor) -> None:
    dist.reduce(loss, dst=0)


def train(box: BlackBox, mesh: Mesh, fault: Fault) -> None:
    hidden = torch.ones(256)
    for step in range(STEPS):
        for layer in range(LAYERS):
            hidden = attention(hidden, mesh, fault, step, layer)
        average_gradients(hidden.clone(), mesh)
        report_loss(hidden.mean().reshape(1))
        box.progress()


def main() -> None:
    options = parse_job_options()
    dist.init_process_group("gloo")
    mesh = build_mesh()
    with recording(options.dumps) as box:
        train(box, mesh, options.fault)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
