"""Writes the execution traces of a simulated job beside its profiler traces."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from time import gmtime, strftime

from rankscope.errors import UsageError
from rankscope.simulate.execution.layouts import LATEST_SCHEMA, write_execution_trace
from rankscope.simulate.execution.nodes import ExecutionTrace
from rankscope.simulate.execution.observer import Observer, StepObserver
from rankscope.simulate.profiler import Numbering, ProfileSimulation
from rankscope.simulate.profiler.numbering import first_record_id
from rankscope.simulate.profiler.simulation import make_camera

_STEADY_CLOCK_MS = 100_000_000
"""Observers count from when the machine was started."""


@dataclass(frozen=True)
class PairOptions:
    schema: str = LATEST_SCHEMA
    gzip: bool = False
    layout: str = "wide"
    """Of the profiler traces."""
    with_record_ids: bool = True
    """False: profilers note no numbers of record functions, as before 2024."""
    with_correlation_as_external: bool = False
    """True: kernels and runtime calls have no link to their operators, as in 2023."""
    observed_steps: tuple[int, int] | None = None
    """The first and last step of the execution traces. None: those that the profiler of the rank recorded."""
    killed_ranks: tuple[int, ...] = ()
    """Their execution traces break off, and their profilers wrote nothing."""


_DEFAULT_OPTIONS = PairOptions()


def write_pairs(
    simulation: ProfileSimulation, folder: str | PathLike[str], options: PairOptions = _DEFAULT_OPTIONS
) -> list[Path]:
    """Write kineto_trace_<rank>.json and torch_et_<rank>.json for every rank that left traces."""
    folder = Path(folder)
    observed = {rank: options.observed_steps or simulation.truth.windows[rank] for rank in simulation.ranks}
    numbering = Numbering(observed, options.with_record_ids, options.with_correlation_as_external)
    noise = replace(simulation.noise, lost_ranks=(*simulation.noise.lost_ranks, *options.killed_ranks))
    profiled = replace(simulation, noise=noise)
    paths = profiled.write(folder, gzip=options.gzip, layout=options.layout, numbering=numbering)
    for rank, steps in observed.items():
        path = folder / f"torch_et_{rank}.json{'.gz' if options.gzip else ''}"
        is_killed = rank in options.killed_ranks
        paths.append(write_execution_trace(observe(simulation, rank, steps), path, options.schema, is_killed=is_killed))
    return paths


def observe(simulation: ProfileSimulation, rank: int, steps: tuple[int, int] | None = None) -> ExecutionTrace:
    """What an observer of the rank sees from the first to the last of the steps; None: those of its profiler."""
    first, last = steps or simulation.truth.windows[rank]
    runs = simulation.run.steps
    if not 0 <= first <= last < len(runs):
        raise UsageError(f"steps {first} to {last} cannot be observed", f"the job runs steps 0 to {len(runs) - 1}")
    camera = make_camera(simulation, rank)
    observer = Observer(simulation.mesh, camera)
    n_spans = len(runs[first][rank].program.spans)
    observer.start(first_record_id(camera.seed, rank, n_spans, first))
    for step in range(first, last + 1):
        StepObserver(observer, runs[step][rank], step).watch()
    start_ns = camera.clock.recorded_ns(runs[first][rank].clock[0])
    finish_ns = camera.clock.recorded_ns(runs[last][rank].clock[-1])
    return ExecutionTrace(
        pid=camera.pid,
        time=strftime("%Y-%m-%d %H:%M:%S", gmtime(start_ns // 10**9)),
        start_ms=start_ns // 10**6 % _STEADY_CLOCK_MS,
        finish_ms=finish_ns // 10**6 % _STEADY_CLOCK_MS,
        nodes=observer.finish(),
    )
