"""`rankscope record`: runs a job, collects from every rank, and says what went wrong."""

from __future__ import annotations

import sys
from argparse import REMAINDER, ArgumentTypeError
from typing import TYPE_CHECKING, Any

from rankscope.commands.output import positive_seconds
from rankscope.errors import InputError, OutputError, RankscopeError, UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from pathlib import Path

    from rankscope.collect.settings import Settings

HELP = "run a job, collect traces from every rank of it, then say what went wrong"
FOLDER = "traces"
# What can be chosen by name -> its setting.
DEFAULTS = {name: name.replace("-", "_") for name in ("execution-trace", "kineto", "recorder", "stacks", "metrics")}
DEFAULTS["compile-log"] = "compile_log"
KINDS = {**DEFAULTS, "desync": "desync", "nsys": "nsys"}
SCHEDULE = ("skip_first", "wait", "warmup", "active", "clean", "repeat")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("command", metavar="COMMAND", nargs=REMAINDER, help="the job, after --: torchrun ... train.py")
    parser.add_argument(
        "-o", "--output", metavar="DIR", default=FOLDER, help="where the files go (default: traces, then traces/run_2)"
    )
    what = parser.add_argument_group("what is collected", f"{', '.join(DEFAULTS)}, if nothing else is said")
    what.add_argument("--only", metavar="WHAT", type=_kinds, action="append", help="these alone: kineto,metrics")
    what.add_argument("--no", metavar="WHAT", type=_kinds, action="append", help="not these")
    what.add_argument("--desync", action="store_true", help="each collective's start and end, in the job's own store")
    what.add_argument("--cpp-stacks", action="store_true", help="C++ frames with the stacks of stalls and of requests")
    what.add_argument(
        "--nsys", action="store_true", help="run each rank under Nsight Systems: nsys_<rank>.nsys-rep and its export"
    )
    what.add_argument("--logs", metavar="NAMES", default="", help="as TORCH_LOGS takes them; see rankscope logs")
    what.add_argument(
        "--debug-server",
        metavar="PORT",
        type=_count,
        default=0,
        help="start torch's debug server for rankscope attach",
    )
    _add_profiling_options(parser)
    limits = parser.add_argument_group("limits")
    limits.add_argument("--ring-size", metavar="N", type=_count, help="calls that the recorders keep (default: 2000)")
    limits.add_argument(
        "--stall",
        metavar="SECONDS",
        type=positive_seconds,
        help="dump when no collective ends for so long (default: 300)",
    )
    limits.add_argument("--gzip", action="store_true", help="pack the profiler's files")
    limits.add_argument("--max-size", metavar="SIZE", type=parse_size, help="per rank, like 500M (default: 4G)")
    parser.add_argument("--no-diagnose", action="store_true", help="do not say what went wrong when the job is over")


def _add_profiling_options(parser: ArgumentParser) -> None:
    steps = parser.add_argument_group("steps that are profiled")
    for name, default, text in (
        ("skip-first", 0, "steps before all else, once"),
        ("wait", 5, "steps before the first; the job's first step is never recorded, as nobody saw where it began"),
        ("warmup", 1, "steps that the profiler runs before it records"),
        ("active", 3, "steps recorded with the execution trace"),
        ("clean", 2, "steps recorded after them by Kineto alone, as the execution trace slows them down"),
        ("repeat", 1, "how often all this is done"),
    ):
        steps.add_argument(f"--{name}", metavar="N", type=_count, help=f"{text} (default: {default})")
    steps.add_argument("--with-stack", action="store_true", help="record the Python stack of every operator")
    steps.add_argument("--no-shapes", action="store_true", help="do not record the shapes of tensors")
    steps.add_argument("--memory", action="store_true", help="record every allocation")


def run(args: Namespace) -> int:
    from rankscope.collect.launching import folders, leftovers, nsys_exports
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
    about["exit_code"] = code = _run_job(command, _placed(wanted, folder, run_id), about)
    _tell("", f"the job ended with exit code {code}")
    if wanted.nsys:
        _tell(*nsys_exports.export_all(folder))
    try:
        leftovers.finish(folder, {**about, "ended_ns": _now()})
    except OSError as error:
        _tell(f"{folder} cannot be written any more: {error.strerror or error}")
        return code
    running = leftovers.unfinished(folder)
    diagnoses = not args.no_diagnose and not running
    _tell(*summary_lines(folder, with_problems=not diagnoses))  # the diagnosis tells them as well
    if running:
        _tell(f"{ranks_phrase(running)} still running; when all have ended: rankscope {folder}")
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
        raise ArgumentTypeError(f"{text!r} is not a size like 500M or 4G")
    return int(number) * UNITS[unit]


def _kinds(text: str) -> list[str]:
    from rankscope.cli import did_you_mean

    names = [name.strip().replace("_", "-") for name in text.split(",") if name.strip()]
    for name in names:
        if name not in KINDS:
            hint = did_you_mean(name, KINDS) or f"there are {', '.join(KINDS)}"
            raise ArgumentTypeError(f"nothing is called {name!r}: {hint}")
    return names


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a number")
    return int(text)


