"""`rankscope demo`: a job that goes wrong in a known way, its dumps, and the diagnosis beside the truth."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from rankscope.commands import output
from rankscope.commands.loading import load_paths
from rankscope.errors import OutputError, UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from rankscope.model.finding import Report
    from rankscope.simulate import Fault, JobSpec, Mesh, Noise, Simulation, Truth

HELP = "simulate a job that hangs, crawls or recompiles, write its traces and diagnose them"
DEFAULT_FOLDER = "rankscope-demo"
FILE_PREFIX = "nccl_trace_rank_"
HEALTHY = "none"
DEFAULT_RANKS = 64
_TRACE_NAME = re.compile(r"(?:kineto_trace|torch_et)_\d+\.json\.gz|dedicated_log_torch_trace_rank_\d+_\w+\.log")
# From here on one waits long enough to wonder.
_MANY_RANKS = 256


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("-o", "--output", metavar="DIR", help=f"folder for the dumps (default: a new one, {DEFAULT_FOLDER})")
    add("--force", action="store_true", help="write into DIR although it exists, replacing the dumps in it")
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--ranks",
        type=_number,
        metavar="N",
        help="size of the job (default: 64, of a slow one 8, of a compiling one 4)",
    )
    size.add_argument("--mesh", metavar="DP,TP,PP", help="its data, tensor and pipeline parallel dimensions instead")
    add("--fault", metavar="KIND", default="op", help=f"what goes wrong, or {HEALTHY}; see --list (default: op)")
    add("--rank", type=_number, metavar="R", help="the rank that goes wrong (default: drawn from the seed)")
    add("--step", type=_number, metavar="S", help="the step at which it does (default: drawn from the seed)")
    add("--steps", type=_number, metavar="N", default=8, help="steps of the job (default: 8)")
    add("--seed", type=_number, metavar="N", default=0, help="another seed, another job (default: 0)")
    add("--ring", type=_number, metavar="N", default=2000, help="calls that each rank's ring keeps (default: 2000)")
    add("--lost", type=_number, metavar="N", default=0, help="bystanders that leave no dump (default: 0)")
    add("--cut", type=_number, metavar="N", default=0, help="bystanders whose dump is cut short (default: 0)")
    add("--clock-skew-ms", type=float, metavar="MS", default=0.0, help="how far the hosts' clocks differ (default: 0)")
    add("--execution-traces", action="store_true", help="of a slow job: write its execution traces as well")
    add("--list", action="store_true", help="list the faults and exit")
    output.add_output_options(parser)


def _number(text: str) -> int:
    from argparse import ArgumentTypeError

    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a number")
    return int(text)


def run(args: Namespace) -> int:
    if args.list:
        return _list_faults(args)
    from rankscope import pipeline
    from rankscope.simulate import simulate
    from rankscope.simulate.compile_job import COMPILE_FAULT_HELP
    from rankscope.simulate.profiler import PROFILE_FAULTS

    if args.fault in PROFILE_FAULTS:
        return _run_slow_job(args)
    if args.execution_traces:
        raise UsageError(
            f"--execution-traces goes with a slow job, and --fault {args.fault} is another one",
            f"rankscope demo --list lists the faults, of slow jobs: {', '.join(PROFILE_FAULTS)}",
        )
    if args.fault in COMPILE_FAULT_HELP:
        return _run_compiling_job(args)
    spec, fault, noise = _job(args)
    folder = _make_folder(args.output, args.force)
    _say_if_slow(spec.mesh.world)
    simulation = simulate(spec, fault, noise)
    simulation.write(folder, FILE_PREFIX)
    report = pipeline.diagnose(load_paths([folder]))
    agrees = is_right(report, simulation.truth)
    if args.json:
        output.print_json(_as_record(folder, simulation, report, agrees))
    else:
        _show(report, args)
        output.print_lines(_truth_lines(folder, simulation, agrees))
    return 0 if agrees else 1


def _run_slow_job(args: Namespace) -> int:
    from dataclasses import asdict

    from rankscope import pipeline
    from rankscope.commands.demo_profile import names_culprit, simulate_slow_job, truth_lines, write_traces

    simulation = simulate_slow_job(args)
    folder = _make_folder(args.output, args.force)
    write_traces(simulation, folder, args.execution_traces)
    report = pipeline.diagnose(load_paths([folder]))
    agrees = names_culprit(report, simulation)
    if args.json:
        truth = {"cause": simulation.truth.cause, "ranks": simulation.truth.ranks}
        spec = asdict(simulation.spec)
        output.print_json({"folder": folder, "spec": spec, "truth": truth, "agrees": agrees, "report": report})
    else:
        _show(report, args)
        output.print_lines(truth_lines(folder, simulation, agrees, args.execution_traces))
    return 0 if agrees else 1


def _run_compiling_job(args: Namespace) -> int:
    from pathlib import Path

    from rankscope import pipeline
    from rankscope.commands.demo_compile import names_fault, simulate_compiling_job, truth_lines

    simulation = simulate_compiling_job(args)
    folder = _make_folder(args.output, args.force)
    simulation.write(Path(folder))
    report = pipeline.diagnose(load_paths([folder]))
    agrees = names_fault(report, simulation)
    if args.json:
        truth = simulation.truth._asdict()
        output.print_json({"folder": folder, "truth": truth, "agrees": agrees, "report": report})
    else:
        _show(report, args)
        output.print_lines(truth_lines(folder, simulation, agrees))
    return 0 if agrees else 1


def _list_faults(args: Namespace) -> int:
    from rankscope.simulate import FAULT_HELP
    from rankscope.simulate.compile_job import COMPILE_FAULT_HELP
    from rankscope.simulate.profiler import PROFILE_FAULT_HELP

    faults = {**FAULT_HELP, **PROFILE_FAULT_HELP, **COMPILE_FAULT_HELP, HEALTHY: "nothing goes wrong"}
    if args.json:
        output.print_json(faults)
        return 0
    width = max(map(len, faults))
    output.print_lines(f"{kind:{width}}  {text}" for kind, text in faults.items())
    output.print_lines(["", "Next: rankscope demo --fault skip"])
    return 0


# The job


def _job(args: Namespace) -> tuple[JobSpec, Fault | None, Noise]:
    from rankscope.simulate import Fault, JobSpec, Noise

    if args.fault == HEALTHY and (args.rank is not None or args.step is not None):
        raise UsageError("a job without a fault has no rank or step that goes wrong", "leave out --rank and --step")
    fault = None if args.fault == HEALTHY else Fault(args.fault, args.rank, args.step)
    mesh = parse_mesh(args.mesh) if args.mesh else mesh_of(args.ranks or DEFAULT_RANKS, args.fault)
    noise = Noise(ring=args.ring, lost=args.lost, cut=args.cut, clock_skew_ms=args.clock_skew_ms)
    return JobSpec(mesh, steps=args.steps, seed=args.seed), fault, noise


def parse_mesh(text: str) -> Mesh:
    from rankscope.simulate import Mesh

    parts = text.split(",")
    if len(parts) > 3 or not all(part.isdecimal() for part in parts):
        raise UsageError(f"{text!r} is not a mesh", "give up to three numbers: --mesh 8,4,2 is dp=8, tp=4, pp=2")
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
        raise OutputError(f"cannot write {folder}: {error.strerror}", "choose another place: -o DIR") from error
    return folder


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
        raise OutputError(f"{folder} is not empty", "choose another folder, or give --force to replace the dumps in it")
    for name in names:
        if name.removeprefix(FILE_PREFIX).isdecimal() or _TRACE_NAME.fullmatch(name):
            os.unlink(os.path.join(folder, name))


def _say_if_slow(n_ranks: int) -> None:
    import sys

    if n_ranks >= _MANY_RANKS and sys.stderr.isatty():
        sys.stderr.write(f"Simulating {n_ranks:,} ranks ...\n")


# The verdict beside the truth


def is_right(report: Report, truth: Truth) -> bool:
    """True when the first finding names the fault and its ranks; of a healthy job, when nothing is called an error."""
    if truth.rule is None:
        return not report.count("error") and not any(finding.code[0] in "HS" for finding in report.findings)
    if not report.findings or report.findings[0].rule != truth.rule:
        return False
    # A stall has no culprit among the ranks: the finding may name them all or none.
    return truth.rule == "collective-stalled" or set(report.findings[0].ranks) == set(truth.ranks)


def _show(report: Report, args: Namespace) -> None:
    from rankscope.render import load_renderer

    output.print_lines(load_renderer("txt")(report, output.terminal_options(args)))


def _truth_lines(folder: str, simulation: Simulation, agrees: bool) -> list[str]:
    import shlex

    mesh, truth = simulation.spec.mesh, simulation.truth
    named = "The verdict names it." if truth.rule else "The verdict agrees."
    return [
        "",
        f"Simulated: {mesh.world:,} ranks (dp={mesh.dp}, tp={mesh.tp}, pp={mesh.pp}); their dumps are in {folder}.",
        f"{truth.note} {named if agrees else 'The verdict is wrong.'}",
        f"Next: rankscope {shlex.quote(folder)} --all",
    ]


def _as_record(folder: str, simulation: Simulation, report: Report, agrees: bool) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "folder": folder,
        "mesh": asdict(simulation.spec.mesh),
        "truth": asdict(simulation.truth),
        "agrees": agrees,
        "report": report,
    }
