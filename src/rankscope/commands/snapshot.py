"""`rankscope snapshot`: asks every rank of a job that runs now for a dump, waits for all of them, and diagnoses."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from rankscope.commands import output
from rankscope.errors import InputError, OutputError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rankscope.analyze.hangs.progress import Progress
    from rankscope.model.finding import Report
    from rankscope.model.tables import Trace

TIMEOUT_S = 30.0
WATCH_S = 5.0
_POLL_S = 0.1
_MAX_HOLES = 8
_RECORD_HINT = "give the output folder of a job that runs under rankscope record or called rankscope.collect()"


class Visit(NamedTuple):
    """One dump of all ranks that answered."""

    trace: Trace
    silent: dict[int, str]  # rank -> why it has not answered, as far as can be seen
    moment: float  # by a clock that never jumps


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="DIR", help="the folder that rankscope record, or rankscope.collect(), writes to"
    )
    parser.add_argument(
        "--watch",
        type=output.positive_seconds,
        default=WATCH_S,
        metavar="SECONDS",
        help=f"ask the ranks twice, this far apart, to see whether they make progress (default: {WATCH_S:.0f})",
    )
    parser.add_argument(
        "--timeout",
        type=output.positive_seconds,
        default=TIMEOUT_S,
        metavar="SECONDS",
        help=f"how long to wait for the ranks' files (default: {TIMEOUT_S:.0f})",
    )
    output.add_output_options(parser)
    output.add_finding_options(parser)


def run(args: Namespace) -> int:
    from rankscope.analyze.hangs.progress import progress_between, tempered
    from rankscope.commands.attach import wait_until
    from rankscope.commands.diagnose import exit_code
    from rankscope.commands.loading import diagnose_trace

    capture = _place(args.folder)
    before = _visit(capture, args.timeout)
    wait_until(before.moment + args.watch)
    after = _visit(capture, args.timeout)
    progress = progress_between(before.trace, after.trace, after.moment - before.moment)
    report = tempered(diagnose_trace(after.trace), progress)
    _show(report, after.silent, progress, capture, args)
    return exit_code(report, "error")


def _place(folder: str) -> Path:
    from pathlib import Path

    from rankscope.collect.launching.folders import newest_place
    from rankscope.collect.manifest import read_parts

    if not os.path.isdir(folder):
        raise InputError(f"{folder} is not a folder", _RECORD_HINT)
    capture = newest_place(Path(folder))
    if not read_parts(capture):
        raise InputError(f"no rank has written to {folder}", _RECORD_HINT)
    return capture


def _visit(capture: Path, timeout_s: float) -> Visit:
    import time

    from rankscope.collect import requests
    from rankscope.commands.loading import load_paths
    from rankscope.model.finding import ranks_phrase

    running = [part for part in _parts(capture) if part.get("ended_ns") is None]
    if not running:
        hint = f"diagnose its traces: rankscope {capture}"
        raise InputError(f"the job in {capture} has ended", hint)
    moment = time.monotonic()
    try:
        wanted = requests.ask(capture)
    except OSError as error:
        raise OutputError(
            f"cannot write to {capture}: {error.strerror}", "run rankscope as the user who started the job"
        ) from error
    try:
        silent = _wait(capture, wanted, moment + timeout_s)
    finally:
        requests.take_back(capture)
    if len(silent) == len(running):
        said = "; ".join(dict.fromkeys(silent.values()))
        hint = "look at the processes with py-spy dump --native --pid PID, or gdb -p PID"
        raise InputError(f"{ranks_phrase(sorted(silent))} did not answer within {timeout_s:g} s: {said}", hint)
    return Visit(load_paths([str(capture)]), silent, moment)


def _parts(capture: Path) -> list[dict[str, Any]]:
    from rankscope.collect.manifest import read_parts

    return [part for part in read_parts(capture) if isinstance(part.get("rank"), int)]


def _wait(capture: Path, wanted: str, deadline: float) -> dict[int, str]:
    """Until every rank that runs has written all of its files. Returns those that have not."""
    import time

    while True:
        silent = [part for part in _parts(capture) if not _has_answered(part, wanted)]
        if not silent or time.monotonic() > deadline or not any(map(_may_answer, silent)):
            return {part["rank"]: _why_silent(part) for part in silent}
        time.sleep(_POLL_S)


def _has_answered(part: dict[str, Any], wanted: str) -> bool:
    dumped = part.get("dumped")
    return part.get("ended_ns") is not None or (isinstance(dumped, dict) and dumped.get("request") == wanted)


def _may_answer(part: dict[str, Any]) -> bool:
    return _process_state(part) != ""


def _why_silent(part: dict[str, Any]) -> str:
    state = _process_state(part)
    if state is None:
        return f"it runs on host {part.get('host') or '?'}, and its answer has not reached the folder"
    if not state:
        return f"its process {part.get('pid')} is gone: it was killed or crashed"
    if state in "Tt":
        return f"its process {part.get('pid')} is stopped"
    return f"its process {part.get('pid')} is running, but could not run Python code"


def _process_state(part: dict[str, Any]) -> str | None:
    """As the kernel calls it; empty if there is no such process, None if it is on another host."""
    import socket
    from pathlib import Path

    if part.get("host") != socket.gethostname() or not isinstance(part.get("pid"), int):
        return None
    try:
        stat = Path(f"/proc/{part['pid']}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    state = stat.rpartition(")")[2].split()[0]
    return "" if state in "ZX" else state


# What is shown


def _show(report: Report, silent: dict[int, str], progress: Progress, capture: Path, args: Namespace) -> None:
    import msgspec

    from rankscope.commands.attach import progress_lines
    from rankscope.commands.diagnose import next_command
    from rankscope.render import load_renderer
    from rankscope.render.escape import escape

    options = output.terminal_options(args, next_command(report))
    if args.json:
        [text] = load_renderer("json")(report, options)
        unanswered = [{"rank": rank, "why": why} for rank, why in sorted(silent.items())]
        live = {"folder": str(capture), "silent": unanswered, "progress": msgspec.to_builtins(progress)}
        output.print_json({**msgspec.json.decode(text), "live": live})
        return
    lines = [*_silence_lines(silent), *progress_lines(progress)]
    output.print_lines(map(escape, lines))
    output.print_lines(load_renderer("txt")(report, options))


def _silence_lines(silent: dict[int, str]) -> Iterator[str]:
    from rankscope.model.finding import count_noun

    listed: Sequence[tuple[int, str]] = sorted(silent.items())
    for rank, why in listed[:_MAX_HOLES]:
        yield f"rank {rank} has not dumped: {why}; its files, if any, are from an earlier dump"
    if len(listed) > _MAX_HOLES:
        yield f"{count_noun(len(listed) - _MAX_HOLES, 'more rank')} did not answer (--json lists them)"
