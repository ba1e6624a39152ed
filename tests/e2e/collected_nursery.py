"""A process that has imported torch and forks interpreters from it, each of which runs a script from start to end.

Unlike those of nursery.py they end as any Python does: what nobody catches goes to the excepthook, then comes what
atexit was given. Where the environment asks for the collector, it begins as it does when a script imports torch.

Its arguments are further modules to import. Each line of its input is a list of processes to be started at the same
time: {"script", "arguments", "environment", "out", "err"}. The answer is a line with the list of their exit codes, null
for those that had to be killed.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401 - the first step of an optimizer would import it
from nursery import exit_codes

from rankscope.collect.launching import startup

LIMIT_S = 240


def next_script() -> dict[str, Any] | None:
    """What the process is to run, in one that was forked; None where the input has ended."""
    for line in sys.stdin:
        pids = []
        for process in json.loads(line):
            pid = os.fork()
            if not pid:
                return dict(process)
            pids.append(pid)
        print(json.dumps(exit_codes(pids, LIMIT_S)), flush=True)
    return None


def become(process: dict[str, Any]) -> None:
    os.setsid()
    for path, flags, target in (
        (os.devnull, os.O_RDONLY, 0),
        (process["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 1),
        (process["err"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 2),
    ):
        os.dup2(os.open(path, flags), target)
    os.environ.clear()
    os.environ.update(process["environment"])
    sys.argv = [process["script"], *process["arguments"]]
    sys.path[0] = str(Path(process["script"]).parent)
    startup.watch()


if __name__ == "__main__":
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.freeze()  # a collector that visited what was imported would copy it into every process
    asked = next_script()
    if asked is not None:
        become(asked)
        runpy.run_path(asked["script"], run_name="__main__")
