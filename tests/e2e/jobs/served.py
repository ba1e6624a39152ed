"""Averages gradients until it is told to stop, and can be asked meanwhile: torch's debug server runs in it.

--fault asleep: rank 1 does not come back from loading its fourth batch before the test opens the gate, a named pipe.
"""

from __future__ import annotations

import argparse
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def load_batch(gate: Path, step: int, fault: str) -> torch.Tensor:
    if fault == "asleep" and step == 3 and dist.get_rank() == 1:
        open(gate).close()
    return torch.full((64,), float(step))


def average_gradients(gradients: torch.Tensor) -> None:
    dist.all_reduce(gradients)


def is_told_to_stop(stop: Path) -> bool:
    told = torch.tensor([int(stop.exists())])
    dist.all_reduce(told)
    return bool(told.item())


def train(options: argparse.Namespace) -> None:
    step = 0
    while True:
        average_gradients(load_batch(options.gate, step, options.fault))
        if is_told_to_stop(options.stop):
            return
        step += 1
        time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--gate", type=Path, required=True)
    parser.add_argument("--stop", type=Path, required=True)
    parser.add_argument("--fault", choices=("none", "asleep"), default="none")
    parser.add_argument("--collect", help="have the collector start the server, and its files in this folder")
    options = parser.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    if options.collect:
        from rankscope.collect.run import Run
        from rankscope.collect.settings import Settings

        unwanted = ("execution_trace", "kineto", "stacks", "metrics", "compile_log")
        wanted = {"debug_port": options.port, "desync": True}
        run = Run(Settings(options.collect, **wanted, **dict.fromkeys(unwanted, False)))
        run.begin(dist.get_rank(), dist.get_world_size(), dist.get_rank())
        train(options)
        run.finish()
    else:
        from torch.distributed.debug import start_debug_server

        start_debug_server(port=options.port)
        try:
            train(options)
        finally:
            frontend = torch.distributed.debug._DEBUG_SERVER_PROC
            if frontend is not None:
                frontend.kill()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
