"""Loads and diagnoses one hostile input, and says what went wrong, if anything did."""

from __future__ import annotations

import contextlib
import io
import os
import random
import resource
import shutil
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import rankscope
from fuzz.mutation import mutated
from rankscope.errors import RankscopeError
from rankscope.model.tables import Trace
from rankscope.render import Options
from rankscope.render.terminal import render

DATA = Path(__file__).parents[1] / "data"
MOST_S = 5.0  # of CPU, for a file under 1 MB
MOST_BYTES = 1 << 30  # above the size of the data
MEMORY = 4 << 30
# Whole files beside the changed one: there is always something to judge, and execution traces are linked to profiles.
STEADY = {"flight_recorder/nccl_trace_rank_0": "nccl_trace_rank_1"}
PARTNERS = {
    "execution_trace": {"kineto/kineto_trace_0.json.gz": "kineto_trace_0.json.gz"},
    "kineto": {"execution_trace/torch_et_0.json": "torch_et_0.json"},
}


class Failure(NamedTuple):
    format: str
    seed: int
    sample: str
    what: str


def formats() -> list[str]:
    return sorted(folder.name for folder in DATA.iterdir() if folder.is_dir() and folder.name != "__pycache__")


def samples(name: str) -> list[Path]:
    return sorted(path for path in (DATA / name).glob("*") if path.is_file() and path.stat().st_size < 1 << 20)


def make_input(name: str, seed: int, folder: Path) -> tuple[Path, Path]:
    """The sample, and the changed file in a folder of its own."""
    chance = random.Random(f"{name} {seed}")
    sample = chance.choice(samples(name))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path, beside in (STEADY | PARTNERS.get(name, {})).items():
        shutil.copy(DATA / path, folder / beside)
    for _ in range(20):
        file_name, content = mutated(chance, sample.name, sample.read_bytes())
        with contextlib.suppress(OSError, ValueError):  # a name that this system does not take
            (folder / file_name).write_bytes(content)
            return sample, folder / file_name
    raise AssertionError("no name fits")


def problem_of(name: str, seed: int, folder: Path) -> Failure | None:
    sample, file = make_input(name, seed, folder)
    before, began = _peak_bytes(), time.process_time()
    what = ""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            trace = rankscope.load(folder)
            report = rankscope.diagnose(trace)
        for _ in render(report, Options()):
            pass
        if not _is_told(trace, file):
            what = "the file is nowhere told"
    except RankscopeError as error:
        if not error.message:
            what = "an error without words"
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {str(error)[:100]} ({os.path.basename(last.filename)}:{last.lineno})"
    spent, grown = time.process_time() - began, _peak_bytes() - before
    if spent > MOST_S:
        what = what or f"took {spent:.0f} s"
    if grown > MOST_BYTES:
        what = what or f"took {grown >> 20} MB"
    return Failure(name, seed, sample.name, what) if what else None


def _is_told(trace: Trace, file: Path) -> bool:
    return any(f"/{file.name}" in path for path in trace.table("files").text("path").tolist())


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def all_problems(name: str, seeds: range, folder: Path) -> Iterator[Failure]:
    for seed in seeds:
        failure = problem_of(name, seed, folder)
        if failure is not None:
            yield failure
