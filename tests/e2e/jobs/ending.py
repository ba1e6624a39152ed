"""Jobs that hang or fail, each in its own way. The line that is to be named ends in `# planted: NAME`."""

from __future__ import annotations

import argparse
import ctypes
import datetime
import fcntl
import importlib
import os
import queue
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

WIDTH = 8
N_STEPS, FAILS_IN = 12, 5
LONG_S = 120.0


class Options(argparse.Namespace):
    fault: str
    timeout: float
    scratch: Path
    cured: bool


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("fault", choices=sorted(FAULTS))
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--scratch", type=Path, default=Path())
    parser.add_argument("--cured", action="store_true", help="the same job without the fault")
    options = parser.parse_args(namespace=Options())
    torch.set_num_threads(1)
    FAULTS[options.fault](options)


def rank() -> int:
    return int(os.environ["RANK"])


def is_culprit(options: Options) -> bool:
    return rank() == int(os.environ["WORLD_SIZE"]) - 1 and not options.cured


def join(options: Options) -> None:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=options.timeout))


def average(weights: torch.Tensor) -> None:
    dist.all_reduce(weights)


def train(options: Options, act: Callable[[], object]) -> None:
    """A loop of one's own, in which the last rank does something in one step."""
    join(options)
    weights = torch.ones(WIDTH)
    for step in range(N_STEPS):
        if step == FAILS_IN and is_culprit(options):
            act()
        average(weights)
    dist.destroy_process_group()


def train_parallel(
    options: Options, batches: int = N_STEPS, act: Callable[[torch.Tensor], object] | None = None
) -> None:
    """With DistributedDataParallel; `act` gives a loss, or None for a step that is left out."""
    model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(batches):
        loss = model(torch.ones(4, WIDTH)).sum()
        if act is not None and step == FAILS_IN and not act(loss):
            continue
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def lock_file(options: Options) -> None:
    def act() -> None:
        path = options.scratch / "cache.lock"
        holder = path.open("w")
        fcntl.flock(holder, fcntl.LOCK_EX)
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # planted: file-lock

    train(options, act)


def download(options: Options) -> None:
    def act() -> None:
        server = socket.create_server(("127.0.0.1", 0))
        with socket.create_connection(server.getsockname()) as connection:
            connection.recv(1024)  # planted: download

    train(options, act)


def loop_forever(options: Options) -> None:
    def act() -> None:
        end = time.monotonic() + LONG_S
        while time.monotonic() < end:
            sum(range(1000))  # planted: loop

    train(options, act)


def come_late(options: Options) -> None:
    """Reaches the collective after the others have given up."""

    def act() -> None:
        time.sleep(2 * options.timeout)  # planted: late

    train(options, act)


def never_at_init(options: Options) -> None:
    if is_culprit(options):
        time.sleep(LONG_S)  # planted: init
    train(options, int)


def first_collective(options: Options) -> None:
    join(options)
    if is_culprit(options):
        time.sleep(LONG_S)  # planted: first
    average(torch.ones(WIDTH))
    dist.destroy_process_group()


def after_destroy(options: Options) -> None:
    train(options, int)
    if is_culprit(options):
        time.sleep(LONG_S)  # planted: after-destroy


def upload() -> None:
    time.sleep(LONG_S)  # planted: exit-hang


def exit_hang(options: Options) -> None:
    train(options, int)
    if is_culprit(options):
        threading.Thread(target=upload, name="uploader").start()


def groups_deadlock(options: Options) -> None:
    """Two groups over the same ranks, called in the other order by the last rank."""
    join(options)
    first, second = dist.new_group(), dist.new_group()
    weights = torch.ones(WIDTH)
    for step in range(N_STEPS):
        if step == FAILS_IN and is_culprit(options):
            dist.all_reduce(weights, group=second)  # planted: two-groups
        dist.all_reduce(weights, group=first)
        dist.all_reduce(weights, group=second)
    dist.destroy_process_group()


def segfault(options: Options) -> None:
    def act() -> None:
        ctypes.string_at(0)  # planted: segfault

    train(options, act)


def abort(options: Options) -> None:
    def act() -> None:
        os.abort()  # planted: abort

    train(options, act)


def killed(options: Options) -> None:
    def act() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    train(options, act)


def leave_at_once(options: Options) -> None:
    def act() -> None:
        os._exit(3)

    train(options, act)


def exit_with_code(options: Options) -> None:
    def act() -> None:
        print("no checkpoint to resume from", file=sys.stderr, flush=True)
        sys.exit(5)  # planted: sys-exit

    train(options, act)


def load_state() -> None:
    raise ValueError("loss is nan")  # planted: raise


def raise_error(options: Options) -> None:
    train(options, load_state)


def mismatch(options: Options) -> None:
    """A call that gloo itself refuses."""

    def act() -> None:
        dist.all_reduce(torch.ones(WIDTH * 1000))  # planted: mismatch

    train(options, act)


def own_barrier(options: Options) -> None:
    def act() -> None:
        dist.barrier()  # planted: barrier

    train(options, act)


def checked_barrier(options: Options) -> None:
    join(options)
    average(torch.ones(WIDTH))
    if is_culprit(options):
        time.sleep(LONG_S)  # planted: monitored
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=options.timeout))


