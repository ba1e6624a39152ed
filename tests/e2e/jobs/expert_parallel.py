"""Mixture of experts: each rank sends a different number of tokens to each expert, and gets them back."""

from __future__ import annotations

import torch
import torch.distributed as dist
from blackbox import recording
from job_options import parse_job_options

STEPS = 12
WIDTH = 16


def tokens_routed(source: int, expert: int, step: int) -> int:
    return 1 + (3 * source + 5 * expert + step) % 7


def dispatch(tokens: torch.Tensor, received: torch.Tensor, sent_to: list[int], received_from: list[int]) -> None:
    dist.all_to_all_single(received, tokens, output_split_sizes=received_from, input_split_sizes=sent_to)


def combine(processed: torch.Tensor, returned: torch.Tensor, sent_to: list[int], received_from: list[int]) -> None:
    dist.all_to_all_single(returned, processed, output_split_sizes=sent_to, input_split_sizes=received_from)


def train_step(step: int) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    sent_to = [tokens_routed(rank, expert, step) for expert in range(world)]
    received_from = [tokens_routed(source, rank, step) for source in range(world)]
    tokens, received = torch.ones(sum(sent_to), WIDTH), torch.empty(sum(received_from), WIDTH)
    dispatch(tokens, received, sent_to, received_from)
    combine(received, torch.empty_like(tokens), sent_to, received_from)


def main() -> None:
    options = parse_job_options()
    dist.init_process_group("gloo")
    with recording(options.dumps) as box:
        for step in range(STEPS):
            train_step(step)
            box.progress()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
