"""All options of the collector. They go from the launcher to every process of the job in one variable."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

VARIABLE = "RANKSCOPE_COLLECT"
GIB = 1 << 30


@dataclass(frozen=True)
class Settings:
    """What to collect, where to put it, and how much of it."""

    folder: str
    run_id: str = ""  # the same for all ranks of a run: tells them from those of an earlier one in the same folder

    execution_trace: bool = True
    kineto: bool = True
    recorder: bool = True
    stacks: bool = True
    metrics: bool = True
    compile_log: bool = True
    output: bool = True  # what the job prints, kept by the launcher
    host: bool = True  # samples of the training thread in all steps, and its pauses
    desync: bool = False
    cpp_stacks: bool = False  # C++ frames with the stacks of stalls and requests
    nsys: bool = False
    logs: str = ""  # as TORCH_LOGS takes them
    debug_port: int = 0  # of torch's debug server; 0: not started

    skip_first: int = 0  # steps before all else, once
    wait: int = 5  # steps before the first one that is recorded: the first ones allocate and compile
    warmup: int = 1
    active: int = 3
    clean: int = 2  # steps of Kineto alone after those with the execution trace, which inflates their durations
    repeat: int = 1
    shapes: bool = True
    with_stack: bool = False
    memory: bool = False

    ring_size: int = 2000  # calls that the recorders keep
    stall_seconds: float = 300.0  # without a finished collective before the watchdog dumps
    gzip: bool = False
    max_bytes: int = 4 * GIB  # per rank; what would exceed it is not kept

    def wrong_schedule(self) -> str:
        """Why no step could be recorded with these settings; empty if one can."""
        if not (self.execution_trace or self.kineto):
            return ""
        for name in ("skip_first", "wait", "warmup", "active", "clean", "repeat"):
            if getattr(self, name) < 0:
                return f"{name} is {getattr(self, name)}: it cannot be negative"
        if self.active == 0:
            return "active is 0: no step would be recorded"
        if self.repeat == 0:
            return "repeat is 0: torch.profiler would record cycles until the job ends, and fill the disk"
        return ""

    def to_text(self) -> str:
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Settings:
        """Fields that this version does not know are left out: launcher and job may have different ones."""
        values: dict[str, Any] = json.loads(text)
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings | None:
    """What the launcher requested; None without a launcher or with unreadable text."""
    text = environment.get(VARIABLE, "")
    try:
        return Settings.from_text(text) if text else None
    except (ValueError, TypeError, AttributeError):
        return None
