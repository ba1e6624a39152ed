"""`rankscope record`: runs a job, collects from every rank, and says what went wrong."""

from __future__ import annotations

import sys
from argparse import REMAINDER, ArgumentTypeError
from typing import TYPE_CHECKING, Any

from rankscope.commands import output
from rankscope.commands.output import positive_seconds
from rankscope.errors import InputError, OutputError, RankscopeError, UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from pathlib import Path

    from rankscope.collect.settings import Settings
    from rankscope.commands.job_output import KeptOutput

FOLDER = "traces"
# What can be chosen by name -> its setting.
DEFAULTS = {name: name for name in ("kineto", "recorder", "stacks", "metrics", "host", "output")}
DEFAULTS |= {"execution-trace": "execution_trace", "compile-log": "compile_log"}
KINDS = {**DEFAULTS, "desync": "desync", "nsys": "nsys"}
SCHEDULE = ("skip_first", "wait", "warmup", "active", "clean", "repeat")
ANSWER_S = 3.0  # that a signal waits for the dumps of the ranks before the job gets it
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("command", metavar="COMMAND", nargs=REMAINDER, help="the job, after --: torchrun ... train.py")
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        default=FOLDER,
        help="output folder (default: traces; a second run goes to traces/run_2)",
    )
    what = parser.add_argument_group("what to collect", f"by default: {', '.join(DEFAULTS)}")
    what.add_argument(
        "--only", metavar="WHAT", type=_kinds, action="append", help="collect only these, for example kineto,metrics"
    )
    what.add_argument("--no", metavar="WHAT", type=_kinds, action="append", help="do not collect these")
    what.add_argument(
        "--desync", action="store_true", help="also track each collective's start and end in the job's TCP store"
    )
    what.add_argument("--cpp-stacks", action="store_true", help="add C++ frames to stack dumps")
    what.add_argument(
        "--nsys", action="store_true", help="also run each rank under Nsight Systems and export nsys_<rank>.nsys-rep"
    )
    what.add_argument(
        "--logs", metavar="NAMES", default="", help="logs to turn on, as in TORCH_LOGS; see rankscope logs"
    )
    what.add_argument(
        "--debug-server",
        metavar="PORT",
        type=_count,
        default=0,
        help="start torch's debug server for rankscope attach",
    )
    _add_profiling_options(parser)
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--ring-size", metavar="N", type=_count, help="calls that the Flight Recorder keeps per rank (default: 2000)"
    )
    limits.add_argument(
        "--stall",
        metavar="SECONDS",
        type=positive_seconds,
        help="dump if no collective finishes for this long (default: 300)",
    )
    limits.add_argument("--gzip", action="store_true", help="compress the profiler traces")
    limits.add_argument(
        "--max-size", metavar="SIZE", type=parse_size, help="disk space per rank, for example 500M (default: 4G)"
    )
    parser.add_argument(
        "--end-with-launcher",
        action="store_true",
        help="if this command is killed, end the job too (default: the job runs on, as with a shell)",
    )
    parser.add_argument("--no-diagnose", action="store_true", help="do not diagnose when the job ends")


def _add_profiling_options(parser: ArgumentParser) -> None:
    steps = parser.add_argument_group("which steps to profile")
    for name, default, text in (
        ("skip-first", 0, "steps to skip once, at the start"),
        ("wait", 5, "steps to wait before each recording; the first step of the job is never recorded"),
        ("warmup", 1, "steps in which the profiler warms up"),
        ("active", 3, "steps to record with the execution trace"),
        ("clean", 2, "steps to record after them without the execution trace, which slows steps down"),
        ("repeat", 1, "how many times to do all this"),
    ):
        steps.add_argument(f"--{name}", metavar="N", type=_count, help=f"{text} (default: {default})")
    steps.add_argument("--with-stack", action="store_true", help="record the Python stack of every operator")
    steps.add_argument("--no-shapes", action="store_true", help="do not record the shapes of tensors")
    steps.add_argument("--memory", action="store_true", help="record every allocation")


