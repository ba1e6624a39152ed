"""Experts of a mixture, spread over the data-parallel ranks: each gets as many tokens as the router gives it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def dispatch(tokens: Tensor, to_send: list[int], to_take: list[int], ep_group: dist.ProcessGroup) -> Tensor:
    routed = tokens.new_empty(sum(to_take), tokens.shape[1])
    dist.all_to_all_single(routed, tokens, to_take, to_send, group=ep_group)
    return routed


def combine(routed: Tensor, to_send: list[int], to_take: list[int], ep_group: dist.ProcessGroup) -> Tensor:
    tokens = routed.new_empty(sum(to_send), routed.shape[1])
    dist.all_to_all_single(tokens, routed, to_send, to_take, group=ep_group)
    return tokens


def reduce_experts(kept: Tensor, gradients: Tensor, n_rows: list[int], ep_group: dist.ProcessGroup) -> Tensor:
    """Gather the rows of all ranks, and hand each rank the sum of its own rows' gradients."""
    rows = [kept.new_empty(n, kept.shape[1]) for n in n_rows]
    dist.all_gather(rows, kept, group=ep_group)
    shard = torch.empty_like(kept)
    dist.reduce_scatter(shard, list(gradients.split(n_rows)), group=ep_group)
    return shard
