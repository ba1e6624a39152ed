"""What bench/collect.py runs: a small training loop, or bare collectives, or a compilation; prints what each took.

The collector is turned on and off in blocks of steps that take turns within one process, so a busy spell of the machine
hits all of them alike.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

import rankscope
from rankscope.collect.desync.calls import Calls
from rankscope.collect.desync.hooks import Hooks

NEVER = 10**9
PARTS = ("execution_trace", "kineto", "recorder", "stacks", "metrics", "compile_log", "desync", "host")
NOTHING: dict[str, Any] = dict.fromkeys(PARTS, False)
RECORDED: dict[str, Any] = {**NOTHING, "wait": 0, "warmup": 1, "clean": 0}
MODES: dict[str, dict[str, Any]] = {
    "off": {},
    "off again": {},  # tells how much of the rest is noise
    "idle": {"wait": NEVER},  # all that `rankscope record` collects, before and after the recorded steps
    "metrics": {**NOTHING, "metrics": True},
    "recorder, stacks": {**NOTHING, "recorder": True, "stacks": True},
    "desync": {**NOTHING, "desync": True},
    "host": {**NOTHING, "host": True},
    "kineto": {**RECORDED, "kineto": True},
    "kineto, execution trace": {**RECORDED, "kineto": True, "execution_trace": True},
    "kineto, stacks, memory": {**RECORDED, "kineto": True, "with_stack": True, "memory": True},
}
UNMEASURED_STEPS = 3  # at the beginning of each block: starting is not what is measured here


@contextlib.contextmanager
def collecting(mode: str, n_steps: int) -> Iterator[None]:
    if not MODES[mode]:
        yield
        return
    folder = tempfile.mkdtemp(prefix="rankscope_bench_")
    try:
        with rankscope.collect(folder, **{"active": n_steps, **MODES[mode]}):
            yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def training_step(width: int) -> Callable[[], None]:
    layers = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(6)]
    model: torch.nn.Module = torch.nn.Sequential(*layers)
    if dist.is_initialized():
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.randn(64, width)

    def step() -> None:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        if dist.is_initialized():
            dist.all_reduce(loss.detach())

    return step


def measure_collective(args: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds per all_reduce: in the hooks, and of the calling thread without them, with them, and with a mere pause.

    The pause is as long as the hooks take: what it costs beyond that is how gloo's own threads are scheduled.
    """
    tensor = torch.ones(4)
    inside = statistics.median(seconds_in_hooks(lambda: dist.all_reduce(tensor), args.rounds * args.steps))

    def paused() -> None:
        dist.all_reduce(tensor)
        until = time.perf_counter() + inside
        while time.perf_counter() < until:
            pass

    pauses = measure(paused, time.thread_time, argparse.Namespace(**vars(args) | {"modes": ["off"]}))
    blocks = measure(lambda: dist.all_reduce(tensor), time.thread_time, args)
    return {**blocks, "pause": pauses["off"], "hooks": [inside]}


def seconds_in_hooks(call: Callable[[], object], n_calls: int) -> list[float]:
    """Of each call: before it, after it, and after the wait for it; less what looking at the clock takes."""
    parts: dict[str, list[float]] = {"begin": [], "returned": [], "waited": []}
    calls = Calls(2000, lambda _: None)
    for name, seconds in parts.items():
        setattr(calls, name, timed(getattr(calls, name), seconds))
    hooks = Hooks(calls)
    hooks.install()
    try:
        for _ in range(n_calls):
            call()
    finally:
        hooks.remove()
    return [sum(each) for each in zip(*parts.values(), strict=True)]


def timed(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        before = time.perf_counter()
        began = time.perf_counter()
        result = function(*arguments)
        seconds.append(time.perf_counter() - began - (began - before))
        return result

    return call


def measure(step: Callable[[], None], clock: Callable[[], float], args: argparse.Namespace) -> dict[str, list[float]]:
    """The median step of each block, per mode."""
    for _ in range(20):
        step()
    blocks: dict[str, list[float]] = {mode: [] for mode in args.modes}
    for turn in range(args.rounds):
        for mode in args.modes[:: -1 if turn % 2 else 1]:
            times = []
            with collecting(mode, args.steps):
                for _ in range(UNMEASURED_STEPS + args.steps):
                    began = clock()
                    step()
                    times.append(clock() - began)
            kept = sorted(times[UNMEASURED_STEPS:])
            blocks[mode].append(kept[len(kept) // 2])
    return blocks


def compile_seconds() -> dict[str, list[float]]:
    """CPU seconds of one compilation, as the environment has it logged or not."""
    model = torch.compile(torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(20)]), backend="aot_eager")
    began = time.process_time()
    model(torch.ones(2, 8)).sum().backward()
    return {"compile": [time.process_time() - began]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=("train", "collective", "compile"))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--modes", nargs="+", default=list(MODES))
    parser.add_argument("--width", type=int, default=512)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    if args.work == "compile":
        blocks = compile_seconds()
    elif args.work == "train":
        blocks = measure(training_step(args.width), time.perf_counter, args)
    else:
        blocks = measure_collective(args)
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(blocks), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
