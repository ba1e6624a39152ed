"""A trainer and a rollout, each a world with ranks from 0, that wait for each other through a store or a shared group.

A rank that hangs does so until the collector of every rank has written its dump; then all processes end at once.
"""

from __future__ import annotations

import argparse
import queue
import threading
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _new_process_group_helper, _world
from until_dumped import leave_when_dumped

N_RANKS = 2
LONG = timedelta(seconds=300)


def main() -> None:
    options = _options()
    leave_when_dumped(options.folders, N_RANKS)
    dist.init_process_group("gloo", timeout=LONG)
    link = dist.TCPStore(
        "127.0.0.1", options.link_port, is_master=options.role == "trainer" and dist.get_rank() == 0, timeout=LONG
    )
    shared = shared_group(link, options.role) if options.shared else None
    for step in range(options.steps):
        hangs = options.hangs == options.role and step == options.steps - 1
        if options.role == "trainer":
            train(link, step, hangs=hangs, shared=shared)
        else:
            generate(link, step, hangs=hangs, shared=shared)
    dist.barrier()
    link.set(f"{options.role}_{dist.get_rank()}", "done")
    link.wait([f"{role}_{rank}" for role in ("trainer", "rollout") for rank in range(N_RANKS)])
    dist.destroy_process_group()


def train(link: dist.TCPStore, step: int, *, hangs: bool, shared: dist.ProcessGroup | None) -> None:
    if dist.get_rank() == 0:
        samples = wait_for_samples(link, step)
    else:
        samples = torch.zeros(4)
    dist.broadcast(samples, 0)
    if hangs and dist.get_rank() == 1:
        load_batch()
    dist.all_reduce(samples)
    if shared is not None:
        if dist.get_rank() == 0:
            dist.broadcast(samples, group=shared, group_src=0)
    elif dist.get_rank() == 0:
        link.set(f"weights_{step}", "ready")


def generate(link: dist.TCPStore, step: int, *, hangs: bool, shared: dist.ProcessGroup | None) -> None:
    tokens = torch.ones(8)
    dist.all_reduce(tokens)
    if hangs and dist.get_rank() == 1:
        decode()
    dist.barrier()
    if dist.get_rank() == 0:
        link.set(f"samples_{step}", "ready")
    if shared is not None:
        receive_weights(shared)
    elif dist.get_rank() == 0:
        wait_for_weights(link, step)
    dist.broadcast(tokens, 0)


def wait_for_samples(link: dist.TCPStore, step: int) -> torch.Tensor:
    samples_store = link
    samples_store.wait([f"samples_{step}"], LONG)
    return torch.ones(4)


def wait_for_weights(link: dist.TCPStore, step: int) -> None:
    weights_store = link
    weights_store.get(f"weights_{step}")


def receive_weights(shared: dist.ProcessGroup) -> None:
    dist.broadcast(torch.zeros(4), group=shared, group_src=0)


def load_batch() -> None:
    queue.SimpleQueue[int]().get()


def decode() -> None:
    threading.Event().wait()


def shared_group(link: dist.TCPStore, role: str) -> dist.ProcessGroup | None:
    """Rank 0 of the trainer and all of the rollout, made as RL frameworks make it: beside the default group."""
    number = 0 if role == "trainer" else 1 + dist.get_rank()
    if role == "trainer" and dist.get_rank() > 0:
        return None
    store = dist.PrefixStore("weight_sync", link)
    size = 1 + N_RANKS
    group, _ = _new_process_group_helper(size, number, [], "gloo", store, group_name="weight_sync", timeout=LONG)
    _world.pg_group_ranks[group] = {rank: rank for rank in range(size)}
    return group


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("trainer", "rollout"))
    parser.add_argument("--link-port", type=int, required=True)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--hangs", default="")
    parser.add_argument("--shared", action="store_true")
    parser.add_argument("folders", type=Path, nargs="+")
    return parser.parse_args()


if __name__ == "__main__":
    main()
