"""Captures of three ranks of which the last joins every collective 30 ms late, with what the host sampler saw of it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

MS, US = 1_000_000, 1_000
START = 1_795_000_000_000_000_000
N_RANKS, N_STEPS, LATE = 3, 40, 2
PERIOD, PAUSE, WORK = 36 * MS, 30 * MS, 5 * MS
SAMPLE = 4 * MS + 300_000  # no divisor of the period
FILE = "/job/train.py"
FORWARD, BACKWARD, PLANTED, OTHER = 50, 60, 70, 80  # lines


class Scene(NamedTuple):
    """What the late rank does in its pause."""

    line: int = PLANTED
    state: str = "R"
    waits_in: str = ""
    mark: str = ""
    late_ns: int = 0
    cpu_ns: int = 0
    delayed_ns: int = 0
    others_ns: int = 0
    library: str = ""  # whose code the line calls
    samples: int = 0  # per step, of the late rank; the others have 8
    n_lines: int = 0  # of a function over which the pause is spread
    dtype: str = ""  # of the late rank's operators in the profiler trace; the others have float


SCENES = {
    "X602": Scene(mark="gc"),
    "X603": Scene(mark="loading"),
    "X604": Scene(mark="saving", state="D", library="/lib/python3.11/site-packages/torch/serialization.py"),
    "X605": Scene(state="S", waits_in="write pipe:[7]"),
    "X606": Scene(state="S", waits_in="futex", library="/usr/lib/python3.11/queue.py"),
    "X607": Scene(late_ns=8 * MS, others_ns=SAMPLE),
    "X608": Scene(delayed_ns=SAMPLE),
    "X609": Scene(line=FORWARD, cpu_ns=SAMPLE),
    "X610": Scene(cpu_ns=SAMPLE),
    "X611": Scene(mark="optimizer"),
    "X612": Scene(state="S", waits_in="clock_nanosleep"),
    "X613": Scene(mark="compile"),
    "X614": Scene(line=FORWARD, cpu_ns=SAMPLE, samples=40),
    "X615": Scene(line=FORWARD, cpu_ns=SAMPLE, dtype="double"),
    "X616": Scene(mark="evaluation", cpu_ns=SAMPLE),
}


def writer(code: str) -> Callable[[Path], object]:
    return lambda folder: write(folder, SCENES[code])


def write(folder: Path, scene: Scene, late: Callable[[int], int | None] = lambda step: LATE) -> None:
    """`late` says which rank is late in a step, if any."""
    for rank in range(N_RANKS):
        joined = [_joined(rank, step, late) for step in range(N_STEPS)]
        (folder / f"nccl_trace_rank_{rank}").write_bytes(_dump(rank, joined))
        lines = _host_lines(rank, scene, [step for step in range(N_STEPS) if late(step) == rank])
        _write_lines(folder / f"host_{rank}.jsonl", lines)
        if scene.samples:
            _write_lines(folder / f"metrics_{rank}.jsonl", _metric_lines(rank, scene.samples if rank == LATE else 8))
        if scene.dtype:
            profile = _profile(rank, scene.dtype if rank == LATE else "float")
            (folder / f"kineto_trace_{rank}.json").write_text(json.dumps(profile))


def _write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _metric_lines(rank: int, n_samples: int) -> Iterator[dict[str, Any]]:
    yield {"schema": "rankscope.metrics/1", "rank": rank, "world_size": N_RANKS}
    seconds = PERIOD / 1e9
    for step in range(1, N_STEPS + 1):
        for name, value in (("step_time_s", seconds), ("samples_per_s", n_samples / seconds)):
            yield {"time_ns": START + step * PERIOD, "step": step, "name": name, "value": value}


def _profile(rank: int, dtype: str) -> dict[str, Any]:
    """One step with one product of matrices."""
    at = {"pid": 100 + rank, "tid": 100 + rank}
    names = (("user_annotation", "ProfilerStep#1", 0, PERIOD), ("cpu_op", "aten::mm", WORK, 10 * MS))
    arguments = {"Input Dims": [[8, 8], [8, 8]], "Input type": [dtype, dtype]}
    events = [
        {"ph": "X", "cat": kind, "name": name, **at, "ts": start / US, "dur": length / US, "args": arguments}
        for kind, name, start, length in names
    ]
    group = {"pg_name": "0", "pg_desc": "default_pg", "ranks": list(range(N_RANKS))}
    info = {"backend": "gloo", "rank": rank, "world_size": N_RANKS, "pg_config": [group]}
    return {"schemaVersion": 1, "distributedInfo": info, "baseTimeNanoseconds": START, "traceEvents": events}


def _joined(rank: int, step: int, late: Callable[[int], int | None]) -> int:
    begin = START + step * PERIOD
    return begin + (PERIOD if late(step) == rank else WORK + rank * 1000)


def _dump(rank: int, joined: list[int]) -> bytes:
    frames = [{"name": "train", "filename": FILE, "line": BACKWARD}]
    entries = [
        {
            "frames": frames,
            "record_id": number,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": number + 1,
            "p2p_seq_id": 0,
            "op_id": number + 1,
            "profiling_name": "gloo:all_reduce",
            "time_created_ns": created,
            "input_sizes": [[1024]],
            "input_dtypes": ["Float"],
            "output_sizes": [[1024]],
            "output_dtypes": ["Float"],
            "state": "completed",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None,
            "retired": True,
            "timeout_ms": 600_000,
            "is_p2p": False,
        }
        for number, created in enumerate(joined)
    ]
    group = {"name": "0", "desc": "default_pg", "ranks": str(list(range(N_RANKS)))}
    about = {"last_enqueued_collective": N_STEPS, "last_started_collective": -1, "last_completed_collective": N_STEPS}
    return pickle.dumps({"version": "2.10", "pg_config": {"0": group}, "pg_status": {"0": about}, "entries": entries})


def _host_lines(rank: int, scene: Scene, late_steps: list[int]) -> Iterator[dict[str, Any]]:
    machine = {"n_cores": 4, "n_usable_cores": 4, "n_torch_threads": 8}
    began = START - PERIOD
    yield {"schema": "rankscope.host/1", "rank": rank, "began_ns": began, "machine": machine}
    lines = {0: FORWARD, 1: BACKWARD, 2: scene.line, 3: OTHER}
    for number, line in lines.items():
        library = [[scene.library, 1, "call"]] if number == 2 and scene.library else []
        yield {"stack": [number, [*library, [FILE, line, "train"]]]}
    for number in range(scene.n_lines):
        yield {"stack": [10 + number, [[FILE, 200 + number, "statistics"], [FILE, PLANTED, "train"]]]}
    for number, wait in enumerate(("futex", scene.waits_in)):
        yield {"wait": [number, wait]}
    for time in range(began, START + N_STEPS * PERIOD, SAMPLE):
        step, phase = divmod(time - START, PERIOD)
        when = (time - began) // US
        if step in late_steps and phase < PAUSE:
            own = [scene.late_ns // US, scene.state, 1 if scene.waits_in else -1]
            spent = [scene.cpu_ns // US, scene.delayed_ns // US, scene.others_ns // US]
            stack = 10 + time // SAMPLE % scene.n_lines if scene.n_lines else 2
            yield {"s": [when, step + 1, stack, *own, *spent]}
            yield {"t": [when, [["helper", 3, scene.others_ns // US]]]}
        elif phase < WORK or step in late_steps:
            yield {"s": [when, step + 1, 0, 0, "R", -1, SAMPLE // US, 0, 0]}
        else:
            yield {"s": [when, step + 1, 1, 0, "S", 0, 0, 0, 0]}
    for step in late_steps if scene.mark else ():
        begin = START + step * PERIOD
        yield {"mark": [scene.mark, begin, begin + PAUSE, ""]}
