"""Jobs of kinds that are easily misread: groups made again, uneven outputs, groups made in another order, pipelines."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from blackbox import BlackBox, dump_trace, recording
from job_options import Fault, parse_job_options
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage
from until_dumped import leave_when_dumped

STEPS = 8
WIDTH = 16
N_MICROBATCHES = 4


def generations(box: BlackBox, fault: Fault) -> None:
    """The same group is destroyed and made again for each phase, as elastic trainers do."""
    for phase in range(2):
        group = dist.new_group([0, 1, 2, 3])
        for step in range(STEPS):
            if phase == 1 and fault.strikes("stuck-in-second-generation", step):
                wait_for_storage()
            average_phase(torch.ones(64), group)
            box.progress()
        dist.destroy_process_group(group)


def average_phase(gradients: torch.Tensor, group: dist.ProcessGroup) -> None:
    dist.all_reduce(gradients, group=group)


def wait_for_storage() -> None:
    while True:
        time.sleep(3600)


def uneven(box: BlackBox, fault: Fault) -> None:
    """Every rank gives another number of rows, and each knows how many the others give."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for _ in range(STEPS):
        splits = [8 * (peer + 1) for peer in range(size)]  # gloo refuses an all_gather of other sizes
        received = torch.zeros(size * splits[rank])
        dist.all_to_all_single(received, torch.ones(sum(splits)), [splits[rank]] * size, splits)
        words: list[Any] = [None] * size
        dist.all_gather_object(words, "x" * 10 ** (rank + 1))
        dist.all_reduce(torch.ones(4))
        box.progress()


def groups_in_order(box: BlackBox, fault: Fault) -> None:
    """Two groups of the same ranks, by role; one rank makes them the other way round."""
    roles = ["dp", "ep"]
    if fault.is_here("other-group-order"):
        roles.reverse()
    groups = {role: dist.new_group([0, 1, 2, 3], group_desc=role) for role in roles}
    for _ in range(STEPS):
        dist.all_reduce(torch.ones(64), group=groups["dp"])
        dist.all_reduce(torch.ones(32), group=groups["ep"])
        box.progress()


def arguments(box: BlackBox, fault: Fault) -> None:
    """Calls whose arguments the recorder does not keep: the root of a broadcast, the tag of a transfer; and a group."""
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    for step in range(STEPS):
        dist.broadcast(torch.ones(8), src=1 if fault.strikes("other-root", step) else 0)
        if rank == 0:
            dist.send(torch.ones(4), 1, tag=step)
        elif rank == 1:
            dist.recv(torch.ones(4), 0, tag=step + 99 * fault.strikes("other-tag", step))
        if fault.strikes("other-group", step):
            dist.all_reduce(torch.ones(16))
        else:
            dist.all_reduce(torch.ones(16), group=pairs[rank // 2])
        dist.all_reduce(torch.ones(16))
        box.progress()


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(rows).relu()
        return result


def pipeline(schedule: str, n_local: int = 1) -> Callable[[BlackBox, Fault], None]:
    def run(box: BlackBox, fault: Fault) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        device = torch.device("cpu")
        stages = [PipelineStage(Layer(), rank + size * number, size * n_local, device) for number in range(n_local)]
        made: Any = getattr(pipelining, schedule)
        given = stages[0] if n_local == 1 else stages
        runner = made(given, n_microbatches=N_MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
        for step in range(STEPS):
            leave_out(stages[0], step, fault)
            batch = torch.ones(4 * N_MICROBATCHES, WIDTH)
            is_first, is_last = rank == 0, rank == size - 1
            runner.step(*((batch,) if is_first else ()), **({"target": batch} if is_last else {}))
            dist.all_reduce(torch.ones(2))
            box.progress()

    return run


def leave_out(stage: Any, step: int, fault: Fault) -> None:
    """From the step on, the stage does without one of its transfers: that of microbatch 2."""
    for half in ("send", "recv"):
        if fault.strikes(f"no-{half}", step):
            name = f"get_fwd_{half}_ops"
            usual = getattr(stage, name)

            def without(microbatch: int, usual: Any = usual) -> Any:
                return [] if microbatch == 2 else usual(microbatch)

            setattr(stage, name, without)


KINDS = {
    "generations": generations,
    "uneven": uneven,
    "groups": groups_in_order,
    "arguments": arguments,
    "gpipe": pipeline("ScheduleGPipe"),
    "1f1b": pipeline("Schedule1F1B"),
    "interleaved": pipeline("ScheduleInterleaved1F1B", 2),
}


def dump_at_another_time(folder: Path, box: BlackBox) -> None:
    """As when a user asks the ranks one by one: each has trained on before it dumps."""
    rank = dist.get_rank()
    for step in range(4 * STEPS):
        if step == 3 * rank:
            (folder / f"nccl_trace_rank_{rank}").write_bytes(dump_trace())
        average_phase(torch.ones(64), dist.group.WORLD)  # type: ignore[arg-type]
        time.sleep(0.002)
        box.progress()


def main() -> None:
    options = parse_job_options()
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    kinds = os.environ["KINDS"].split()
    if "RANKSCOPE_COLLECT" in os.environ:  # its watchdog dumps
        leave_when_dumped([options.dumps], dist.get_world_size())
        for kind in kinds:
            KINDS[kind](BlackBox(options.dumps, ()), options.fault)
        dist.destroy_process_group()
        return
    with recording(options.dumps) as box:
        if kinds == ["moments"]:
            dump_at_another_time(options.dumps, box)
            dist.barrier()
            os._exit(0)
        for kind in kinds:
            KINDS[kind](box, options.fault)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