def run(args: Namespace) -> int:
    from rankscope.collect.launching import child_exits, folders, leftovers, nsys_exports
    from rankscope.commands.record_summary import summary_lines
    from rankscope.model.finding import ranks_phrase

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    _check_command(command)
    wanted = read_settings(args)
    _check_schedule(wanted)
    _check_logs(wanted.logs, command)
    _check_debug_server(wanted.debug_port, command)
    run_id = folders.launcher_run_id(command)
    folder = _claim(args.output, run_id)
    about = {"id": run_id, **_started(command)}
    n_before = child_exits.n_killed_for_memory()
    placed = _placed(wanted, folder, run_id)
    about["exit_code"] = code = _run_job(command, placed, about, ends_job=args.end_with_launcher)
    n_after = child_exits.n_killed_for_memory()
    about["n_killed_for_memory"] = None if n_before is None or n_after is None else n_after - n_before
    _tell("", f"the job ended with exit code {code}")
    if wanted.nsys:
        _tell(*nsys_exports.export_all(folder))
    try:
        leftovers.finish(folder, {**about, "ended_ns": _now()})
    except OSError as error:
        _tell(f"cannot write to {folder} any more: {error.strerror or error}")
        return code
    running = leftovers.unfinished(folder)
    diagnoses = not args.no_diagnose and not running
    _tell(*summary_lines(folder, with_problems=not diagnoses))  # the diagnosis tells them as well
    if running:
        _tell(f"{ranks_phrase(running)} still running; when they have ended: rankscope {folder}")
    elif diagnoses:
        _diagnose(folder)
    return code


def read_settings(args: Namespace) -> Settings:
    """What is not given stays as the collector has it."""
    import dataclasses

    from rankscope.collect.settings import Settings

    chosen: dict[str, Any] = {
        "logs": args.logs.replace(" ", ""),
        "debug_port": args.debug_server,
        "cpp_stacks": args.cpp_stacks,
        "with_stack": args.with_stack,
        "shapes": not args.no_shapes,
        "memory": args.memory,
        "gzip": args.gzip,
    }
    numbers = {"ring_size": args.ring_size, "stall_seconds": args.stall, "max_bytes": args.max_size}
    numbers |= {name: getattr(args, name) for name in SCHEDULE}
    chosen |= {name: number for name, number in numbers.items() if number is not None}
    if args.only:
        chosen |= {setting: any(name in names for names in args.only) for name, setting in KINDS.items()}
    chosen |= {KINDS[name]: False for names in args.no or () for name in names}
    chosen |= {name: True for name in ("desync", "nsys") if getattr(args, name)}
    return dataclasses.replace(Settings(folder=""), **chosen)


def parse_size(text: str) -> int:
    number, unit = text.upper().removesuffix("B").removesuffix("I"), ""
    if number and number[-1] in UNITS:
        number, unit = number[:-1], number[-1]
    if not number.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a size; write it like 500M or 4G")
    return int(number) * UNITS[unit]


def _kinds(text: str) -> list[str]:
    from rankscope.errors import did_you_mean

    names = [name.strip().replace("_", "-") for name in text.split(",") if name.strip()]
    for name in names:
        if name not in KINDS:
            hint = did_you_mean(name, KINDS) or f"choose from {', '.join(KINDS)}"
            raise ArgumentTypeError(f"{name!r} is not something to collect: {hint}")
    return names


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a number")
    return int(text)


def _check_command(command: list[str]) -> None:
    from rankscope.collect.launching.environment import find_program

    if not command:
        raise UsageError(
            "record needs a command to run",
            "for example: rankscope record -o traces -- torchrun --nproc-per-node 8 train.py",
        )
    if find_program(command) is None:
        hint = "put the command after --, and give the full path of its program if it is not on the PATH"
        raise UsageError(f"cannot find the program {command[0]!r}", hint)


def _check_schedule(wanted: Settings) -> None:
    wrong = wanted.wrong_schedule()
    if wrong:
        hint = "use at least 1; to record no steps at all: --no kineto,execution-trace"
        raise UsageError(f"--{wrong}", hint)


def _check_debug_server(port: int, command: list[str]) -> None:
    """Without them nobody would answer at the port, and that would show only when the job hangs."""
    from rankscope.collect.debug.frontend import EXTRA, ask_python
    from rankscope.collect.launching.environment import job_python

    if not port:
        return
    python = job_python(command)
    lacks = ask_python(python) if python else None
    if lacks is None:
        _tell("cannot check whether the job's Python has what the debug server needs")
    elif lacks:
        hint = f"{python} -m pip install {' '.join(lacks)} (pip install 'rankscope[{EXTRA}]' installs them as well)"
        raise UsageError(f"--debug-server needs packages that the job's Python lacks: {', '.join(lacks)}", hint)


def _check_logs(logs: str, command: list[str]) -> None:
    """A name that torch does not know would cost the logs of the whole run."""
    from rankscope.collect.launching.environment import job_python
    from rankscope.collect.launching.log_names import as_torch_has_them, ask_torch, is_well_formed, split_names
    from rankscope.errors import did_you_mean

    if not logs:
        return
    if not is_well_formed(logs):
        raise UsageError(f"--logs {logs} is not a list of names", "write it like --logs recompiles,+dynamo")
    python = job_python(command)
    if python is None:
        _tell("cannot check the names in --logs: the command does not show which Python it runs")
        return
    asked = split_names(as_torch_has_them(logs))
    try:
        known = ask_torch(python, asked)
    except InputError as error:
        _tell(f"cannot check the names in --logs: {error.message}")
        return
    for name in known.wrong(asked):
        hint = did_you_mean(name, (known_name.name for known_name in known.names))
        raise UsageError(f"torch {known.torch} has no log called {name!r}", hint or "rankscope logs lists them")


