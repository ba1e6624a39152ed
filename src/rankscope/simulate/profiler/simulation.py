"""A finished simulation: the traces of its ranks, as files or as plain dicts, and the truth about it."""

from __future__ import annotations

import gzip as gzip_format
import json
from dataclasses import dataclass, field
from math import ceil
from os import PathLike
from pathlib import Path
from random import Random
from typing import Any

from rankscope.errors import UsageError
from rankscope.simulate.profiler.document import RowNames, closing_events, make_head
from rankscope.simulate.profiler.engine import run_job
from rankscope.simulate.profiler.events import Camera, StepEvents
from rankscope.simulate.profiler.fault import Struck, strike
from rankscope.simulate.profiler.layout import Layout, layout_named
from rankscope.simulate.profiler.measure import describe_meetings, measure_steps
from rankscope.simulate.profiler.mesh import Mesh, make_mesh
from rankscope.simulate.profiler.numbering import Numbering
from rankscope.simulate.profiler.page import StepPage
from rankscope.simulate.profiler.program import StepProgram
from rankscope.simulate.profiler.run import Conditions, JobRun
from rankscope.simulate.profiler.spec import FIRST_STEP, ProfileFault, ProfileNoise, ProfileSpec
from rankscope.simulate.profiler.truth import HostClock, ProfileTruth

_DEFAULT_NOISE = ProfileNoise()
_DEFAULT_NUMBERING = Numbering()
_QUARTER_NS = 7_889_238_000_000_000
"""Kineto counts its times from the start of a quarter of a year of this length."""
_FIRST_PID = 41_000
_WARM_UP_NS = 2_000_000
_COOL_DOWN_NS = 500_000


@dataclass(frozen=True)
class ProfileSimulation:
    spec: ProfileSpec
    fault: ProfileFault | None
    noise: ProfileNoise
    truth: ProfileTruth
    mesh: Mesh = field(repr=False)
    run: JobRun = field(repr=False)

    @property
    def world_size(self) -> int:
        return self.spec.world_size

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those that left a trace."""
        return tuple(rank for rank in range(self.world_size) if rank not in self.noise.lost_ranks)

    def host_of(self, rank: int) -> str:
        return _host_name(self.spec.host_of(rank))

    def text(self, rank: int, layout: str = "classic", numbering: Numbering = _DEFAULT_NUMBERING) -> str:
        """The trace of a rank, word for word as its profiler wrote it."""
        return _TraceText(self, layout_named(layout), numbering).of(rank)

    def trace(self, rank: int) -> dict[str, Any]:
        trace: dict[str, Any] = json.loads(self.text(rank, "minified"))
        return trace

    def write(
        self,
        folder: str | PathLike[str],
        *,
        gzip: bool = True,
        names: str = "kineto_trace_{rank}.json",
        layout: str = "classic",
        numbering: Numbering = _DEFAULT_NUMBERING,
    ) -> list[Path]:
        """Write one file per rank that left a trace, and return their paths in the order of the ranks.

        The names may use {rank} and {host}; compressed files get .gz after them.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        texts = _TraceText(self, layout_named(layout), numbering)
        paths = []
        for rank in self.ranks:
            content = texts.of(rank).encode()
            if gzip:
                # Without a time stamp, so that the same seed gives the same bytes.
                content = gzip_format.compress(content, compresslevel=1, mtime=0)
            if rank in self.noise.cut_ranks:
                content = content[: int(len(content) * Random(f"{self.spec.seed} cut {rank}").uniform(0.3, 0.9))]
            path = folder / (names.format(rank=rank, host=self.host_of(rank)) + (".gz" if gzip else ""))
            path.write_bytes(content)
            paths.append(path)
        return paths