def _check_command(command: list[str]) -> None:
    from rankscope.collect.launching.environment import find_program

    if not command:
        raise UsageError("there is no command to run", "rankscope record -o traces -- torchrun ... train.py")
    if find_program(command) is None:
        hint = "put it after --, and give its path if it is not on the PATH"
        raise UsageError(f"there is no program {command[0]!r} to run", hint)


def _check_schedule(wanted: Settings) -> None:
    wrong = wanted.wrong_schedule()
    if wrong:
        hint = "ask for at least 1; to record no steps at all: --no kineto,execution-trace"
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
        _tell("whether the job's Python has what the debug server needs is not checked: it could not be asked")
    elif lacks:
        hint = f"{python} -m pip install {' '.join(lacks)} (pip install 'rankscope[{EXTRA}]' brings them as well)"
        raise UsageError(f"--debug-server needs what the job's Python lacks: {', '.join(lacks)}", hint)


def _check_logs(logs: str, command: list[str]) -> None:
    """A name that torch does not know would cost the logs of the whole run."""
    from rankscope.cli import did_you_mean
    from rankscope.collect.launching.environment import job_python
    from rankscope.collect.launching.log_names import as_torch_has_them, ask_torch, is_well_formed, split_names

    if not logs:
        return
    if not is_well_formed(logs):
        raise UsageError(f"--logs {logs} is not a list of names", "give them as in --logs recompiles,+dynamo")
    python = job_python(command)
    if python is None:
        _tell("the names of --logs are not checked: the command does not show which Python it runs")
        return
    asked = split_names(as_torch_has_them(logs))
    try:
        known = ask_torch(python, asked)
    except InputError as error:
        _tell(f"the names of --logs are not checked: {error.message}")
        return
    for name in known.wrong(asked):
        hint = did_you_mean(name, (known_name.name for known_name in known.names))
        raise UsageError(f"torch {known.torch} has no log {name!r}", hint or "rankscope logs lists them")


def _claim(base: str, run_id: str) -> Path:
    from pathlib import Path

    from rankscope.collect.launching import folders

    try:
        folder = folders.claim(Path(base).absolute(), run_id)
    except OSError as error:
        raise OutputError(f"cannot write into {base}: {error.strerror or error}", "choose another with -o") from None
    if folder != Path(base).absolute():
        _tell(f"{base} holds an earlier run: this one goes into {folder}")
    return folder


def _placed(wanted: Settings, folder: Path, run_id: str) -> Settings:
    import dataclasses

    return dataclasses.replace(wanted, folder=str(folder), run_id=run_id)


def _started(command: list[str]) -> dict[str, Any]:
    from rankscope.collect.manifest import telling_command

    return {"command": telling_command(command), "started_ns": _now(), "ended_ns": None, "exit_code": None}


def _run_job(command: list[str], wanted: Settings, about: dict[str, Any]) -> int:
    import shutil
    from pathlib import Path

    from rankscope.collect import manifest
    from rankscope.collect.launching import nsys
    from rankscope.collect.launching.environment import job_environment
    from rankscope.commands.job_process import run_job

    environment = job_environment(wanted)
    _tell(*environment.notes)
    if wanted.nsys and shutil.which(nsys.PROGRAM) is None:
        _tell("nsys is not on the PATH: nothing comes from Nsight Systems, all else goes on")
    manifest.write_whole(Path(wanted.folder), about)
    try:
        return run_job(command, environment.variables, lambda: _ask_ranks(Path(wanted.folder)))
    except OSError as error:
        raise UsageError(f"cannot run {command[0]}: {error.strerror or error}", "check its permissions") from None


def _ask_ranks(folder: Path) -> None:
    """Somebody sent SIGUSR2 to the launcher: the ranks are asked for what they know, and the job goes on."""
    from rankscope.collect import requests
    from rankscope.collect.launching.folders import newest_place

    try:
        place = newest_place(folder)
        requests.ask(place, "SIGUSR2 to rankscope record")
    except OSError as error:
        _tell(f"the ranks cannot be asked: {error.strerror or error}")
    else:
        _tell(f"the ranks were asked for a dump into {place}")


def _diagnose(folder: Path) -> None:
    """As `rankscope FOLDER` prints it, on stderr: what the job has printed on stdout may be read by a program."""
    from contextlib import redirect_stdout

    from rankscope.cli import build_parser
    from rankscope.collect.launching.folders import newest_place
    from rankscope.collect.manifest import read_parts

    place = newest_place(folder)
    if not read_parts(place):
        return
    args = build_parser().parse_args(["diagnose", str(place)])
    try:
        with redirect_stdout(sys.stderr):
            sys.stderr.write("\n")
            args.run(args)
    except RankscopeError as error:
        _tell(f"no diagnosis: {error.message}")
    except KeyboardInterrupt:
        _tell(f"no diagnosis: interrupted; later: rankscope {folder}")


def _now() -> int:
    import time

    return time.time_ns()


def _tell(*lines: str) -> None:
    """On stderr: stdout is the job's."""
    from rankscope.render.escape import escape

    sys.stderr.writelines(f"rankscope: {escape(line)}\n" if line else "\n" for line in lines)
    sys.stderr.flush()
