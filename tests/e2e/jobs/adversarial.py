"""Two models of one size, trained in turn and averaged over the ranks; now and then the scores are collected."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from blackbox import recording
from job_options import Fault, parse_job_options

ROUNDS = 20
ROUNDS_PER_REPORT = 10


def load_batch(fault: Fault) -> None:
    if fault.is_here("slow-loader"):
        time.sleep(0.06)


def update_locally(weights: torch.Tensor, fault: Fault) -> None:
    if fault.is_here("slow-host"):
        time.sleep(0.06)
    weights.mul_(0.9)


def average_generator(weights: torch.Tensor) -> None:
    dist.all_reduce(weights)
    weights.div_(dist.get_world_size())


def average_critic(weights: torch.Tensor) -> None:
    dist.all_reduce(weights)
    weights.div_(dist.get_world_size())


def collect_scores(score: torch.Tensor) -> None:
    scores = [torch.empty_like(score) for _ in range(dist.get_world_size())]
    dist.all_gather(scores, score)


def train_round(generator: torch.Tensor, critic: torch.Tensor, number: int, fault: Fault) -> None:
    load_batch(fault)
    update_locally(generator, fault)
    average_generator(generator)
    update_locally(critic, fault)
    if not fault.strikes("skipped-call", number):
        average_critic(critic)
    if (number + 1) % ROUNDS_PER_REPORT == 0:
        collect_scores(critic[:8].clone())


def main() -> None:
    options = parse_job_options()
    dist.init_process_group("gloo")
    with recording(options.dumps) as box:
        generator, critic = torch.ones(1024), torch.ones(1024)
        for number in range(ROUNDS):
            train_round(generator, critic, number, options.fault)
            box.progress()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
