"""Trains a small model whose step is compiled."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn


class Scorer(nn.Module):
    def __init__(self, width: int, log_norms: bool = False) -> None:
        super().__init__()
        self.encode = nn.Linear(width, width)
        self.head = nn.Linear(width, 1)
        self.log_norms = log_norms

    def forward(self, batch: Tensor, temperature: float) -> Tensor:
        hidden = torch.relu(self.encode(batch))
        if self.log_norms:
            print("norm", hidden.norm().item())
        return self.head(hidden) / temperature


def shared_loss(scores: Tensor, group: str) -> Tensor:
    return functional.all_reduce(scores.square().mean(), "sum", group)


def train(scorer: Scorer, batches: Iterable[Tensor], temperatures: Iterable[float]) -> None:
    step = torch.compile(scorer)
    for batch, temperature in zip(batches, temperatures, strict=False):
        shared_loss(step(batch, temperature), "dp").backward()
