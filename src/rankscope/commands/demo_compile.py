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
            f"--fault {args.fault} has compile logs: it takes no --mesh, --step, --lost, --cut or --clock-skew-ms",
            "leave them out, or choose another fault: rankscope demo --list",
        )
    n_ranks = args.ranks or DEFAULT_RANKS
    if n_ranks < 1 or (args.rank or 0) >= n_ranks:
        raise UsageError(f"the job has no rank {args.rank}", f"choose a rank from 0 to {n_ranks - 1}, or more --ranks")
    return simulate_compiling(n_ranks, args.fault, args.rank, args.seed)


def names_fault(report: Report, simulation: CompileSimulation) -> bool:
    truth = simulation.truth
    if not truth.code:
        return not any(finding.severity != "info" for finding in report.findings)
    return any((finding.code, finding.ranks) == (truth.code, truth.ranks) for finding in report.findings)


def verdict_words(n_faults: int, agrees: bool) -> str:
    """The last words of a demonstration."""
    if not agrees:
        return "The verdict is wrong."
    return ("The verdict agrees.", "The verdict names it.", "The verdict names them all.")[min(n_faults, 2)]


def truth_lines(folder: str, simulation: CompileSimulation, agrees: bool) -> list[str]:
    import shlex

    return [
        "",
        f"Simulated: {simulation.n_ranks:,} ranks that compile their model; their logs are in {folder}.",
        f"{simulation.truth.note} {verdict_words(bool(simulation.truth.code), agrees)}",
        f"Next: rankscope compile {shlex.quote(folder)} -o report",
    ]
