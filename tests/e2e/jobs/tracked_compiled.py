"""One rank whose collectives are tracked while torch.compile rewrites some of them and leaves others alone."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
import torch.distributed as dist

from rankscope.collect.desync import recorded
from rankscope.collect.desync.calls import Call, Calls
from rankscope.collect.desync.hooks import Hooks


@torch.compile(fullgraph=True, backend="eager")
def one_graph(values: torch.Tensor) -> torch.Tensor:
    doubled = values * 2
    dist.all_reduce(doubled)
    return doubled + 1


@torch.compile(backend="eager")
def with_breaks(values: torch.Tensor) -> torch.Tensor:
    doubled = values * 2
    dist.barrier()
    work = dist.all_reduce(doubled, async_op=True)
    work.wait()
    return doubled + 1


def ignore(call: Call) -> None:
    raise AssertionError(f"{call.operation.name} timed out")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dumps", type=Path, required=True)
    parser.add_argument("--hooked", choices=("before", "after"), required=True)
    options = parser.parse_args()
    calls = Calls(100, ignore)
    hooks = Hooks(calls)
    if options.hooked == "before":
        hooks.install()
    import torch._dynamo.utils

    dist.init_process_group("gloo")
    if options.hooked == "after":
        hooks.install()
    found = [one_graph(torch.ones(3)).tolist(), with_breaks(torch.ones(3)).tolist()]
    n_frames = torch._dynamo.utils.counters["frames"]["total"]
    recorded.adopt(calls)
    answer = {
        "found": found,
        "calls": [(call.seq, call.operation.name, bool(call.ended_ns), bool(call.frames)) for call in calls.all()],
        "n_frames": n_frames,
    }
    hooks.remove()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    answer["found_unhooked"] = [one_graph(torch.ones(3)).tolist(), with_breaks(torch.ones(3)).tolist()]
    answer["n_frames_unhooked"] = torch._dynamo.utils.counters["frames"]["total"]
    answer["n_calls_unhooked"] = len(calls.ring)
    (options.dumps / "answer.json").write_text(json.dumps(answer))
    dist.destroy_process_group()


main()
