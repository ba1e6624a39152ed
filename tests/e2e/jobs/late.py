"""A job in which the last rank is late for one cause; the line that is to be named ends in `# planted: CAUSE`."""

from __future__ import annotations

import argparse
import gc
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, TensorDataset

WIDTH, BATCH = 128, 32
PAUSE_S = 0.03


class Options(argparse.Namespace):
    cause: str
    steps: int
    scratch: Path
    cured: bool


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cause", choices=sorted(CAUSES))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--scratch", type=Path, default=Path())
    parser.add_argument("--cured", action="store_true", help="the same job without the cause")
    options = parser.parse_args(namespace=Options())
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    is_late = dist.get_rank() == dist.get_world_size() - 1 and not options.cured
    CAUSES[options.cause](options, is_late)
    dist.destroy_process_group()


def model_of(dtype: torch.dtype = torch.float32) -> DistributedDataParallel:
    torch.manual_seed(0)
    parts = [part for _ in range(3) for part in (nn.Linear(WIDTH, WIDTH, dtype=dtype), nn.ReLU())]
    return DistributedDataParallel(nn.Sequential(*parts))


def train(options: Options, act: Callable[[int], object], batches: Iterator[torch.Tensor] | None = None) -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(options.steps):
        batch = next(batches) if batches is not None else torch.randn(BATCH, WIDTH)
        act(step)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def sleeping(options: Options, is_late: bool) -> None:
    def act(step: int) -> None:
        if is_late:
            time.sleep(PAUSE_S)  # planted: sleep

    train(options, act)


def collecting(options: Options, is_late: bool) -> None:
    kept = [[number] for number in range(1_000_000 if is_late else 10)]

    def act(step: int) -> None:
        if is_late:
            gc.collect()  # planted: gc
        assert kept

    train(options, act)


class Slow(Dataset[torch.Tensor]):
    def __init__(self, length: int, seconds: float) -> None:
        self.length, self.seconds = length, seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        deadline = time.perf_counter() + (self.seconds if index % BATCH == 0 else 0)
        while time.perf_counter() < deadline:
            sum(range(100))  # planted: loading
        return torch.randn(WIDTH)


def loading(options: Options, is_late: bool) -> None:
    data = Slow(options.steps * BATCH, PAUSE_S if is_late else 0)
    train(options, lambda step: None, iter(DataLoader(data, BATCH)))


def waiting_for_workers(options: Options, is_late: bool) -> None:
    data = Slow(options.steps * BATCH, 2 * PAUSE_S if is_late else 0)
    batches = iter(DataLoader(data, BATCH, num_workers=1))
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(options.steps):
        batch = next(batches)  # planted: workers
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def saving(options: Options, is_late: bool) -> None:
    weights = {"weights": torch.zeros(10_000_000 if is_late else 10)}

    def act(step: int) -> None:
        if is_late and step % 5 == 0:
            torch.save(weights, options.scratch / "checkpoint.pt")  # planted: saving

    train(options, act)


def reading(options: Options, is_late: bool) -> None:
    """From a pipe whose writer is slow."""
    source, target = os.pipe()

    def feed() -> None:
        while True:
            time.sleep(PAUSE_S)
            os.write(target, b".")

    if is_late:
        threading.Thread(target=feed, daemon=True).start()

    def act(step: int) -> None:
        if is_late:
            os.read(source, 1)  # planted: transfer

    train(options, act)


def writing(options: Options, is_late: bool) -> None:
    """Into a pipe whose reader is slow: it holds 64 KiB."""
    source, target = os.pipe()

    def drain() -> None:
        while os.read(source, 1 << 16):
            time.sleep(PAUSE_S)

    if is_late:
        threading.Thread(target=drain, daemon=True).start()

    def act(step: int) -> None:
        if is_late:
            os.write(target, bytes(1 << 16))  # planted: pipe

    train(options, act)


def asking(options: Options, is_late: bool) -> None:
    """A server that takes its time to answer."""
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    answering, _ = server.accept()

    def answer() -> None:
        while answering.recv(1):
            time.sleep(PAUSE_S)
            answering.sendall(b".")

    threading.Thread(target=answer, daemon=True).start()

    def act(step: int) -> None:
        if is_late:
            client.sendall(b"?")
            client.recv(1)  # planted: address

    train(options, act)