def skip_backward(options: Options) -> None:
    join(options)
    train_parallel(options, act=lambda loss: not is_culprit(options))  # the loss is not a number there: no backward
    dist.destroy_process_group()


def end_early(options: Options) -> None:
    join(options)
    train_parallel(options, N_STEPS - 3 if is_culprit(options) else N_STEPS)
    dist.barrier()  # planted: uneven
    dist.destroy_process_group()


def exit_early(options: Options) -> None:
    join(options)
    train_parallel(options, N_STEPS - 3 if is_culprit(options) else N_STEPS)


def swallow(options: Options) -> None:
    """An exception that the program catches costs it one collective."""
    join(options)
    weights = torch.ones(WIDTH)
    for step in range(N_STEPS):
        try:
            if step == FAILS_IN and is_culprit(options):
                raise OSError("cannot read shard 7")
            average(weights)
        except OSError as error:
            print("skipped:", error, flush=True)
        dist.broadcast(weights, 0)  # planted: swallowed
    dist.destroy_process_group()


class Killed(Dataset[torch.Tensor]):
    def __init__(self, is_killed: bool) -> None:
        self.is_killed = is_killed

    def __len__(self) -> int:
        return N_STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.is_killed and index == FAILS_IN:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.ones(WIDTH)


class Stuck(Dataset[torch.Tensor]):
    def __init__(self, sticks: bool) -> None:
        self.sticks = sticks

    def __len__(self) -> int:
        return N_STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.sticks and index == FAILS_IN:
            time.sleep(LONG_S)  # planted: worker
        return torch.ones(WIDTH)


def worker_hang(options: Options) -> None:
    join(options)
    for batch in DataLoader(Stuck(is_culprit(options)), num_workers=1):
        average(batch)
    dist.destroy_process_group()


def collate(samples: list[torch.Tensor]) -> torch.Tensor:
    if len(samples) < 2:
        raise KeyError("labels")  # planted: collate
    return torch.stack(samples)


def collate_fails(options: Options) -> None:
    """An exception in a worker process of the DataLoader: the last batch of the culprit is short."""
    join(options)
    samples = [torch.ones(WIDTH)] * (2 * N_STEPS - is_culprit(options))
    for batch in DataLoader(samples, batch_size=2, num_workers=1, collate_fn=collate):  # type: ignore[arg-type]
        average(batch)
    dist.destroy_process_group()


def worker_killed(options: Options) -> None:
    """A worker process of the DataLoader is killed, as for lack of memory."""
    join(options)
    for batch in DataLoader(Killed(is_culprit(options)), num_workers=1):  # planted: worker-killed
        average(batch)
    dist.destroy_process_group()


def thread_fails(options: Options) -> None:
    """The thread that fills a queue fails, and the loop waits for it."""
    batches: queue.Queue[torch.Tensor] = queue.Queue()

    def fill() -> None:
        raise OSError("cannot open shard 3")  # planted: thread

    def act() -> None:
        threading.Thread(target=fill, name="prefetch", daemon=True).start()
        batches.get()

    train(options, act)


def terminated(options: Options) -> None:
    """One rank is ended, not the launcher."""

    def act() -> None:
        os.kill(os.getpid(), signal.SIGTERM)  # planted: terminated

    train(options, act)


def import_fails(options: Options) -> None:
    if is_culprit(options):
        importlib.import_module("no_such_module")  # planted: import
    train(options, int)


def lock_held(options: Options) -> None:
    lock = threading.Lock()

    def hold() -> None:
        with lock:
            time.sleep(LONG_S)  # holds the lock

    def act() -> None:
        threading.Thread(target=hold, name="uploader", daemon=True).start()
        time.sleep(0.2)
        with lock:  # planted: lock
            pass

    train(options, act)


def hold_python(options: Options) -> None:
    """A call into C that keeps Python's lock for long."""

    def act() -> None:
        re.match(r"(a|aa)+$", "a" * 44 + "b")  # planted: gil

    train(options, act)


def fail_twice(options: Options) -> None:
    """Another fault in each attempt."""
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        train(options, load_state)
        return

    def act() -> None:
        raise KeyError("optimizer")  # planted: restarts

    train(options, act)


FAULTS: dict[str, Callable[[Options], None]] = {
    "file-lock": lock_file,
    "download": download,
    "loop": loop_forever,
    "late": come_late,
    "init": never_at_init,
    "first": first_collective,
    "after-destroy": after_destroy,
    "exit-hang": exit_hang,
    "two-groups": groups_deadlock,
    "segfault": segfault,
    "abort": abort,
    "killed": killed,
    "os-exit": leave_at_once,
    "sys-exit": exit_with_code,
    "raise": raise_error,
    "mismatch": mismatch,
    "barrier": own_barrier,
    "monitored": checked_barrier,
    "nan": skip_backward,
    "uneven": end_early,
    "left": exit_early,
    "swallowed": swallow,
    "worker": worker_hang,
    "collate": collate_fails,
    "worker-killed": worker_killed,
    "thread": thread_fails,
    "terminated": terminated,
    "import": import_fails,
    "lock": lock_held,
    "gil": hold_python,
    "restarts": fail_twice,
}

if __name__ == "__main__":
    main()
