"""Ranks that average for some rounds until one of them fails, collected as `rankscope record` does it."""

from __future__ import annotations

import argparse
import atexit
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from rankscope.collect.run import Run
from rankscope.collect.settings import Settings

ROUNDS = 10
FAILS_IN = 6
LIFETIME_S = 300
COMPILER_IMPORTED = 9


def average(weights: torch.Tensor) -> None:
    dist.all_reduce(weights)


def load_batch_for_ever(seconds: float) -> None:
    time.sleep(seconds)


def ask_all_then_end_two(folder: Path) -> None:
    """As the person on call does, with kill."""
    pids = [json.loads(path.read_text())["pid"] for path in sorted((folder / "manifest.d").glob("rank_*.json"))]
    time.sleep(1)  # the others wait in gloo by now
    for pid in pids:
        os.kill(pid, signal.SIGUSR2)
    while len(list(folder.glob("nccl_trace_rank_*[0-9]"))) < len(pids):
        time.sleep(0.05)
    os.kill(pids[0], signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)


def ask_with_the_command(folder: Path) -> None:
    """The others wait in gloo meanwhile; then the job goes on as if nothing had been asked."""
    time.sleep(1)
    command = [sys.executable, "-m", "rankscope", "snapshot", str(folder), "--watch", "2", "--json"]
    with (folder.parent / "snapshot.json").open("w") as answer:
        subprocess.run(command, stdout=answer, check=False)


def fail(fault: str, folder: Path) -> None:
    if fault == "sleep":
        load_batch_for_ever(8)
        os._exit(1)
    elif fault == "raise":
        raise ValueError("loss is nan")
    elif fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "snapshot":
        ask_with_the_command(folder)
    elif fault == "signals":
        ask_all_then_end_two(folder)


def train(options: argparse.Namespace, run: Run) -> None:
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=options.timeout))
    run.joined()
    weights = torch.ones(16)
    for number in range(ROUNDS):
        if number == FAILS_IN and rank == options.rank:
            fail(options.fault, options.dumps)
        average(weights)
        run.step()
    dist.destroy_process_group()


def main() -> int:
    signal.alarm(LIFETIME_S)
    parser = argparse.ArgumentParser()
    parser.add_argument("--dumps", type=Path, required=True)
    parser.add_argument("--fault", default="")
    parser.add_argument("--rank", type=int, default=-1)
    parser.add_argument("--stall", type=float, default=300.0)
    parser.add_argument("--timeout", type=float, default=60.0)
    options = parser.parse_args()
    off = dict.fromkeys(("execution_trace", "kineto", "metrics", "host", "compile_log"), False)
    cpp_stacks = options.fault == "snapshot"
    run = Run(Settings(folder=str(options.dumps), stall_seconds=options.stall, cpp_stacks=cpp_stacks, **off))
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    run.begin(rank, world_size, rank)
    try:
        train(options, run)
    except Exception:
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        atexit._run_exitfuncs()  # a forked rank ends without the interpreter's own end
    return COMPILER_IMPORTED if "torch._inductor" in sys.modules else 0


if __name__ == "__main__":
    sys.exit(main())
