"""All ranks share gradients; ranks 0 and 1 also split a layer, and their talk pushes all else out of their rings."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from blackbox import recording
from job_options import Fault, parse_job_options

STEPS = 12
EXCHANGES_PER_STEP = 60
PAIR = [0, 1]


def run_split_layer(pair: dist.ProcessGroup, step: int, fault: Fault) -> None:
    for exchange in range(EXCHANGES_PER_STEP):
        if fault.strikes("stuck-in-layer", step) and exchange == EXCHANGES_PER_STEP - 5:
            wait_for_lock()
        dist.all_reduce(torch.ones(32), group=pair)


def load_batch(step: int, fault: Fault) -> torch.Tensor:
    if fault.strikes("stuck-in-loader", step):
        wait_for_lock()
    return torch.ones(2048)


def wait_for_lock() -> None:
    while True:
        time.sleep(3600)


def average_gradients(gradients: torch.Tensor) -> None:
    dist.all_reduce(gradients)


def train_step(pair: dist.ProcessGroup, step: int, fault: Fault) -> None:
    gradients = load_batch(step, fault)
    if dist.get_rank() in PAIR:
        run_split_layer(pair, step, fault)
    average_gradients(gradients)


def main() -> None:
    options = parse_job_options()
    dist.init_process_group("gloo")
    pair = dist.new_group(PAIR, group_desc="split_layer")
    with recording(options.dumps) as box:
        for step in range(STEPS):
            train_step(pair, step, options.fault)
            box.progress()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
