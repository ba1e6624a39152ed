"""Writes what the collector adds to torch's own traces: `python tests/data/make_collected.py`.

Stacks of threads as faulthandler and py-spy print them, metrics with a loss that is no number, and both forms of the
manifest. They go into tests/data/thread_stacks, metrics, manifest and
host_samples. Equal code gives equal bytes.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from read.collected_files import (
    LOADING,
    SPIED,
    STALL,
    TRAINING,
    host_lines,
    manifest_part,
    metric_lines,
    stack_section,
    whole_manifest,
)

DATA = Path(__file__).parent


def make_stacks() -> dict[str, bytes]:
    waiting = stack_section(0, 0, STALL, TRAINING) + stack_section(0, 30, "SIGTERM", TRAINING)
    return {
        "stacks_0.txt": waiting.encode(),
        "stacks_1.txt.gz": gzip.compress(stack_section(1, 1, STALL, LOADING).encode(), mtime=0),
        "pyspy_2.txt": SPIED.encode(),
    }


def make_metrics() -> dict[str, bytes]:
    return {
        "metrics_0.jsonl": metric_lines(0, 3).encode(),
        "metrics_1.jsonl.gz": gzip.compress(metric_lines(1, 2).encode(), mtime=0),
    }


def make_host_samples() -> dict[str, bytes]:
    return {
        "host_0.jsonl": host_lines(0, 3).encode(),
        "host_1.jsonl.gz": gzip.compress(host_lines(1, 2).encode(), mtime=0),
    }


def make_manifests() -> dict[str, bytes]:
    return {
        "manifest_0.json": json.dumps(whole_manifest(manifest_part(0), exit_code=-9), indent=1).encode(),
        "rank_1.json": json.dumps(manifest_part(1, ended_ns=None), indent=1).encode(),
    }


def main() -> None:
    made = {
        "thread_stacks": make_stacks(),
        "metrics": make_metrics(),
        "manifest": make_manifests(),
        "host_samples": make_host_samples(),
    }
    for folder, contents in made.items():
        (DATA / folder).mkdir(exist_ok=True)
        for name, content in contents.items():
            (DATA / folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
