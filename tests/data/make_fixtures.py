"""Writes the small files in tests/data/flight_recorder and tests/data/kineto: `python tests/data/make_fixtures.py`.

They hold what the reader meets in the field: each layout of the format, both encodings, compression, batches of
transfers, durations; the layouts of two generations of profilers, and one without line breaks. Equal code gives
equal bytes.
"""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

from rankscope.simulate import Fault, JobSpec, Mesh, Noise, simulate
from rankscope.simulate.profiler import ProfileSpec, simulate_profile
from rankscope.simulate.recorder import to_json
from rankscope.simulate.sites import EXAMPLE

DATA = Path(__file__).parent
# Enough for every kind of call that one step makes, transfers in batches among them.
RING = 24


def make_dump(rank: int, version: str, *, timing: bool = False) -> dict[str, Any]:
    """The dump of one rank of a small pipeline-parallel job that is stuck in its third step."""
    spec = JobSpec(Mesh(dp=2, tp=1, pp=2), steps=3)
    simulation = simulate(spec, Fault("stuck", rank=3, step=2), Noise(version=version, ring=RING, timing=timing))
    return _without_local_paths(dict(simulation.dumps())[rank])


def _without_local_paths(dump: dict[str, Any]) -> dict[str, Any]:
    """The example program lies where the package is installed; a fixture must not tell where that was."""
    moved: dict[int, dict[str, Any]] = {}
    for entry in dump["entries"]:
        frames = entry["frames"]
        for frame in frames:
            if id(frame) not in moved:
                moved[id(frame)] = {**frame, "filename": frame["filename"].replace(str(EXAMPLE), "/job")}
        entry["frames"] = [moved[id(frame)] for frame in frames]  # still shared, as torch shares them
    return dump


def make_traces() -> dict[str, bytes]:
    """Profiler traces of three ranks of a small job, one step each."""
    spec = ProfileSpec(data_parallel=3, ranks_per_host=1, n_steps=1, n_layers=1, n_microbatches=1)
    simulation = simulate_profile(spec)
    return {
        "kineto_trace_0.json.gz": gzip.compress(simulation.text(0, layout="classic").encode(), mtime=0),
        "rank-1.pt.trace.json.gz": gzip.compress(simulation.text(1, layout="wide").encode(), mtime=0),
        "kineto_trace_2.json": simulation.text(2, layout="minified").encode(),
    }


def make_dumps() -> dict[str, bytes]:
    return {
        "nccl_trace_rank_0": pickle.dumps(make_dump(0, "2.10"), protocol=2),
        "comm_lib_trace_rank_node02_1": pickle.dumps(make_dump(1, "2.10", timing=True), protocol=2),
        "_dump_2.gz": gzip.compress(pickle.dumps(make_dump(2, "2.7"), protocol=2), mtime=0),
        "nccl_trace_rank_3": pickle.dumps(make_dump(3, "2.4"), protocol=2),
        "nccl_trace_rank_4": pickle.dumps(make_dump(0, "2.1"), protocol=2),
        "nccl_trace_rank_5": pickle.dumps(make_dump(1, "1.0"), protocol=2),
        "rank_6.json": json.dumps(to_json(make_dump(2, "2.10", timing=True))).encode(),
    }


def main() -> None:
    for folder, contents in {"flight_recorder": make_dumps(), "kineto": make_traces()}.items():
        (DATA / folder).mkdir(exist_ok=True)
        for name, content in contents.items():
            (DATA / folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
