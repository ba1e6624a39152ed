"""The part of `rankscope demo` that is about torch.compile: the logs of a job, and the diagnosis beside the truth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankscope.errors import UsageError

if TYPE_CHECKING:
    from argparse import Namespace

    from rankscope.model.finding import Report
    from rankscope.simulate.compile_job import CompileSimulation

DEFAULT_RANKS = 4


def simulate_compiling_job(args: Namespace) -> CompileSimulation:
    from rankscope.simulate.compile_job import simulate_compiling

    if args.mesh or args.step is not None or args.cut or args.lost or args.clock_skew_ms:
        raise UsageError(
            f"--fault {args.fault} is about torch.compile: it has no --mesh, --step, --lost, --cut or --clock-skew-ms",
            "rankscope demo --list says which faults are about which traces",
        )
    n_ranks = args.ranks or DEFAULT_RANKS
    if n_ranks < 1 or (args.rank or 0) >= n_ranks:
        raise UsageError(f"there is no rank {args.rank} among {n_ranks}", "give a smaller --rank, or more --ranks")
    return simulate_compiling(n_ranks, args.fault, args.rank, args.seed)


def names_fault(report: Report, simulation: CompileSimulation) -> bool:
    truth = simulation.truth
    return any((finding.code, finding.ranks) == (truth.code, truth.ranks) for finding in report.findings)


def truth_lines(folder: str, simulation: CompileSimulation, agrees: bool) -> list[str]:
    import shlex

    return [
        "",
        f"Simulated: {simulation.n_ranks:,} ranks that compile their model; their logs are in {folder}.",
        f"{simulation.truth.note} {'The verdict names it.' if agrees else 'The verdict does not name it.'}",
        f"Next: rankscope compile {shlex.quote(folder)} -o report",
    ]
