"""One pipeline stage of a small transformer, split over the tensor-parallel group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class CopyToTensorParallel(torch.autograd.Function):
    """Identity on the way forward; sums the gradient over the tensor-parallel group on the way back."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, tp_group: dist.ProcessGroup) -> Tensor:
        ctx.tp_group = tp_group
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.tp_group)
        return gradient, None


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, tp_group: dist.ProcessGroup) -> None:
        super().__init__()
        self.tp_group = tp_group
        self.local_heads = heads // tp_group.size()
        local_width = width // tp_group.size()
        self.query_key_value = nn.Linear(width, 3 * local_width, bias=False)
        self.output = nn.Linear(local_width, width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, _ = hidden.shape
        projected = self.query_key_value(hidden).view(batch, length, 3, self.local_heads, -1)
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        context = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        partial = self.output(context.transpose(1, 2).reshape(batch, length, -1))
        dist.all_reduce(partial, group=self.tp_group)
        return partial


class FeedForward(nn.Module):
    def __init__(self, width: int, tp_group: dist.ProcessGroup, sequence_parallel: bool = False) -> None:
        super().__init__()
        self.tp_group = tp_group
        self.sequence_parallel = sequence_parallel
        self.up = nn.Linear(width, 4 * width // tp_group.size(), bias=False)
        self.down = nn.Linear(4 * width // tp_group.size(), width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        partial = self.down(nn.functional.gelu(self.up(hidden)))
        if self.sequence_parallel:
            gathered = partial.new_empty(self.tp_group.size() * partial.shape[0], *partial.shape[1:])
            dist.all_gather_into_tensor(gathered, partial, group=self.tp_group)
            return gathered
        dist.all_reduce(partial, group=self.tp_group)
        return partial


class Block(nn.Module):
    def __init__(self, width: int, heads: int, tp_group: dist.ProcessGroup) -> None:
        super().__init__()
        self.tp_group = tp_group
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, tp_group)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, tp_group)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = CopyToTensorParallel.apply(hidden, self.tp_group)
        hidden = hidden + self.attention(self.attention_norm(hidden))
        return hidden + self.feed_forward(self.feed_forward_norm(hidden))


class Stage(nn.Module):
    """The consecutive layers that one pipeline stage holds."""

    def __init__(self, layers: int, width: int, heads: int, tp_group: dist.ProcessGroup) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads, tp_group) for _ in range(layers))

    def forward(self, hidden: Tensor) -> Tensor:
        for block in self.blocks:
            hidden = block(hidden)
        return hidden