def locking(options: Options, is_late: bool) -> None:
    lock = threading.Lock()

    def hold() -> None:
        while True:
            with lock:
                time.sleep(PAUSE_S)
            time.sleep(0.001)

    if is_late:
        threading.Thread(target=hold, name="holder", daemon=True).start()

    def act(step: int) -> None:
        if is_late:
            with lock:  # planted: lock
                pass

    train(options, act)


def sharing_python(options: Options, is_late: bool) -> None:
    def spin() -> None:
        while True:
            sum(range(1000))  # planted: python-lock

    if is_late:
        threading.Thread(target=spin, name="spinner", daemon=True).start()
    train(options, lambda step: [len(str(number)) for number in range(2000)])


def evaluating(options: Options, is_late: bool) -> None:
    weights = torch.randn(500, 500)

    def act(step: int) -> None:
        if is_late:
            with torch.no_grad():
                for _ in range(20):
                    torch.mm(weights, weights)  # planted: evaluation

    train(options, act)


def reading_results(options: Options, is_late: bool) -> None:
    values = torch.randn(20_000)

    def act(step: int) -> None:
        if is_late:
            [value.item() for value in values]  # planted: extra

    train(options, act)


def decomposing(options: Options, is_late: bool) -> None:
    """An operator that the peers do not run."""
    values = torch.randn(220, 220)

    def act(step: int) -> None:
        if is_late:
            torch.linalg.svd(values)  # planted: operator

    train(options, act)


def hooking(options: Options, is_late: bool) -> None:
    model = model_of()
    weights = torch.randn(600, 600)

    def look(gradient: torch.Tensor) -> None:
        for _ in range(8):
            torch.mm(weights, weights)  # planted: hook

    if is_late:
        list(model.parameters())[-1].register_hook(look)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(options.steps):
        model(torch.randn(BATCH, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def looping(options: Options, is_late: bool) -> None:
    size = 600_000 if is_late else 60_000

    def act(step: int) -> None:
        sum(number % 7 for number in range(size))  # planted: longer

    train(options, act)


def batching(options: Options, is_late: bool) -> None:
    """A larger batch for one rank, from its own loader."""
    size = 16 * BATCH if is_late else BATCH
    loader = DataLoader(TensorDataset(torch.randn(options.steps * size, WIDTH)), size)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, 2000), nn.ReLU(), nn.Linear(2000, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (batch,) in loader:
        model(batch).square().mean().backward()  # planted: more
        optimizer.step()
        optimizer.zero_grad()


def routing(options: Options, is_late: bool) -> None:
    """A hot expert: most tokens go to the last rank. No loader counts them."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, 1000), nn.ReLU(), nn.Linear(1000, WIDTH)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(options.steps):
        tokens = torch.randn(20 * BATCH if is_late else BATCH, WIDTH)
        model(tokens).square().mean().backward()  # planted: expert
        optimizer.step()
        optimizer.zero_grad()


def other_type(options: Options, is_late: bool) -> None:
    weights = torch.randn(700, 700, dtype=torch.float64 if is_late else torch.float32)

    def act(step: int) -> None:
        for _ in range(4):
            torch.mm(weights, weights)  # planted: dtype

    train(options, act)


def stepping(options: Options, is_late: bool) -> None:
    torch.manual_seed(0)
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    extra = nn.Parameter(torch.randn(5_000_000 if is_late else 10))
    extra.grad = torch.randn_like(extra)
    slow = torch.optim.AdamW([extra], lr=0.01)
    for _ in range(options.steps):
        model(torch.randn(BATCH, WIDTH)).square().mean().backward()
        slow.step()  # planted: optimizer
        optimizer.step()
        optimizer.zero_grad()


def compiling(options: Options, is_late: bool) -> None:
    def double(values: torch.Tensor) -> torch.Tensor:
        return values * 2 + 1

    def act(step: int) -> None:
        if is_late:
            torch.compiler.reset()
        compiled = torch.compile(double, backend="eager", dynamic=False)
        compiled(torch.ones(4))  # planted: compile

    train(options, act)


CAUSES = {
    "sleep": sleeping,
    "gc": collecting,
    "loading": loading,
    "workers": waiting_for_workers,
    "saving": saving,
    "transfer": reading,
    "pipe": writing,
    "address": asking,
    "lock": locking,
    "python-lock": sharing_python,
    "extra": reading_results,
    "operator": decomposing,
    "hook": hooking,
    "expert": routing,
    "evaluation": evaluating,
    "more": batching,
    "dtype": other_type,
    "longer": looping,
    "optimizer": stepping,
    "compile": compiling,
}

if __name__ == "__main__":
    main()
