"""Small jobs whose steps are recorded by torch's execution trace observer and its profiler at the same time.

`python observed_training.py --output DIR --cases mlp,transformer,...` writes DIR/<case>/torch_et_<rank>.json and
kineto_trace_<rank>.json. Under torchrun the cases of several ranks are there as well.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule

RANK = int(os.environ.get("RANK", "0"))
N_STEPS = 3
Step = Callable[[], None]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--cases", required=True)
    args = parser.parse_args()
    torch.manual_seed(RANK)
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    for case in args.cases.split(","):
        folder = args.output / case
        folder.mkdir(parents=True, exist_ok=True)
        CASES[case](folder)
    if dist.is_initialized():
        dist.destroy_process_group()


def trace_names(folder: Path) -> tuple[str, str]:
    return str(folder / f"torch_et_{RANK}.json"), str(folder / f"kineto_trace_{RANK}.json")


@contextmanager
def observing(path: str) -> Iterator[ExecutionTraceObserver]:
    observer = ExecutionTraceObserver().register_callback(path)
    try:
        yield observer
    finally:
        observer.unregister_callback()


def record_scheduled(folder: Path, step: Step, **options: Any) -> None:
    """As the documentation of torch has it: the profiler starts and stops the observer together with itself."""
    et_path, kineto_path = trace_names(folder)
    observer = ExecutionTraceObserver().register_callback(et_path)
    profile_steps(step, kineto_path, execution_trace_observer=observer, **options)


def profile_steps(step: Step, path: str, **options: Any) -> None:
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=N_STEPS, repeat=1),
        record_shapes=True,
        on_trace_ready=lambda recorded: recorded.export_chrome_trace(path),
        **options,
    ) as profiler:
        for _ in range(N_STEPS + 1):
            step()
            profiler.step()


def record_unscheduled(folder: Path, step: Step) -> None:
    """Observer and profiler by hand, around the same steps: no ProfilerStep marks anything."""
    et_path, kineto_path = trace_names(folder)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler, observing(et_path) as observer:
        observer.start()
        for _ in range(N_STEPS):
            step()
        observer.stop()
    profiler.export_chrome_trace(kineto_path)


def record_observed_longer(folder: Path, step: Step) -> None:
    """The observer sees all steps, the profiler only the last ones."""
    et_path, kineto_path = trace_names(folder)
    with observing(et_path) as observer:
        observer.start()
        for _ in range(N_STEPS):
            step()
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            for _ in range(N_STEPS):
                step()
        observer.stop()
    profiler.export_chrome_trace(kineto_path)


def record_clean(folder: Path, step: Step) -> None:
    """Linked steps, and beside them the same steps without the observer, which makes operators slower."""
    record_scheduled(folder, step)
    profile_steps(step, str(folder / f"kineto_clean_{RANK}.json"))


def record_killed(folder: Path, step: Step) -> None:
    """The process is gone before the observer could finish its file. It comes last."""
    observer = ExecutionTraceObserver().register_callback(trace_names(folder)[0])
    observer.start()
    for _ in range(N_STEPS):
        step()
    os._exit(0)


def training_step(model: nn.Module, *shape: int) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(*shape)).square().mean().backward()
        optimizer.step()

    return step


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))


def mlp_step() -> Step:
    return training_step(mlp(), 8, 64)


def transformer_step() -> Step:
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
    return training_step(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), 2, 8, 32)


def data_parallel_step() -> Step:
    return training_step(nn.parallel.DistributedDataParallel(mlp()), 8, 64)


def sharded_step() -> Step:
    from torch.distributed.fsdp import fully_shard

    model = mlp()
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
    return training_step(model, 8, 64)


def collectives_step() -> Step:
    """Every collective of gloo and both ways to transfer, each with a size that no other one has."""
    pair = dist.new_group([0, 1], group_desc="pair")
    size = dist.get_world_size()

    def step() -> None:
        dist.all_reduce(torch.ones(100))
        dist.all_reduce(torch.ones(33), group=pair)
        dist.broadcast(torch.ones(200), src=1)
        dist.reduce(torch.ones(300), dst=1)
        dist.all_gather([torch.empty(40) for _ in range(size)], torch.ones(40))
        dist.all_gather_into_tensor(torch.empty(50 * size), torch.ones(50))
        dist.gather(torch.ones(60), [torch.empty(60) for _ in range(size)] if RANK == 0 else None, dst=0)
        dist.scatter(torch.empty(70), [torch.ones(70) for _ in range(size)] if RANK == 0 else None, src=0)
        dist.reduce_scatter_tensor(torch.empty(80), torch.ones(80 * size))
        dist.all_to_all_single(torch.empty(90 * size), torch.ones(90 * size))
        dist.all_to_all([torch.empty(25) for _ in range(size)], [torch.ones(25) for _ in range(size)])
        if RANK == 0:
            dist.send(torch.ones(110, dtype=torch.int64), dst=1, tag=7)
            dist.irecv(torch.empty(120), src=1).wait()
        elif RANK == 1:
            dist.recv(torch.empty(110, dtype=torch.int64), src=0, tag=7)
            dist.isend(torch.ones(120), dst=0).wait()
        dist.barrier()

    return step


def compiled_step() -> Step:
    return training_step(torch.compile(mlp()), 8, 64)


CASES: dict[str, Callable[[Path], None]] = {
    "mlp": lambda folder: record_scheduled(folder, mlp_step()),
    "transformer": lambda folder: record_scheduled(folder, transformer_step()),
    "stacks_and_memory": lambda folder: record_scheduled(
        folder, mlp_step(), with_stack=True, profile_memory=True, with_modules=True
    ),
    "unscheduled": lambda folder: record_unscheduled(folder, mlp_step()),
    "observed_longer": lambda folder: record_observed_longer(folder, mlp_step()),
    "clean": lambda folder: record_clean(folder, mlp_step()),
    "compiled": lambda folder: record_scheduled(folder, compiled_step()),
    "killed": lambda folder: record_killed(folder, mlp_step()),
    "data_parallel": lambda folder: record_scheduled(folder, data_parallel_step()),
    "sharded": lambda folder: record_scheduled(folder, sharded_step()),
    "collectives": lambda folder: record_scheduled(folder, collectives_step()),
}

if __name__ == "__main__":
    main()
