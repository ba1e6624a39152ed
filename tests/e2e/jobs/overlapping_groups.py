"""Encoder on ranks 0-2, decoder on ranks 1-3: ranks 1 and 2 hold layers of both and serve both groups in every step."""

from __future__ import annotations

import torch
import torch.distributed as dist
from blackbox import recording
from job_options import Fault, parse_job_options

STEPS = 12
ENCODER_RANKS = [0, 1, 2]
DECODER_RANKS = [1, 2, 3]


def sync_encoder(group: dist.ProcessGroup) -> None:
    if dist.get_rank() in ENCODER_RANKS:
        dist.all_reduce(torch.ones(512), group=group)


def sync_decoder(group: dist.ProcessGroup) -> None:
    if dist.get_rank() in DECODER_RANKS:
        dist.all_reduce(torch.ones(512), group=group)


def train_step(encoder: dist.ProcessGroup, decoder: dist.ProcessGroup, step: int, fault: Fault) -> None:
    if fault.strikes("swapped-order", step):
        sync_decoder(decoder)
        sync_encoder(encoder)
    else:
        sync_encoder(encoder)
        sync_decoder(decoder)


def main() -> None:
    options = parse_job_options()
    dist.init_process_group("gloo")
    encoder = dist.new_group(ENCODER_RANKS, group_desc="encoder")
    decoder = dist.new_group(DECODER_RANKS, group_desc="decoder")
    with recording(options.dumps) as box:
        for step in range(STEPS):
            train_step(encoder, decoder, step, options.fault)
            box.progress()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
