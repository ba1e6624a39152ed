"""Ranks whose calls are tracked while one of them does something else than its peers, as the fault says."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from rankscope.collect.run import Run, set_current
from rankscope.collect.settings import Settings

N_STEPS = 4
LIMIT_S = 2
RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
CULPRIT = WORLD_SIZE - 1
VALUES = torch.ones(4)


def train() -> None:
    for _ in range(N_STEPS):
        dist.all_reduce(VALUES)


def oversleep() -> None:
    """Until the others have given up."""
    time.sleep(LIMIT_S + 2)


def never_join() -> None:
    if RANK == CULPRIT:
        oversleep()
    else:
        dist.all_reduce(VALUES)


def leave_out_next() -> None:
    train()
    if RANK == CULPRIT:
        oversleep()
    else:
        dist.all_reduce(VALUES)


def call_another() -> None:
    train()
    if RANK == CULPRIT:
        dist.all_gather([torch.ones(4) for _ in range(WORLD_SIZE)], VALUES)
    else:
        dist.all_reduce(VALUES)


def receive_in_vain() -> None:
    train()
    if RANK == 0:
        dist.irecv(torch.ones(7), src=CULPRIT).wait(datetime.timedelta(seconds=LIMIT_S))
    else:
        oversleep()


def wait_for_handle() -> None:
    train()
    if RANK == CULPRIT:
        oversleep()
    else:
        handle = dist.all_reduce(VALUES, async_op=True)
        weights = torch.ones(2, requires_grad=True)
        weights.register_hook(lambda _: handle.wait() and None)
        weights.sum().backward()


def miss_in_pair() -> None:
    pair = dist.new_group([CULPRIT, 0], group_desc="pair", timeout=datetime.timedelta(seconds=LIMIT_S))
    train()
    if RANK in (0, CULPRIT):
        dist.broadcast(VALUES, src=0, group=pair)
    if RANK == 0:
        dist.broadcast(VALUES, src=0, group=pair)
    else:
        oversleep()


def spoil_value() -> None:
    train()
    if RANK == CULPRIT:
        time.sleep(LIMIT_S / 2)
        dist.group.WORLD.get_group_store().set("0_1_trace_start", b"\x01")
        oversleep()
    else:
        dist.all_reduce(VALUES)


def lose_store() -> None:
    """The culprit serves the store, and ends."""
    train()
    time.sleep(1)
    if RANK == CULPRIT:
        os._exit(0)
    dist.all_reduce(VALUES)


def average_gradients() -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    for _ in range(N_STEPS):
        model(torch.ones(2, 4)).sum().backward()
    loss = model(torch.ones(2, 4)).sum()
    if RANK == CULPRIT:
        oversleep()
    else:
        loss.backward()


def do_it_all() -> None:
    """Nothing goes wrong."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(torch.nn.Linear(WORLD_SIZE, 4), mesh=init_device_mesh("cpu", (WORLD_SIZE,)))
    model(torch.ones(2, WORLD_SIZE)).sum().backward()
    send = dist.P2POp(dist.isend, VALUES, (RANK + 1) % WORLD_SIZE)
    receive = dist.P2POp(dist.irecv, torch.ones(4), (RANK - 1) % WORLD_SIZE)
    for handle in dist.batch_isend_irecv([send, receive]):
        handle.wait()
    if RANK == 0:
        dist.send(VALUES, dst=1)
    elif RANK == 1:
        dist.recv(torch.ones(4), src=0)
    train()
    dist.all_gather_object([None] * WORLD_SIZE, "text")
    dist.monitored_barrier()
    dist.barrier()


FAULTS: dict[str, Callable[[], None]] = {
    fault.__name__: fault
    for fault in (
        never_join,
        leave_out_next,
        call_another,
        receive_in_vain,
        wait_for_handle,
        miss_in_pair,
        spoil_value,
        lose_store,
        average_gradients,
        do_it_all,
    )
}


def outlast_the_others(store: dist.Store) -> None:
    """The store lives in the culprit: were it gone first, the others would have nothing to report from."""
    with contextlib.suppress(RuntimeError):  # a fault may be that the store is gone
        store.add("reported", 1)
        deadline = time.monotonic() + 120
        while RANK == CULPRIT and store.add("reported", 0) < WORLD_SIZE and time.monotonic() < deadline:
            time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dumps", type=Path, required=True)
    parser.add_argument("--fault", choices=sorted(FAULTS), required=True)
    options = parser.parse_args()
    others = dict.fromkeys(("execution_trace", "kineto", "recorder", "stacks", "metrics", "compile_log"), False)
    run = Run(Settings(folder=str(options.dumps), desync=True, **others))
    set_current(run)
    run.begin(RANK, WORLD_SIZE, RANK)
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), WORLD_SIZE, RANK == CULPRIT)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=WORLD_SIZE)
    run.joined()
    distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=LIMIT_S))
    try:
        FAULTS[options.fault]()
    except RuntimeError as error:
        run.dump(f"exception: {error}")
        outlast_the_others(store)
        sys.exit(3)
    finally:
        run.finish()


main()
