"""`rankscope attach`: the diagnosis of a job that runs now, from torch's own debug server."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from rankscope.commands import output
from rankscope.commands.dump_folder import check_dump_folder, dump_folder, told_as_output

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator, Sequence

    from rankscope.analyze.hangs.progress import Progress
    from rankscope.model.finding import Report
    from rankscope.model.tables import Trace
    from rankscope.read.debug_server import Job, Reading

TIMEOUT_S = 20.0
WATCH_S = 10  # what the hint proposes
_MAX_HOLES = 8
_SAFE_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,200}")


class Visit(NamedTuple):
    """One reading of all ranks."""

    trace: Trace
    workers: list[dict[str, Any]]
    moment: float  # when it began, by a clock that never jumps


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "urls",
        metavar="URL",
        nargs="+",
        help="the debug server of rank 0, http://HOST:25999, or of single ranks: [RANK=]URL",
    )
    parser.add_argument(
        "--watch",
        type=output.positive_seconds,
        metavar="SECONDS",
        help="read twice, this far apart, and report which ranks made progress",
    )
    parser.add_argument(
        "--follow",
        action="store_true",
        help="also contact the workers that the server names on other hosts than the one given",
    )
    output.add_live_options(parser, TIMEOUT_S, "each rank")


def run(args: Namespace) -> int:
    from rankscope.analyze.hangs.progress import progress_between, tempered
    from rankscope.commands.diagnose import exit_code
    from rankscope.commands.loading import diagnose_trace
    from rankscope.read.debug_server import find_job

    if args.output:
        check_dump_folder(args.output)
    job = find_job(args.urls, args.timeout, follow=args.follow)
    before = _visit(job, args, None) if args.watch else None
    if before:
        wait_until(before.moment + args.watch)
    after = _visit(job, args, args.output)
    report = diagnose_trace(after.trace)
    progress = None
    if before:
        progress = progress_between(before.trace, after.trace, after.moment - before.moment)
        report = tempered(report, progress)
    _show(_of_the_job(report, args), after.workers, progress, args)
    return exit_code(report, "error")


def wait_until(moment: float) -> None:
    import time

    time.sleep(max(moment - time.monotonic(), 0.0))


def _visit(job: Job, args: Namespace, kept: str | None) -> Visit:
    import time

    from rankscope.commands.loading import load_paths
    from rankscope.read.debug_server import read_job

    moment = time.monotonic()
    with dump_folder(kept) as folder:
        has_hosts = len({worker.address.host for worker in job.workers}) > 1
        workers = [_write(reading, folder, has_hosts) for reading in read_job(job, args.timeout)]
        _refuse_silence(job, workers)
        return Visit(load_paths([folder]), sorted(workers, key=lambda worker: worker["rank"]), moment)


def _write(reading: Reading, folder: str, has_hosts: bool) -> dict[str, Any]:
    """Writes what a rank sent into files that are read like those of any capture. The folder's name is the host."""
    from rankscope.read.debug_server import CALLS, OWN_CALLS, STACKS

    rank, address = reading.worker
    if has_hosts and _SAFE_HOST.fullmatch(address.host):
        folder = os.path.join(folder, address.host)
    names = {CALLS: f"nccl_trace_rank_{rank}", OWN_CALLS: f"rankscope_trace_rank_{rank}", STACKS: f"stacks_{rank}.txt"}
    with told_as_output(folder):
        for what, content in reading.contents.items():
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, names[what]), "xb") as file:
                if what == STACKS:
                    file.write(f"=== Rank {rank}: {address.url} ===\n".encode())
                file.write(content)
    got = [what for what in names if what in reading.contents]
    return {"rank": rank, "url": address.url, "got": got, "problems": list(reading.problems)}


def _refuse_silence(job: Job, workers: Sequence[dict[str, Any]]) -> None:
    from rankscope.errors import InputError

    if not any(worker["got"] for worker in workers):
        problems = [f"{worker['url']}: {problem}" for worker in workers for problem in worker["problems"]]
        raise InputError(
            f"none of the {len(job.workers)} ranks answered ({problems[0] if problems else 'no known handler'})",
            "try again with a longer --timeout, or on the host of rank 0",
        )


