"""What the collector writes, as text: stacks of threads, lines of metrics, and manifests."""

from __future__ import annotations

import json
from typing import Any

START_NS = 1_763_294_400_000_000_000
STALL = "no collective has finished for 300 s"

TRAINING = """\
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2872 in all_reduce
  File "/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 81 in wrapper
  File "/job/train.py", line 40 in average_gradients
  File "/job/train.py", line 71 in main
  File "/job/train.py", line 80 in <module>
"""
LOADING = """\
  File "/usr/lib/python3.11/socket.py", line 706 in readinto
  File "/job/data.py", line 31 in load_batch
  File "/job/train.py", line 66 in main
  File "/job/train.py", line 80 in <module>
"""
WATCHING = """\
  File "/venv/lib/python3.11/site-packages/rankscope/collect/stacks.py", line 93 in dump
  File "/usr/lib/python3.11/threading.py", line 982 in run
  File "/usr/lib/python3.11/threading.py", line 1045 in _bootstrap_inner
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap
"""
SPIED = """\
Process 4713: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 4713 (idle): "MainThread"
    __GI___poll (libc.so.6)
    all_reduce (torch/distributed/distributed_c10d.py:2872)
    average_gradients (train.py:40)
        Locals:
            group: None
    main (train.py:71)
    <module> (train.py:80)
Thread 4720 (active+gil): "prefetch"
    copy (/job/data.py:52)
    run (threading.py:982)
    _bootstrap_inner (threading.py:1045)
    _bootstrap (threading.py:1002)
"""


def stack_section(rank: int, second: int, reason: str, main: str) -> str:
    """As the collector writes it: the thread that prints first, the oldest one last."""
    header = f"=== rankscope stacks: rank {rank}, pid {4711 + rank}, 2025-11-16T12:05:{second:02}.500000Z, reason: "
    printer = f"Current thread 0x00007f0000000{rank}02 [rankscope] (most recent call first):\n{WATCHING}"
    oldest = f"Thread 0x00007f0000000{rank}01 [MainThread] (most recent call first):\n{main}"
    return f"{header}{reason} ===\n{printer}\n{oldest}\n"


def metric_lines(rank: int, n_steps: int) -> str:
    lines: list[dict[str, Any]] = [
        {"schema": "rankscope.metrics/1", "rank": rank, "world_size": 2, "host": "gpu-1", "pid": 4711 + rank}
    ]
    for step in range(1, n_steps + 1):
        about = {"time_ns": START_NS + step * 120_000_000, "step": step}
        lines.append({**about, "name": "step_time_s", "value": 0.12})
        lines.append({**about, "name": "host_memory_bytes", "value": 1 << 30})
        lines.append({**about, "name": "loss", "value": float("nan") if step == n_steps else 1 / step})
    return "".join(json.dumps(line) + "\n" for line in lines)


def manifest_part(rank: int, **fields: Any) -> dict[str, Any]:
    return {
        "schema": "rankscope.manifest-part/1",
        "rank": rank,
        "world_size": 2,
        "local_rank": rank,
        "host": "gpu-1",
        "pid": 4711 + rank,
        "python": "3.11.7",
        "torch": "2.13.0+cpu",
        "platform": "Linux-6.1-x86_64",
        "command": ["python", "train.py", "--token", "(hidden)"],
        "environment": {"RANK": str(rank), "WORLD_SIZE": "2"},
        "started_ns": START_NS,
        "ended_ns": START_NS + 60_000_000_000,
        "clock_offset_ns": 0,
        "clock_error_ns": 0,
        "n_steps": 12,
        "asked": {"folder": "traces", "kineto": True, "execution_trace": True, "metrics": True, "nsys": True},
        "got": [
            {"what": "kineto", "file": f"kineto_trace_{rank}.json", "n_bytes": 81_920},
            {"what": "execution_trace", "file": f"torch_et_{rank}.json", "n_bytes": 40_960},
            {"what": "metrics", "file": f"metrics_{rank}.jsonl", "n_bytes": 512},
        ],
        "problems": [
            {
                "what": "nsys",
                "problem": "nsys is not on the PATH",
                "hint": "install Nsight Systems, or leave out --nsys",
            }
        ],
        **fields,
    }


def whole_manifest(*parts: dict[str, Any], exit_code: int | None = 0) -> dict[str, Any]:
    run = {"id": "run-1", "command": ["torchrun", "train.py"], "started_ns": START_NS, "exit_code": exit_code}
    return {"schema": "rankscope.manifest/1", "run": run, "ranks": list(parts)}


def host_lines(rank: int, n_samples: int) -> str:
    """A rank that sleeps in its own code, below a function of Python's library."""
    machine = {"n_cores": 8, "n_usable_cores": 4, "n_torch_threads": 32, "load": 3.5}
    header = {"schema": "rankscope.host/1", "rank": rank, "world_size": 2, "host": "gpu-1", "machine": machine}
    header["began_ns"] = 1_700_000_000_000_000_000
    frames = [["/usr/lib/python3.11/queue.py", 171, "get"], ["/home/ada/train.py", 40 + rank, "train"]]
    lines: list[dict[str, Any]] = [header, {"stack": [0, frames]}, {"wait": [0, "futex"]}]
    for number in range(n_samples):
        when = number * 50_000
        lines.append({"s": [when, number, 0, 1, "S", 0, 20, 3, 4]})
        lines.append({"p": [when, 100 + number, 200, 1 << 30, 9, 0, 5_000_000, 1 << 34, 7_000_000, 350]})
    lines.append({"t": [0, [["helper", 0, 7], ["gloo", -1, 9]]]})
    lines.append({"worker": [0, 4711, frames]})
    lines.append({"mark": ["gc", 1_700_000_000_000_000_000, 1_700_000_000_004_000_000, "generation 2"]})
    return "".join(json.dumps(line) + "\n" for line in lines)
