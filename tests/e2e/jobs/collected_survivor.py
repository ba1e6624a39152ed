"""Small jobs that the collector must not change: each prints what it did, leaves a file, and ends in its own way."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule

N_STEPS = 13


def main() -> None:
    case, own_folder, *more = sys.argv[1:]
    os.chdir(own_folder)
    torch.manual_seed(0)
    CASES[case](*more)
    print("done", flush=True)


def train(at_step: Callable[[int], object] = lambda step: None) -> None:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, N_STEPS + 1):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        at_step(step)
    print(f"loss {loss.item():.6f} after {N_STEPS} steps")
    Path("loss.txt").write_text(f"{loss.item():.6f}")


def trains_with_little_space(n_bytes: str) -> None:
    """No file may grow beyond that: as on a full disk, writing fails half-way."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(n_bytes), resource.RLIM_INFINITY))
    train()


def trains_while_a_folder_vanishes(folder: str) -> None:
    train(lambda step: shutil.rmtree(folder, ignore_errors=True) if step == 8 else None)


def profiles_all_steps() -> None:
    with profile(
        activities=[ProfilerActivity.CPU],
        execution_trace_observer=ExecutionTraceObserver().register_callback("own.json"),
    ) as profiler:
        train(lambda step: profiler.step())
    tell_profile(profiler)


def profiles_in_the_middle() -> None:
    """Two profilers: one that begins while the collector's is at work, one with a schedule."""
    first = profile(activities=[ProfilerActivity.CPU])
    second = profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=2, repeat=1))

    def at_step(step: int) -> None:
        if step == 7:
            first.start()
        elif step == 8:
            first.stop()
            second.start()
        elif step == 12:
            second.stop()
        elif step > 8:
            second.step()

    train(at_step)
    tell_profile(first)


def tell_profile(profiler: profile) -> None:
    profiler.export_chrome_trace("profile.json")
    names = [event["name"] for event in json.loads(Path("profile.json").read_text())["traceEvents"]]
    print("profiled", names.count("aten::linear"), "calls")
    Path("profile.json").unlink()  # it tells the time
    own = Path("own.json")
    if own.exists():
        observed = [node["name"] for node in json.loads(own.read_text())["nodes"]]
        print("observed", observed.count("aten::linear"), "calls")
        own.unlink()


def is_interrupted() -> None:
    train(lambda step: os.kill(os.getpid(), signal.SIGINT) if step == 9 else None)


def catches_an_interrupt() -> None:
    try:
        is_interrupted()
    except KeyboardInterrupt:
        print("interrupted")
        sys.exit(130)


def has_handlers_of_its_own() -> None:
    """Set before and after the first step: the collector comes between."""

    def handle(number: int, frame: object) -> None:
        print("got", signal.Signals(number).name, flush=True)

    def hook(kind: type[BaseException], error: BaseException, trace: object) -> None:
        print("hook got", kind.__name__, error, flush=True)

    signal.signal(signal.SIGUSR2, handle)
    sys.excepthook = hook
    train(lambda step: signal.signal(signal.SIGTERM, handle) if step == 3 else None)
    for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGUSR2):
        os.kill(os.getpid(), number)
        time.sleep(0.01)  # lets Python call the handler before the next one comes
    raise ValueError("nobody catches this")


def dies_by_sigterm() -> None:
    train()
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    time.sleep(30)


def leaves_at_once() -> None:
    train()
    print("leaving", flush=True)
    os._exit(4)


def leaves_with_a_code() -> None:
    train()
    sys.exit(3)


def leaves_with_a_text() -> None:
    train()
    sys.exit("something is wrong")


class Squares(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index * index)


def loads_with_workers(start_method: str, n_workers: str) -> None:
    train()  # the collector is at work when they are started
    loader = torch.utils.data.DataLoader(Squares(), num_workers=int(n_workers), multiprocessing_context=start_method)
    print("loaded", sum(int(item) for item in loader))


def loses_its_store(rank: str, port: str) -> None:
    """Rank 0 hosts the store and is killed; the other one goes on alone."""
    os.environ |= {"MASTER_PORT": port}
    dist.init_process_group("gloo", rank=int(rank), world_size=2)
    train(lambda step: dist.all_reduce(torch.ones(1)))
    if rank == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1.5)  # the collector's threads meet the dead store
    train()
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        print(type(error).__name__)
        sys.exit(5)


def closes_all_files() -> None:
    """As daemons do: what the collector has open is gone."""
    train(lambda step: os.closerange(3, 1024) if step == 3 else None)


CASES: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        train,
        trains_with_little_space,
        trains_while_a_folder_vanishes,
        profiles_all_steps,
        profiles_in_the_middle,
        is_interrupted,
        catches_an_interrupt,
        has_handlers_of_its_own,
        dies_by_sigterm,
        leaves_at_once,
        leaves_with_a_code,
        leaves_with_a_text,
        loads_with_workers,
        loses_its_store,
        closes_all_files,
    )
}

if __name__ == "__main__":
    main()
