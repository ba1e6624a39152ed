"""Data-parallel training on one group: average the gradients, clip them by their global norm, share the loss."""

from __future__ import annotations

import os
import signal
import time

import torch
import torch.distributed as dist
from blackbox import recording
from job_options import Fault, parse_job_options

STEPS = 24
# gloo cuts a tensor into 8, 12, 16, ... segments of at most 1 MiB, and aborts a rank that gets a longer one than it
# expects. These sizes make all segments 1 MiB: an odd rank only expects another number of them, and that hangs.
N_WEIGHTS = 3 * 2**20
N_WEIGHTS_WITHOUT_PADDING = 2 * 2**20


def load_batch(weights: torch.Tensor, step: int, fault: Fault) -> torch.Tensor:
    if fault.strikes("stuck", step):
        wait_for_storage()
    if fault.strikes("killed", step):
        os.kill(os.getpid(), signal.SIGKILL)
    return weights - float(step)


def wait_for_storage() -> None:
    while True:
        time.sleep(3600)


def average_gradients(gradients: torch.Tensor, step: int, fault: Fault) -> torch.Tensor:
    if fault.strikes("size-mismatch", step):
        unpadded = gradients[:N_WEIGHTS_WITHOUT_PADDING].clone()
        dist.all_reduce(unpadded)
        return torch.cat([unpadded, gradients[N_WEIGHTS_WITHOUT_PADDING:]])
    if fault.strikes("dtype-mismatch", step):
        precise = gradients.double()
        dist.all_reduce(precise)
        return precise.float()
    if fault.strikes("same-width-dtype", step):
        quantised = gradients.int()
        dist.all_reduce(quantised)
        return quantised.float()
    dist.all_reduce(gradients)
    return gradients / dist.get_world_size()


def clip_gradients(gradients: torch.Tensor, step: int, fault: Fault) -> torch.Tensor:
    norm = gradients.square().sum()
    if fault.strikes("op-mismatch", step):
        norms = [torch.zeros_like(norm) for _ in range(dist.get_world_size())]
        dist.all_gather(norms, norm)
        norm = torch.stack(norms).sum()
    else:
        dist.all_reduce(norm)
    return gradients / norm.sqrt().clamp(min=1.0)


def share_loss(loss: torch.Tensor) -> None:
    dist.all_reduce(loss)


def train_step(weights: torch.Tensor, step: int, fault: Fault) -> torch.Tensor:
    gradients = load_batch(weights, step, fault)
    gradients = average_gradients(gradients, step, fault)
    gradients = clip_gradients(gradients, step, fault)
    share_loss(gradients[0].clone())
    return weights - 0.1 * gradients


def main() -> None:
    options = parse_job_options()
    dist.init_process_group("gloo")
    dying_ranks = [options.fault.rank] if options.fault.kind == "killed" else []
    with recording(options.dumps, dying_ranks) as box:
        if options.collective_timeout:
            # Only now: on a busy machine the ranks take longer than that to find each other.
            dist.distributed_c10d._set_pg_timeout(options.collective_timeout)
        weights = torch.zeros(N_WEIGHTS)
        for step in range(STEPS):
            weights = train_step(weights, step, options.fault)
            box.progress()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