def _claim(base: str, run_id: str) -> Path:
    from pathlib import Path

    from rankscope.collect.launching import folders

    try:
        folder = folders.claim(Path(base).absolute(), run_id)
    except OSError as error:
        raise OutputError(
            f"cannot write to {base}: {error.strerror or error}", "choose another folder with -o"
        ) from None
    if folder != Path(base).absolute():
        _tell(f"{base} has an earlier run: this one goes to {folder}")
    return folder


def _placed(wanted: Settings, folder: Path, run_id: str) -> Settings:
    import dataclasses

    return dataclasses.replace(wanted, folder=str(folder), run_id=run_id)


def _started(command: list[str]) -> dict[str, Any]:
    from rankscope.collect.manifest import telling_command

    return {"command": telling_command(command), "started_ns": _now(), "ended_ns": None, "exit_code": None}


def _run_job(command: list[str], wanted: Settings, about: dict[str, Any], *, ends_job: bool) -> int:
    import shutil
    from pathlib import Path

    from rankscope.collect import manifest
    from rankscope.collect.launching import nsys
    from rankscope.collect.launching.environment import job_environment
    from rankscope.commands.job_process import run_job
    from rankscope.commands.launcher_watch import watched

    environment = job_environment(wanted)
    _tell(*environment.notes)
    if wanted.nsys and shutil.which(nsys.PROGRAM) is None:
        _tell("nsys is not on the PATH: nothing is collected from Nsight Systems; everything else is")
    manifest.write_whole(Path(wanted.folder), about)
    folder = Path(wanted.folder)
    with watched(folder, about, ends_job=ends_job) as on_start:  # before there are threads: it forks
        kept = _keep_output(folder) if wanted.output else None
        try:
            return run_job(command, environment.variables, lambda number: _ask_ranks(folder, number), kept, on_start)
        except OSError as error:
            raise UsageError(f"cannot run {command[0]}: {error.strerror or error}", "check its permissions") from None


def _keep_output(folder: Path) -> KeptOutput | None:
    from rankscope.commands.job_output import KeptOutput, output_path

    try:
        sys.stdout.flush()
        return KeptOutput(output_path(folder))
    except OSError as error:
        _tell(f"cannot keep what the job prints: {error.strerror or error}; everything else is collected")
        return None


def _ask_ranks(folder: Path, number: int) -> None:
    """A signal to the launcher: asks the ranks for a dump. After SIGUSR2 the job continues. Before other signals are
    passed on, the ranks get a moment to answer: one that hangs in C may be killed without another word.
    """
    import signal

    from rankscope.collect import requests
    from rankscope.collect.launching import leftovers
    from rankscope.collect.launching.folders import newest_place

    name = signal.Signals(number).name
    try:
        capture = newest_place(folder)
        if number != signal.SIGUSR2 and not leftovers.unfinished(capture):
            return
        wanted = requests.ask(capture, f"{name} to rankscope record")
    except OSError as error:
        _tell(f"cannot ask the ranks for a dump: {error.strerror or error}")
        return
    if number == signal.SIGUSR2:
        _tell(f"the ranks were asked for a dump into {capture}")
    else:
        requests.wait_for_answers(capture, wanted, ANSWER_S)


def _diagnose(folder: Path) -> None:
    """As `rankscope FOLDER` prints it, on stderr: what the job has printed on stdout may be read by a program."""
    from contextlib import redirect_stdout

    from rankscope.cli import build_parser
    from rankscope.collect.launching import leftovers

    if not any(leftovers.all_parts(folder)):
        return
    args = build_parser().parse_args(["diagnose", str(folder)])
    try:
        with redirect_stdout(sys.stderr):
            output.tell("")
            args.run(args)
    except RankscopeError as error:
        _tell(f"no diagnosis: {error.message}")
    except KeyboardInterrupt:
        _tell(f"diagnosis interrupted; the traces are kept: rankscope {folder}")


def _now() -> int:
    import time

    return time.time_ns()


def _tell(*lines: str) -> None:
    """On stderr: stdout is the job's."""
    from rankscope.render.escape import escape

    sys.stderr.writelines(f"rankscope: {escape(line)}\n" if line else "\n" for line in lines)
    sys.stderr.flush()
