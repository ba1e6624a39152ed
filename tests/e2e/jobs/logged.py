"""A few steps on gloo, then one fault: `logged.py FAULT CULPRIT [FOLDER]`. Each rank prints to its file in FOLDER."""

from __future__ import annotations

import datetime
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from tempfile import TemporaryFile

import torch
import torch.distributed as dist
import torch.multiprocessing

WORLD = 3
WAIT_S = 4  # of collectives that never complete


class Samples(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        return torch.ones(2)


def load_batch() -> None:
    samples: dict[str, int] = {}
    print(samples["tokens"])


def fail(fault: str) -> None:
    """What the culprit does by itself."""
    if fault == "exception":
        load_batch()
    elif fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "memory":
        resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
        bytearray(64 << 30)
    elif fault == "disk":
        with open("/dev/full", "w") as checkpoint:
            checkpoint.write("weights")
    elif fault == "quota":  # of a file's size: what a full quota looks like to the program
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        with TemporaryFile(buffering=0) as checkpoint:
            for _ in range(4):
                checkpoint.write(bytes(1 << 16))
    elif fault == "worker":
        next(iter(torch.utils.data.DataLoader(Samples(), num_workers=1)))
    elif fault == "stuck":
        print("evaluating", flush=True)
        time.sleep(3 * WAIT_S)
        os._exit(0)


def differ(fault: str, is_culprit: bool) -> None:
    """Faults in what the ranks call together."""
    values = torch.ones(64 if fault == "size" and is_culprit else 8)
    if fault == "op" and is_culprit:
        dist.all_gather([torch.ones(8) for _ in range(WORLD)], values)
    elif fault == "barrier":
        if is_culprit:
            time.sleep(2 * WAIT_S)
            os._exit(0)
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=2), wait_all_ranks=True)
    elif fault == "store":
        if dist.get_rank() == 0:
            os._exit(3)
        dist.distributed_c10d._get_default_store().get("never")
    else:
        dist.all_reduce(values)


def train(rank: int, fault: str, culprit: int) -> None:
    if fault in ("op", "size"):
        dist.set_debug_level(dist.DebugLevel.DETAIL)
    if fault == "early" and rank == culprit:
        load_batch()
    if fault == "init" and rank == culprit:
        time.sleep(2 * WAIT_S)
        os._exit(0)
    timeout = datetime.timedelta(seconds=WAIT_S if fault in ("stuck", "init", "store", "exit") else 120)
    dist.init_process_group("gloo", timeout=timeout)
    values = torch.ones(8)
    for step in range(3):
        dist.all_reduce(values)
        print(f"step {step} loss {values[0].item():.3f}", flush=True)
    if fault == "exit" and rank == culprit:  # leaves its loop one step early, as with uneven data
        print("done", flush=True)
        os._exit(0)
    if fault == "caught":
        try:
            load_batch()
        except KeyError:
            traceback.print_exc()
        print("using the default instead", flush=True)
        dist.all_reduce(values)
    if fault in ("caught", "healthy"):
        dist.destroy_process_group()
        print("done", flush=True)
        return
    if rank == culprit:
        fail(fault)
    differ(fault, rank == culprit)
    dist.all_reduce(values)


def spawned(rank: int, fault: str, culprit: int, port: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORLD), MASTER_PORT=port)
    train(rank, fault, culprit)


def main() -> None:
    fault, culprit = sys.argv[1], int(sys.argv[2])
    if "RANK" not in os.environ:
        torch.multiprocessing.spawn(spawned, (fault, culprit, sys.argv[3]), WORLD)  # type: ignore[no-untyped-call]
        return
    rank = int(os.environ["RANK"])
    if len(sys.argv) > 3:
        own = os.open(Path(sys.argv[3], f"rank_{rank}.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(own, 1)
        os.dup2(own, 2)
    try:
        train(rank, fault, culprit)
    except Exception:
        sys.excepthook(*sys.exc_info())  # as the interpreter does, which a forked rank does not come back to
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main()