class _TraceText:
    """Writes the traces of a simulation in one layout."""

    def __init__(self, simulation: ProfileSimulation, layout: Layout, numbering: Numbering) -> None:
        self.simulation = simulation
        self.layout = layout
        self.numbering = numbering
        self.pages: dict[int, StepPage] = {}

    def of(self, rank: int) -> str:
        simulation = self.simulation
        mesh, run, layout = simulation.mesh, simulation.run, self.layout
        camera = make_camera(simulation, rank, self.numbering)
        first, last = simulation.truth.windows[rank]
        start_ns = camera.relative_ns(run.steps[first][rank].clock[0] - _WARM_UP_NS)
        end_ns = camera.relative_ns(run.steps[last][rank].clock[-1] + _COOL_DOWN_NS)
        steps = [
            StepEvents(mesh, camera, self._page(run.steps[step][rank].program), run.steps[step][rank], step)
            for step in range(first, last + 1)
        ]
        streams = sorted({work.stream for work in steps[0].program.work})
        rows = list(RowNames(layout, start_ns).all(mesh, camera, streams))
        events = [
            *(event for step in steps for event in step.on_host()),
            *(event for step in steps for event in step.on_device()),
        ]
        events = rows + events if layout.metadata_first else events + rows
        events += closing_events(layout, start_ns, end_ns)
        head = make_head(mesh, camera, simulation.host_of(rank))
        return layout.document(head, events, {"traceName": f"kineto_trace_{rank}.json"})

    def _page(self, program: StepProgram) -> StepPage:
        # The run keeps its programs alive, so that no other one can get the same id.
        if id(program) not in self.pages:
            with_metadata = self.simulation.spec.with_metadata
            self.pages[id(program)] = StepPage(program, self.layout, with_metadata, self.numbering.record_id_text)
        return self.pages[id(program)]


def make_camera(simulation: ProfileSimulation, rank: int, numbering: Numbering = _DEFAULT_NUMBERING) -> Camera:
    spec, noise = simulation.spec, simulation.noise
    clock = simulation.truth.clocks[simulation.host_of(rank)]
    base_ns = clock.recorded_ns(simulation.run.start_ns) // _QUARTER_NS * _QUARTER_NS
    if noise.mixed_bases and rank % 2:
        base_ns -= _QUARTER_NS
    wanted = {"steps": spec.with_steps, "stack": spec.with_stack, "sync": spec.with_sync}
    return Camera(
        rank=rank,
        pid=_FIRST_PID + 1_000 * (rank % spec.ranks_per_host),
        device=rank % spec.ranks_per_host,
        clock=clock,
        base_ns=base_ns,
        shown=frozenset(name for name, is_wanted in wanted.items() if is_wanted),
        dropped=noise.drop_collectives,
        seed=spec.seed,
        numbering=numbering,
    )


def simulate_profile(
    spec: ProfileSpec, fault: ProfileFault | None = None, noise: ProfileNoise = _DEFAULT_NOISE
) -> ProfileSimulation:
    """Run the job, with the fault if one is given, and record it through the noise; equal arguments, equal traces."""
    for rank in (*noise.lost_ranks, *noise.cut_ranks):
        if not 0 <= rank < spec.world_size:
            raise UsageError(f"the job has no rank {rank}", f"choose ranks from 0 to {spec.world_size - 1}")
    mesh = make_mesh(spec)
    n_steps = FIRST_STEP + spec.n_steps + noise.window_offset
    healthy = Conditions(spec.seed, noise.jitter)
    struck = Struck(healthy, (), (), ()) if fault is None else strike(mesh, healthy, fault, noise)
    run = run_job(mesh, struck.conditions, n_steps)
    healthy_run = run if fault is None else run_job(mesh, healthy, n_steps)
    truth = ProfileTruth(
        cause=None if fault is None else fault.kind,
        ranks=struck.ranks,
        groups=struck.groups,
        steps=struck.steps,
        step_ns=run.step_ns(),
        healthy_step_ns=healthy_run.step_ns(),
        clocks=_set_clocks(spec, noise, run),
        windows=_choose_windows(spec, noise),
        rank_steps=measure_steps(run),
        collectives=describe_meetings(run, mesh),
    )
    return ProfileSimulation(spec, fault, noise, truth, mesh, run)


def _host_name(host: int) -> str:
    return f"node{host:02d}"


def _set_clocks(spec: ProfileSpec, noise: ProfileNoise, run: JobRun) -> dict[str, HostClock]:
    random = Random(f"{spec.seed} clocks")
    middle_ns = (run.start_ns + run.end_ns) // 2
    clocks = {}
    for host in range(ceil(spec.world_size / spec.ranks_per_host)):
        offset_ns = int(random.gauss(0, 1) * noise.clock_skew_ms * 1e6)
        clocks[_host_name(host)] = HostClock(offset_ns, random.gauss(0, 1) * noise.drift_ppm, middle_ns)
    return clocks


def _choose_windows(spec: ProfileSpec, noise: ProfileNoise) -> dict[int, tuple[int, int]]:
    random = Random(f"{spec.seed} windows")
    firsts = {rank: FIRST_STEP + random.randint(0, noise.window_offset) for rank in range(spec.world_size)}
    return {rank: (first, first + spec.n_steps - 1) for rank, first in firsts.items()}
