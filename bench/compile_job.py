"""The job whose TORCH_TRACE logs bench/compile_log.py repeats: python compile_job.py training|recompiles."""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.feed(self.norm(x))


def training() -> None:
    """A small transformer, forward and backward, with sequences of two lengths."""
    model = nn.Sequential(*(Block(64) for _ in range(6)), nn.Linear(64, 16))
    step = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for length in (16, 16, 24):
        optimizer.zero_grad()
        step(torch.randn(4, length, 64)).square().mean().backward()
        optimizer.step()


def recompiles() -> None:
    """Two functions that are compiled until the limit: one for each size, one for each number."""

    @torch.compile(dynamic=False)
    def normed(x: Tensor) -> Tensor:
        return torch.softmax(x, dim=-1) + x.mean()

    @torch.compile(dynamic=False)
    def scaled(x: Tensor, times: int) -> Tensor:
        return (x * times).sin().sum()

    for number in range(2, 12):
        normed(torch.randn(number, 8))
        scaled(torch.randn(16), number)


if __name__ == "__main__":
    torch.manual_seed(0)
    {"training": training, "recompiles": recompiles}[sys.argv[1]]()