def _of_the_job(report: Report, args: Namespace) -> Report:
    """Names the URL as the capture, because the temporary folder is gone when the answer is read."""
    import msgspec

    if args.output:
        return report
    capture = msgspec.structs.replace(report.capture, paths=tuple(args.urls))
    return msgspec.structs.replace(report, capture=capture)


# What is shown


def _show(report: Report, workers: list[dict[str, Any]], progress: Progress | None, args: Namespace) -> None:

    import msgspec

    from rankscope.render import load_renderer
    from rankscope.render.escape import escape

    options = output.terminal_options(args, _next_command(report, args))
    if args.json:
        [text] = load_renderer("json")(report, options)
        live = {"workers": workers, "progress": msgspec.to_builtins(progress)}
        output.print_json({**msgspec.json.decode(text), "live": live})
        return
    lines = [*_hole_lines(workers), *(progress_lines(progress) if progress else ())]
    output.print_lines(map(escape, lines))
    output.print_lines(load_renderer("txt")(report, options))


def _next_command(report: Report, args: Namespace) -> str:
    """One reading cannot tell a slow job from a hung one, so a second one is the best next step."""
    import shlex

    from rankscope.commands.diagnose import next_command

    if not args.watch:
        return f"rankscope attach {shlex.join(args.urls)} --watch {WATCH_S}"
    return next_command(report) if args.output or report.findings else ""


def _hole_lines(workers: Sequence[dict[str, Any]]) -> Iterator[str]:
    from rankscope.model.finding import count_noun

    holes = [worker for worker in workers if worker["problems"]]
    for worker in holes[:_MAX_HOLES]:
        said = "sent nothing" if not worker["got"] else f"sent only {' and '.join(map(_noun, worker['got']))}"
        yield f"rank {worker['rank']} ({worker['url']}) {said}: {'; '.join(worker['problems'])}"
    if len(holes) > _MAX_HOLES:
        yield f"{count_noun(len(holes) - _MAX_HOLES, 'more rank')} sent only part of it (--json lists them)"


def _noun(what: str) -> str:
    return {"calls": "its calls", "own_calls": "the calls that rankscope saw", "stacks": "its stacks"}[what]


def progress_lines(progress: Progress) -> Iterator[str]:
    from rankscope.model.finding import ranks_phrase

    advanced = progress.in_state("advanced")
    rate = f"{progress.collectives_per_s:.3g} collectives per second"
    verdict = {
        "moving": f"every rank made progress, {rate}: the job is not hung",
        "partly": f"{ranks_phrase(advanced)} made progress, {rate}" if advanced else "no rank made progress",
        "working": "no rank made a call, but main threads move: a rank is working while the others wait for it",
        "hung": "no rank made progress and no main thread moved: the job hangs",
        "unknown": "the ranks sent too little to see whether the job makes progress",
    }[progress.verdict]
    yield f"Within {progress.seconds:.3g} s {verdict}."
    if progress.verdict in ("moving", "unknown"):
        return
    for states, words in (
        (("active",), "made no call, but its main thread moved"),
        (("still",), "did not move"),
        (("restarted",), "restarted"),
        (("unknown",), "sent too little to judge"),
    ):
        yield from _state_lines(progress, states, words)


def _state_lines(progress: Progress, states: Any, words: str) -> Iterator[str]:
    """Ranks at the same line of code share a line."""
    from rankscope.model.finding import ranks_phrase
    from rankscope.render.source import shown_path

    ranks_at: dict[str, list[int]] = {}
    for each in progress.ranks:
        if each.state in states:
            site = each.location
            where = f", now at {shown_path(site.file, os.getcwd())}:{site.line} in {site.function}" if site else ""
            ranks_at.setdefault(where, []).append(each.rank)
    for where, ranks in sorted(ranks_at.items(), key=lambda item: len(item[1]))[:_MAX_HOLES]:
        yield f"  {ranks_phrase(ranks)} {words}{where}"
