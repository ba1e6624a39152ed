"""What a job must find in its environment to be collected. Nothing that its user has set is changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rankscope.collect import settings
from rankscope.collect.launching import nsys, startup
from rankscope.collect.launching.torch_logs import COMPILE_LOG_FOLDER
from rankscope.collect.settings import Settings

HOOK = Path(__file__).parents[1] / "hook"
RECORDER_PREFIX = "nccl_trace_rank_"

# Newer and older name of the same thing. The older one is set in the job, if its torch knows no other: a newer torch
# would complain about it on the job's stderr.
_RING_SIZE, _DUMP_PREFIX = startup.OLDER_NAMES.items()
_DUMP_ON_TIMEOUT = ("TORCH_NCCL_DUMP_ON_TIMEOUT",)
_COMPILE_LOG = ("TORCH_TRACE",)
# What a launcher above this one has left: the job is a new one.
_OF_OTHERS = (settings.VARIABLE, startup.RANK_PID, startup.TORCH_PID, nsys.WRAPPED)


class JobEnvironment(NamedTuple):
    variables: dict[str, str]
    notes: list[str]
    """What the user has already set, and what that means for the run."""


def job_environment(wanted: Settings, given: Mapping[str, str] = os.environ) -> JobEnvironment:
    variables = {name: value for name, value in given.items() if name not in _OF_OTHERS}
    notes: list[str] = []
    for names, value, meaning in _wishes(wanted):
        kept = [name for name in names if name in variables]
        if not kept:
            variables[names[0]] = value
        elif variables[kept[0]] != value:
            notes.append(f"{kept[0]} is already set to {variables[kept[0]]} and is not changed: {meaning}")
    variables[settings.VARIABLE] = wanted.to_text()
    variables["PYTHONPATH"] = _with_hook(given.get("PYTHONPATH", ""))
    return JobEnvironment(variables, notes)


def _wishes(wanted: Settings) -> list[tuple[tuple[str, ...], str, str]]:
    """Names of a variable, its value, and what it means when the user has chosen another."""
    folder = Path(wanted.folder)
    wishes: list[tuple[tuple[str, ...], str, str]] = []
    if wanted.recorder:
        wishes += [
            (_RING_SIZE, str(wanted.ring_size), "each rank keeps that many calls, or none if it is 0"),
            (_DUMP_PREFIX, str(folder / RECORDER_PREFIX), "torch writes its own dumps on a timeout there"),
            (_DUMP_ON_TIMEOUT, "1", "if it is 0, torch writes no dumps on a timeout"),
        ]
    if wanted.compile_log:
        wishes.append((_COMPILE_LOG, str(folder / COMPILE_LOG_FOLDER), "the compile log goes there"))
    return wishes


def _with_hook(python_path: str) -> str:
    others = [path for path in python_path.split(os.pathsep) if path and path != str(HOOK)]
    return os.pathsep.join([str(HOOK), *others])


def find_program(command: Sequence[str], environment: Mapping[str, str] = os.environ) -> str | None:
    """The file that would be run, if there is one."""
    return shutil.which(command[0], path=environment.get("PATH"))


def job_python(command: Sequence[str], environment: Mapping[str, str] = os.environ) -> str | None:
    """The Python that runs the job, where the command shows it: itself, or in the first line of a script."""
    program = find_program(command, environment)
    if program is None or _is_python(program):
        return program
    try:
        with open(program, "rb") as file:
            first = file.readline(512)
    except OSError:
        return None
    words = first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
    return find_program(words, environment) if words and _is_python(words[0]) else None


def _is_python(program: str) -> bool:
    return os.path.basename(program).startswith(("python", "pypy"))
