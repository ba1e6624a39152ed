"""Nsight Systems: each rank's Python is replaced by `nsys profile ... python ...`, before it has done anything.

Who torchrun has made a rank gets its own report. A script that is not started by torchrun gets one, which holds the
processes that it starts as well.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from rankscope.collect.launching import folders
from rankscope.collect.part import Part
from rankscope.collect.settings import Settings, from_environment

PROGRAM = "nsys"
WRAPPED = "RANKSCOPE_NSYS"  # the report that the process is part of; those it starts are followed by nsys itself
REPORT = "nsys_{rank}"
SUFFIXES = (".nsys-rep", ".sqlite")
OPTIONS = ("--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "--export=sqlite")
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "torchx", "lightning", "fabric")


class Nsys(Part):
    """nsys writes its files when the rank has ended: the launcher notes them."""

    NAME: ClassVar[str] = "nsys"

    def start(self) -> None:
        if WRAPPED in os.environ:
            return
        if shutil.which(PROGRAM) is None:
            self.run.problem(self.NAME, "nsys is not on the PATH", "install Nsight Systems, or add its folder to PATH")
        else:
            hint = "start the job with rankscope record: nsys cannot attach to a running process"
            self.run.problem(self.NAME, "the rank does not run under nsys", hint)


def wrap_this_process() -> None:
    """Does not come back where the process becomes one that nsys runs."""
    settings = from_environment()
    rank = rank_to_wrap(os.environ, sys.orig_argv)
    nsys = shutil.which(PROGRAM)
    if settings is None or rank is None or nsys is None:
        return
    report = _free_report(settings, rank)
    os.environ[WRAPPED] = str(report)
    try:
        output = str(report).replace("%", "%%")  # nsys puts the host, the process and variables in after a single one
        os.execv(nsys, [nsys, "profile", "-o", output, *OPTIONS, sys.executable, *sys.orig_argv[1:]])
    except OSError:
        del os.environ[WRAPPED]


def rank_to_wrap(environment: Mapping[str, str], arguments: Sequence[str]) -> int | None:
    """The rank of a Python that is just starting; None for one that gets no report of its own."""
    if WRAPPED in environment:
        return None
    rank = environment.get("RANK", "")
    if rank.isdecimal() and "LOCAL_RANK" in environment:
        return int(rank)
    if len(arguments) < 2 or "-c" in arguments[:2] or main_module(arguments).startswith("torch."):
        return None
    is_launcher = any(os.path.basename(word) in _LAUNCHERS for word in arguments[1:3])
    return None if is_launcher else 0


def main_module(arguments: Sequence[str]) -> str:
    """What `python -m` was asked to run; it has no other name before it is imported."""
    words = iter(arguments[1:])
    for word in words:
        if not word.startswith("-") or word.startswith("--"):
            return ""
        letters, has_module, name = word[1:].partition("m")
        if has_module and not set(letters) & set("cWX"):
            return name or next(words, "")
        if word in ("-W", "-X"):
            next(words, "")
    return ""


def _free_report(settings: Settings, rank: int) -> Path:
    folder = Path(settings.folder)
    number = folders.restart_count()
    while True:
        attempt = folder / f"attempt_{number}" if number else folder
        report = attempt / REPORT.format(rank=rank)
        if not any(report.with_name(report.name + suffix).exists() for suffix in SUFFIXES):
            attempt.mkdir(parents=True, exist_ok=True)
            return report
        number += 1
