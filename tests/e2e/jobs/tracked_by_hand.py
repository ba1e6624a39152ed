"""Each rank writes where it is into its groups' stores, as trackers do; rank 0 asks rankscope about the running job."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import torch.distributed as dist

from rankscope.collect.desync.values import encode_state, end_key, start_key

BEHIND = 2


def track(group: dist.ProcessGroup, key: str, store: dist.Store) -> None:
    is_behind = dist.get_rank() == BEHIND
    store.set(start_key(key, group.rank()), encode_state(4 if is_behind else 5, "ALLREDUCE"))
    store.set(end_key(key, group.rank()), encode_state(4, "ALLREDUCE"))
    store.get(end_key(key, group.rank()))  # a set is not answered: only now is it known to have arrived


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dumps", type=Path, required=True)
    parser.add_argument("--tracker", choices=("rankscope", "torch"), required=True)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    pair = dist.new_group([3, 2], group_desc="pair")
    for group in (dist.group.WORLD, pair):
        if dist.get_rank() in dist.get_process_group_ranks(group):
            store = group.get_group_store()
            if options.tracker == "rankscope":
                track(group, group.group_name, store)
            else:  # torch's own tracker has a store per device below the group's
                track(group, "NCCL", dist.PrefixStore("cuda/", store))
    dist.barrier()
    if dist.get_rank() == 0:
        command = [sys.executable, "-m", "rankscope", "desync", f"127.0.0.1:{os.environ['MASTER_PORT']}", "--json"]
        with (options.dumps / "answer.json").open("wb") as answer:
            subprocess.run(command, stdout=answer, timeout=60, check=False)
    dist.barrier()
    dist.destroy_process_group()


main()
