"""The part of `rankscope demo` that is about slow jobs: their profiler traces, and the diagnosis beside the truth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankscope.commands.demo_compile import verdict_words
from rankscope.errors import UsageError

if TYPE_CHECKING:
    from argparse import Namespace

    from rankscope.model.finding import Report
    from rankscope.simulate.profiler import ProfileSimulation

DEFAULT_RANKS = 8
FILE_STEM = "kineto_trace_"
HEALTHY_PROFILE = "healthy-profile"
_RANKS_PER_HOST = 4
# These show only where stages of a pipeline, or groups on several hosts, can be compared with each other.
_NEEDS_PIPELINE = ("stage-imbalance", "slow-link")


def simulate_slow_job(args: Namespace) -> ProfileSimulation:
    from rankscope.simulate.profiler import ProfileFault, ProfileNoise, ProfileSpec, simulate_profile

    if args.mesh or args.step is not None or args.cut or args.lost:
        raise UsageError(
            f"--fault {args.fault} has profiler traces: it takes no --mesh, --step, --lost or --cut",
            "leave them out, or choose another fault: rankscope demo --list",
        )
    n_ranks = args.ranks or DEFAULT_RANKS
    stages = 4 if args.fault in _NEEDS_PIPELINE and n_ranks % 4 == 0 else 1
    spec = ProfileSpec(
        data_parallel=n_ranks // stages,
        stages=stages,
        ranks_per_host=_RANKS_PER_HOST,
        n_steps=args.steps,
        seed=args.seed,
    )
    noise = ProfileNoise(clock_skew_ms=args.clock_skew_ms)
    fault = None if args.fault == HEALTHY_PROFILE else ProfileFault(args.fault, args.rank)
    return simulate_profile(spec, fault, noise)


def write_traces(simulation: ProfileSimulation, folder: str, with_execution_traces: bool) -> None:
    if not with_execution_traces:
        simulation.write(folder, names=FILE_STEM + "{rank}.json")
        return
    from pathlib import Path

    from rankscope.simulate.execution import PairOptions, write_pairs

    write_pairs(simulation, Path(folder), PairOptions(gzip=True))


def names_culprit(report: Report, simulation: ProfileSimulation) -> bool:
    """True when the first finding names a rank that is to blame, or its stage or host; of a healthy job, when it has
    nothing worse than notes."""
    if simulation.truth.cause is None:
        return not any(finding.severity != "info" for finding in report.findings)
    culprits = set(simulation.truth.ranks)
    return bool(report.findings) and bool(culprits.intersection(report.findings[0].ranks))


def truth_lines(folder: str, simulation: ProfileSimulation, agrees: bool, is_linkable: bool) -> list[str]:
    import shlex

    from rankscope.model.finding import format_duration, ranks_phrase

    truth, spec = simulation.truth, simulation.spec
    longest, healthy = (format_duration(max(times.values())) for times in (truth.step_ns, truth.healthy_step_ns))
    if truth.cause is None:
        what = f"Nothing is wrong with this job: its longest step takes {longest}."
    else:
        what = f"The fault is {truth.cause} on {ranks_phrase(truth.ranks)}: the longest step takes {longest}, "
        what += f"{healthy} without the fault."
    return [
        "",
        f"Simulated: {simulation.world_size:,} ranks (dp={spec.data_parallel}, pp={spec.stages}); "
        f"their traces are in {folder}.",
        f"{what} {verdict_words(truth.cause is not None, agrees)}",
        f"Next: rankscope {'link' if is_linkable else 'metrics'} {shlex.quote(folder)}",
    ]
