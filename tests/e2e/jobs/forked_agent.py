"""A launcher of its own kind: imports torch once and forks the ranks, so that a job costs one import of torch.

`forked_agent.py N SCRIPT ARGUMENTS...`. As torchrun does, it ends the other ranks when one of them has failed.
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import socket
import sys
import time
from pathlib import Path

ASKED = os.environ.pop("RANKSCOPE_COLLECT", "")  # for the ranks, which begin as if they had imported torch themselves

for name in ("torch._dynamo", "torch.distributed"):  # the first step of an optimizer would import the former
    importlib.import_module(name)

PATIENCE_S = 10.0


def main(n_ranks: int, script: str, *arguments: str) -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks: dict[int, int] = {}
    for rank in range(n_ranks):
        pid = os.fork()
        if not pid:
            become_rank(rank, n_ranks, port, [script, *arguments])
            return 0
        ranks[pid] = rank
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end_all(ranks, signal.SIGTERM))
    return wait(ranks)


def become_rank(rank: int, n_ranks: int, port: str, command: list[str]) -> None:
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(n_ranks), "MASTER_PORT": port}
    os.environ.update({**own, "MASTER_ADDR": "127.0.0.1"})
    sys.argv = command
    sys.path[0] = str(Path(command[0]).parent)
    if ASKED:
        os.environ["RANKSCOPE_COLLECT"] = ASKED
        from rankscope.collect.launching import startup

        startup.watch()
    runpy.run_path(command[0], run_name="__main__")


def end_all(ranks: dict[int, int], number: int) -> None:
    for pid in ranks:
        os.kill(pid, number)


def wait(ranks: dict[int, int]) -> int:
    """The first failure's code; 128 + n for signal n."""
    first, kill_at = 0, float("inf")
    while ranks:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            if time.monotonic() > kill_at:
                end_all(ranks, signal.SIGKILL)
            time.sleep(0.02)
            continue
        del ranks[pid]
        code = os.waitstatus_to_exitcode(status)
        if code and not first:
            first, kill_at = (code if code > 0 else 128 - code), time.monotonic() + PATIENCE_S
            end_all(ranks, signal.SIGTERM)
    return first


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *sys.argv[2:]))
