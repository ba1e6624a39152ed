"""A process that has imported torch and forks the ranks of jobs, so that no rank has to import it again.

Its arguments are further modules to import. Each line of its input asks for one job: {"script", "arguments",
"environment", "n_ranks", "output", "limit_s"}. When all ranks have ended it answers with a line: the list of their exit
codes, or "timeout" when they had to be killed.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch._logging._internal
import torch.distributed


def main() -> None:
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.freeze()  # a collector that visited what was imported would copy it into every rank
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), flush=True)


def _run(job: dict[str, Any]) -> list[int] | str:
    port = str(_free_port())
    ranks = [_fork(job, rank, port) for rank in range(job["n_ranks"])]
    codes = [code for code in exit_codes(ranks, job["limit_s"]) if code is not None]
    return codes if len(codes) == len(ranks) else "timeout"


def exit_codes(pids: list[int], limit_s: float) -> list[int | None]:
    """None for those that had to be killed when the time was over; each has a process group of its own."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + limit_s
    while len(codes) < len(pids) and time.monotonic() < deadline:
        for pid in pids:
            if pid not in codes:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    codes[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    for pid in (pid for pid in pids if pid not in codes):
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return [codes.get(pid) for pid in pids]


def _fork(job: dict[str, Any], rank: int, port: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        output = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        where = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(job["n_ranks"]), "MASTER_PORT": port}
        os.environ.update({**job["environment"], **where})
        torch._logging._internal.LOG_TRACE_HANDLER = None
        torch._logging._internal._init_logs()  # as an import of torch does, by the environment of the job
        sys.argv = [job["script"], *job["arguments"]]
        sys.path[0] = str(Path(job["script"]).parent)
        runpy.run_path(job["script"], run_name="__main__")
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:  # as the interpreter does at the top of a script
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
