"""Data-parallel training under torch.profiler, once for each way to be slow; every rank writes a trace.

One start of the job serves all cases: most of the time goes into starting torch in four processes.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from job_options import Fault, parse_job_options
from torch.autograd.function import FunctionCtx
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

STEPS_BEFORE = 2  # one is left out, one warms the profiler up
RECORDED_STEPS = 8
WIDTH = 128
BLOCKS = 3
BATCH = 32
DEVICE_S_PER_SAMPLE = 0.0005  # in each block, forward and backward
DELAY_S = 0.1
# The collector visits every container: this many take it a good tenth of a second.
N_CACHED_SAMPLES = 300_000


class Case(NamedTuple):
    fault: str
    with_stack: bool = False
    batch: int = BATCH


CASES = {
    # Long steps, so that the exchange of gradients is next to nothing on a busy machine as well.
    "healthy": Case("none", batch=3 * BATCH),
    "sleep": Case("sleep"),
    "extra-work": Case("extra-work"),
    "slow-loader": Case("slow-loader"),
    "garbage": Case("garbage"),
    "sleep-with-stacks": Case("sleep", with_stack=True),
    "garbage-with-stacks": Case("garbage", with_stack=True),
}


class Batches(Dataset[torch.Tensor]):
    def __init__(self, n_samples: int, fault: Fault) -> None:
        self._delay_s = DELAY_S if fault.is_here("slow-loader") else 0.0
        self._batch = torch.randn(n_samples, WIDTH)

    def __len__(self) -> int:
        return STEPS_BEFORE + RECORDED_STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._delay_s:
            time.sleep(self._delay_s)
        return self._batch + index


class OnDevice(torch.autograd.Function):
    """Stands for an accelerator: it takes time by the samples, but no processor.

    So the ranks stay alike where they share a few busy cores, and only the culprit is slow.
    """

    @staticmethod
    def forward(context: FunctionCtx, hidden: torch.Tensor) -> torch.Tensor:
        time.sleep(DEVICE_S_PER_SAMPLE * len(hidden))
        return hidden.clone()

    @staticmethod
    def backward(context: FunctionCtx, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(DEVICE_S_PER_SAMPLE * len(gradient))
        return gradient.clone()


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return OnDevice.apply(self.linear(hidden).relu())


def build_model() -> DistributedDataParallel:
    return DistributedDataParallel(torch.nn.Sequential(*(Block() for _ in range(BLOCKS))), bucket_cap_mb=0.1)


def longest_sequences(batch: torch.Tensor, fault: Fault) -> torch.Tensor:
    return batch.repeat(3, 1) if fault.is_here("extra-work") else batch


def train_step(model: DistributedDataParallel, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def train(model: DistributedDataParallel, loader: DataLoader[torch.Tensor], profiler: profile, fault: Fault) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, batch in enumerate(loader):
        if fault.is_here("sleep"):
            time.sleep(DELAY_S)
        if fault.is_here("garbage") and step % 3 == 0:
            gc.collect()
        train_step(model, optimizer, longest_sequences(batch, fault))
        profiler.step()


def record(case: Case, fault: Fault, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    cached = [[number] for number in range(N_CACHED_SAMPLES if fault.is_here("garbage") else 0)]
    model = build_model()
    loader = DataLoader(Batches(case.batch, fault), batch_size=None)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=RECORDED_STEPS, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(folder / f"rank-{dist.get_rank()}.pt.trace.json")),
        record_shapes=True,
        profile_memory=True,
        with_stack=case.with_stack,
    ) as profiler:
        train(model, loader, profiler, fault)
    cached.clear()


def main() -> None:
    options = parse_job_options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    gc.disable()  # so that garbage is collected where the job says, and nowhere else
    for name, case in CASES.items():
        dist.barrier()
        record(case, Fault(case.fault, options.fault.rank), options.dumps / name)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
