"""`rankscope demo`: a job that goes wrong in a known way, its dumps, and the diagnosis beside the truth."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from rankscope.commands import output
from rankscope.commands.interrupts import keeps
from rankscope.commands.loading import diagnose_trace, load_paths
from rankscope.commands.progress import Progress
from rankscope.errors import OutputError, UsageError, did_you_mean

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from rankscope.model.finding import Report
    from rankscope.simulate import Fault, JobSpec, Mesh, Noise, Simulation, Truth

DEFAULT_FOLDER = "rankscope-demo"
FILE_PREFIX = "nccl_trace_rank_"
HEALTHY = "none"
DEFAULT_RANKS = 64
# What the traces of a simulated job are.
_DUMPS, _PROFILES, _COMPILE_LOGS = (
    "Hangs (Flight Recorder dumps)",
    "Slow jobs (profiler traces)",
    "torch.compile (TORCH_TRACE logs)",
)
_TRACE_NAME = re.compile(
    r"(?:kineto_trace|torch_et)_\d+\.json\.gz|dedicated_log_torch_trace_rank_\d+_\w+\.log|job\.log"
)


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("-o", "--output", metavar="DIR", help=f"folder for the traces (default: {DEFAULT_FOLDER}, or -2, -3, ...)")
    add("--force", action="store_true", help="write into DIR even if it is not empty, and replace the traces in it")
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--ranks",
        type=_number,
        metavar="N",
        help="number of ranks (default: 64; with profiler traces 8, with torch.compile logs 4)",
    )
    size.add_argument("--mesh", metavar="DP,TP,PP", help="data, tensor and pipeline parallel sizes, for example 8,4,2")
    add(
        "--fault",
        metavar="KIND",
        nargs="?",
        default="op",
        help="what goes wrong, or several kinds: op,stuck; without KIND, list all (default: op)",
    )
    add("--rank", type=_number, metavar="R", help="the rank that goes wrong (default: random, from the seed)")
    add("--step", type=_number, metavar="S", help="the step in which it goes wrong (default: random, from the seed)")
    add("--steps", type=_number, metavar="N", default=8, help="number of steps (default: 8)")
    add("--seed", type=_number, metavar="N", default=0, help="seed of the simulation (default: 0)")
    add("--ring", type=_number, metavar="N", default=2000, help="calls that each rank's recorder keeps (default: 2000)")
    add("--lost", type=_number, metavar="N", default=0, help="other ranks that leave no dump (default: 0)")
    add("--cut", type=_number, metavar="N", default=0, help="other ranks whose dump is truncated (default: 0)")
    add("--clock-skew-ms", type=float, metavar="MS", default=0.0, help="clock skew between hosts (default: 0)")
    add("--execution-traces", action="store_true", help="with profiler traces: write execution traces as well")
    add("--logs", action="store_true", help="write what the job prints instead of traces: job.log")
    add("--list", action="store_true", help="list all kinds of faults and exit")
    output.add_output_options(parser)
    output.add_verbosity_options(parser)


def _number(text: str) -> int:
    from argparse import ArgumentTypeError

    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a number")
    return int(text)


def run(args: Namespace) -> int:
    if args.list or args.fault is None:
        return _list_faults(args)
    from rankscope.simulate import simulate

    if args.logs:
        return _run_logged_job(args)
    kinds = fault_kinds()
    traces = _traces_of(args.fault, kinds)
    if traces == _PROFILES:
        return _run_slow_job(args)
    if args.execution_traces:
        raise UsageError(
            f"--execution-traces needs a fault with profiler traces, and {args.fault} has none",
            f"choose one of: {', '.join(kinds[_PROFILES])}",
        )
    if traces == _COMPILE_LOGS:
        return _run_compiling_job(args)
    spec, faults, noise = _job(args)
    folder = _make_folder(args.output, args.force)
    with _keeps(folder), Progress() as progress:
        progress(0, 0, f"simulating {spec.mesh.world:,} ranks")
        simulation = simulate(spec, faults, noise)
        progress(0, 0, f"writing the dumps of {spec.mesh.world:,} ranks")
        simulation.write(folder, FILE_PREFIX)
    report = diagnose_trace(load_paths([folder]))
    agrees = is_right(report, *simulation.truths)
    if args.json:
        output.print_json(_as_record(folder, simulation, report, agrees))
    else:
        _show(report, args)
        output.print_lines(_truth_lines(folder, simulation, agrees))
    return 0 if agrees else 1


def _traces_of(faults: str, kinds: Mapping[str, Mapping[str, str]]) -> str:
    """What shows the fault; only faults of dumps can be several."""
    known = [kind for listed in kinds.values() for kind in listed]
    for fault in faults.split(","):
        if fault not in known:
            hint = f"choose one of: {', '.join(known)}"
            raise UsageError(f"unknown fault {fault!r}", f"{did_you_mean(fault, known)} {hint}".lstrip())
    several = [kind for kind in kinds[_DUMPS] if kind != HEALTHY]
    if "," in faults and not set(faults.split(",")).issubset(several):
        raise UsageError(f"the faults {faults} cannot be in one job", f"combine some of: {', '.join(several)}")
    return next(title for title, listed in kinds.items() if faults.partition(",")[0] in listed)


def _run_slow_job(args: Namespace) -> int:
    from dataclasses import asdict

    from rankscope.commands.demo_profile import names_culprit, simulate_slow_job, truth_lines, write_traces

    with Progress() as progress:
        progress(0, 0, "simulating the job")
        simulation = simulate_slow_job(args)
    folder = _make_folder(args.output, args.force)
    with _keeps(folder), Progress() as progress:
        progress(0, 0, f"writing the traces of {simulation.world_size:,} ranks")
        write_traces(simulation, folder, args.execution_traces)
    report = diagnose_trace(load_paths([folder]))
    agrees = names_culprit(report, simulation)
    if args.json:
        truth = {"cause": simulation.truth.cause, "ranks": simulation.truth.ranks}
        spec = asdict(simulation.spec)
        output.print_json({"folder": folder, "spec": spec, "truth": truth, "agrees": agrees, "report": report})
    else:
        _show(report, args)
        output.print_lines(truth_lines(folder, simulation, agrees, args.execution_traces))
    return 0 if agrees else 1


def _run_logged_job(args: Namespace) -> int:
    from dataclasses import asdict

    from rankscope.commands.demo_logs import logged_job, names_culprit, truth_lines, write_log

    job = logged_job(args)
    folder = _make_folder(args.output, args.force)
    write_log(job, folder)
    report = diagnose_trace(load_paths([folder]))
    agrees = names_culprit(report, args, job)
    if args.json:
        output.print_json({"folder": folder, "truth": asdict(job), "agrees": agrees, "report": report})
    else:
        _show(report, args)
        output.print_lines(truth_lines(job, folder, agrees))
    return 0 if agrees else 1


def _run_compiling_job(args: Namespace) -> int:
    from pathlib import Path

    from rankscope.commands.demo_compile import names_fault, simulate_compiling_job, truth_lines

    simulation = simulate_compiling_job(args)
    folder = _make_folder(args.output, args.force)
    simulation.write(Path(folder))
    report = diagnose_trace(load_paths([folder]))
    agrees = names_fault(report, simulation)
    if args.json:
        truth = simulation.truth._asdict()
        output.print_json({"folder": folder, "truth": truth, "agrees": agrees, "report": report})
    else:
        _show(report, args)
        output.print_lines(truth_lines(folder, simulation, agrees))
    return 0 if agrees else 1


def fault_kinds() -> dict[str, dict[str, str]]:
    """All kinds with what goes wrong, by the traces that the job leaves; the healthy twin comes last."""
    from rankscope.commands.demo_profile import HEALTHY_PROFILE
    from rankscope.simulate import FAULT_HELP
    from rankscope.simulate.compile_job import COMPILE_FAULT_HELP, HEALTHY_COMPILE
    from rankscope.simulate.profiler import PROFILE_FAULT_HELP

    healthy = "nothing goes wrong"
    return {
        _DUMPS: {**FAULT_HELP, HEALTHY: healthy},
        _PROFILES: {**PROFILE_FAULT_HELP, HEALTHY_PROFILE: healthy},
        _COMPILE_LOGS: {**COMPILE_FAULT_HELP, HEALTHY_COMPILE: healthy},
    }


def _list_faults(args: Namespace) -> int:
    kinds = fault_kinds()
    if args.json:
        output.print_json({kind: text for listed in kinds.values() for kind, text in listed.items()})
        return 0
    width = max(len(kind) for listed in kinds.values() for kind in listed)
    for title, listed in kinds.items():
        output.print_lines([f"{title}:", *(f"  {kind:{width}}  {text}" for kind, text in listed.items()), ""])
    output.print_lines(["Next: rankscope demo --fault skip"])
    return 0


# The job


def _job(args: Namespace) -> tuple[JobSpec, tuple[Fault, ...], Noise]:
    from rankscope.simulate import Fault, JobSpec, Noise

    if args.fault == HEALTHY and (args.rank is not None or args.step is not None):
        raise UsageError("without a fault, no rank or step goes wrong", "leave out --rank and --step")
    kinds = [] if args.fault == HEALTHY else args.fault.split(",")
    if len(kinds) > 1 and args.rank is not None:
        raise UsageError("--rank names one rank, and each fault has its own", "leave out --rank, or give one fault")
    faults = tuple(Fault(kind, args.rank, args.step) for kind in kinds)
    mesh = parse_mesh(args.mesh) if args.mesh else mesh_of(args.ranks or DEFAULT_RANKS, args.fault)
    noise = Noise(ring=args.ring, lost=args.lost, cut=args.cut, clock_skew_ms=args.clock_skew_ms)
    return JobSpec(mesh, steps=args.steps, seed=args.seed, experts="groups" in kinds), faults, noise


def parse_mesh(text: str) -> Mesh:
    from rankscope.simulate import Mesh

    parts = text.split(",")
    if len(parts) > 3 or not all(part.isdecimal() for part in parts):
        raise UsageError(f"{text!r} is not a mesh", "give up to three sizes: --mesh 8,4,2 means dp=8, tp=4, pp=2")
    return Mesh(*map(int, parts), *[1] * (3 - len(parts)))


def mesh_of(n_ranks: int, fault: str = "") -> Mesh:
    """A usual shape: tensor parallel within a host, two pipeline stages where data parallelism has ranks to spare."""
    from rankscope.simulate import Mesh

    tp = next(size for size in (4, 2, 1) if n_ranks % size == 0 and (size == 1 or n_ranks >= 4 * size))
    rest = n_ranks // tp
    # Only a pipeline sends and receives.
    pp = 2 if rest % 2 == 0 and (rest >= 8 or fault == "p2p") else 1
    return Mesh(dp=rest // pp, tp=tp, pp=pp)


# Where the dumps go


def _make_folder(asked: str | None, force: bool) -> str:
    folder = asked or _free_name(DEFAULT_FOLDER)
    try:
        if os.path.lexists(folder):
            _clear(folder, force)
        else:
            os.mkdir(folder)
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror}", "choose another folder with -o DIR") from error
    return folder


def _keeps(folder: str) -> AbstractContextManager[None]:
    def partly_written() -> str:
        n_files = len(os.listdir(folder))
        if not n_files and folder.startswith(DEFAULT_FOLDER):
            os.rmdir(folder)
        return f"{folder} has the files of some ranks ({n_files}); remove it" if n_files else ""

    return keeps(partly_written)


def _free_name(stem: str) -> str:
    name, number = stem, 1
    while os.path.lexists(name):
        number += 1
        name = f"{stem}-{number}"
    return name


def _clear(folder: str, force: bool) -> None:
    """Removes the traces of an earlier demonstration, and nothing else."""
    names = os.listdir(folder)
    if names and not force:
        raise OutputError(f"{folder} is not empty", "choose another folder, or add --force to replace the traces in it")
    for name in names:
        if name.removeprefix(FILE_PREFIX).isdecimal() or _TRACE_NAME.fullmatch(name):
            os.unlink(os.path.join(folder, name))


# The verdict beside the truth


def is_right(report: Report, truth: Truth, *others: Truth) -> bool:
    """True when the first finding names the fault and its ranks; with several faults, when the errors name them all.

    For a healthy job, true when nothing is called an error.
    """
    if truth.rule is None:
        return not report.count("error") and not any(finding.code[0] in "HS" for finding in report.findings)
    if others:
        blamed = {
            (finding.rule, rank) for finding in report.findings for rank in finding.ranks if finding.code[0] == "H"
        }
        return blamed == {(each.rule, rank) for each in (truth, *others) for rank in each.ranks}
    if not report.findings or report.findings[0].rule != truth.rule:
        return False
    # A stall has no culprit among the ranks: the finding may name them all or none.
    return truth.rule == "collective-stalled" or set(report.findings[0].ranks) == set(truth.ranks)


def _show(report: Report, args: Namespace) -> None:
    from rankscope.render import load_renderer

    output.print_lines(load_renderer("txt")(report, output.terminal_options(args)))


def _truth_lines(folder: str, simulation: Simulation, agrees: bool) -> list[str]:
    import shlex

    from rankscope.commands.demo_compile import verdict_words

    mesh = simulation.spec.mesh
    n_faults = sum(truth.rule is not None for truth in simulation.truths)
    return [
        "",
        f"Simulated: {mesh.world:,} ranks (dp={mesh.dp}, tp={mesh.tp}, pp={mesh.pp}); their dumps are in {folder}.",
        f"{' '.join(truth.note for truth in simulation.truths)} {verdict_words(n_faults, agrees)}",
        f"Next: rankscope report {shlex.quote(folder)} -o report.html",
    ]


def _as_record(folder: str, simulation: Simulation, report: Report, agrees: bool) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "folder": folder,
        "mesh": asdict(simulation.spec.mesh),
        "truth": asdict(simulation.truth),
        "further_truths": [asdict(truth) for truth in simulation.truths[1:]],
        "agrees": agrees,
        "report": report,
    }
