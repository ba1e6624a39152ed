"""Runs the steps of all ranks against each other.

The host of a rank runs its program without looking back, and only at the end of a step waits for its device. So a step
is dated in three moves: the hosts up to their waits, all devices together, the hosts after their waits.
"""

from __future__ import annotations

from array import array
from itertools import accumulate
from random import Random

from rankscope.simulate.engine import EPOCH_NS
from rankscope.simulate.profiler.device import Device, DeviceStep
from rankscope.simulate.profiler.mesh import Mesh
from rankscope.simulate.profiler.operators import TOKENS
from rankscope.simulate.profiler.program import COMPUTE_STREAM, StepProgram
from rankscope.simulate.profiler.run import Conditions, Jitter, JobRun, Meeting, RankRun
from rankscope.simulate.profiler.schedule import write_step

_WAKE_UP_NS = 3_000


def run_job(mesh: Mesh, conditions: Conditions, n_steps: int) -> JobRun:
    jitter = Jitter(conditions)
    programs = _programs(mesh, conditions)
    random = Random(f"{conditions.seed} start")
    ready_ns = [EPOCH_NS + random.randrange(200_000) for _ in programs]
    steps: list[tuple[RankRun, ...]] = []
    meetings: list[Meeting] = []
    for step in range(n_steps):
        runs = tuple(
            _run_host(program, conditions, jitter, rank, step, begin_ns)
            for rank, (program, begin_ns) in enumerate(zip(programs, ready_ns, strict=True))
        )
        devices = [
            Device(rank, run, _device_costs_ns(run.program, conditions, jitter, rank, step))
            for rank, run in enumerate(runs)
        ]
        together = DeviceStep(mesh, conditions, jitter, step)
        together.run(devices)
        meetings += together.meetings
        for run in runs:
            _wake_up(run)
        ready_ns = [run.clock[-1] for run in runs]
        steps.append(runs)
    return JobRun(tuple(steps), tuple(meetings))


def _programs(mesh: Mesh, conditions: Conditions) -> list[StepProgram]:
    written: dict[tuple[int, int], StepProgram] = {}
    programs = []
    for rank in range(mesh.spec.world_size):
        stage, tokens = mesh.spec.stage_of(rank), conditions.tokens.get(rank, TOKENS)
        if (stage, tokens) not in written:
            written[stage, tokens] = write_step(
                mesh.spec, stage, tokens=tokens, last_stage_factor=conditions.last_stage_factor
            )
        programs.append(written[stage, tokens])
    return programs


def _run_host(
    program: StepProgram, conditions: Conditions, jitter: Jitter, rank: int, step: int, begin_ns: int
) -> RankRun:
    factors = jitter.factors(len(program.costs_ns), "host", (rank, step))
    slowness = conditions.host_factor.get(rank, 1.0)
    costs = [int(cost * factor * slowness) for cost, factor in zip(program.costs_ns, factors, strict=True)]
    kind, pause_ns = conditions.pauses.get((rank, step), ("", 0))
    if kind:
        costs[program.pauses[kind]] += pause_ns
    unknown = bytes(array("q").itemsize * len(program.work))
    return RankRun(
        program, array("q", accumulate(costs, initial=begin_ns)), array("q", unknown), array("q", unknown), kind
    )


def _device_costs_ns(program: StepProgram, conditions: Conditions, jitter: Jitter, rank: int, step: int) -> list[int]:
    factors = jitter.factors(len(program.work), "device", (rank, step))
    slowness = conditions.kernel_factor.get(rank, 1.0)
    return [
        int(work.cost_ns * factor * (slowness if work.category == "kernel" else 1.0))
        for work, factor in zip(program.work, factors, strict=True)
    ]


def _wake_up(run: RankRun) -> None:
    """Lets the host continue after its wait for the compute stream."""
    woken = run.program.sync_tick + 1
    done_ns = max(end for end, work in zip(run.ends, run.program.work, strict=True) if work.stream == COMPUTE_STREAM)
    late_ns = done_ns + _WAKE_UP_NS - run.clock[woken]
    if late_ns > 0:
        for tick in range(woken, len(run.clock)):
            run.clock[tick] += late_ns
