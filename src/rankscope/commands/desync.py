"""`rankscope desync`: the desync report of a job that hangs right now, read from its own store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankscope.commands import output

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from rankscope.live.store_groups import Found
    from rankscope.model.finding import Report
    from rankscope.read.tcp_store import Address

TIMEOUT_S = 10.0
_TRACK_HINT = (
    "start the job with rankscope record --desync, with rankscope.collect(desync=True), or on NCCL with "
    "TORCH_NCCL_DESYNC_DEBUG=1"
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("address", metavar="HOST:PORT", help="MASTER_ADDR:MASTER_PORT of the job")
    parser.add_argument(
        "--group", default="", metavar="NAME", help="only the process group with this name or description"
    )
    parser.add_argument(
        "--world-size", type=_count, default=0, metavar="N", help="number of ranks, if the store does not have it"
    )
    parser.add_argument("--prefix", default="", metavar="P", help="only keys that start with P")
    output.add_live_options(parser, TIMEOUT_S, "each reply from the store")


def _count(text: str) -> int:
    from argparse import ArgumentTypeError

    if not text.isdecimal() or not 0 < int(text) < 1 << 17:
        raise ArgumentTypeError(f"{text!r} is not a number of ranks")
    return int(text)


def run(args: Namespace) -> int:
    import time

    from rankscope.commands.diagnose import exit_code
    from rankscope.commands.dump_folder import check_dump_folder
    from rankscope.live.store_dumps import make_dumps, make_stacks
    from rankscope.live.store_groups import Wanted, find_groups
    from rankscope.read.tcp_store import TcpStore, parse_address

    address = parse_address(args.address)
    if args.output:
        check_dump_folder(args.output)
    with TcpStore(address, args.timeout) as store:
        tracking = find_groups(store, Wanted(args.prefix, args.group, args.world_size))
    if not tracking.groups:
        raise _nothing_tracked(address, tracking, args)
    now = time.time_ns()
    report = _verdict(make_dumps(tracking.groups, now), make_stacks(tracking.groups), address, args)
    if args.json:
        _print_json(tracking, report, address)
    else:
        _print_text(tracking, report, address, now, args)
    if report is None:
        return int(not all(tracked.state.is_in_step for tracked in tracking.groups))
    return exit_code(report, "error")


def _nothing_tracked(address: Address, tracking: Found, args: Namespace) -> Exception:
    from rankscope.errors import InputError
    from rankscope.model.finding import count_noun

    where = f"the store at {address} has {count_noun(tracking.n_keys, 'key')}"
    if args.group or args.prefix:
        asked = " and ".join(filter(None, (args.group and f"group {args.group}", args.prefix and f"{args.prefix}...")))
        return InputError(f"{where}, but none about collectives of {asked}", "leave out --group and --prefix")
    return InputError(f"{where}, but none about collectives: this job does not track them", _TRACK_HINT)


def _verdict(
    dumps: dict[int, dict[str, Any]], stacks: dict[int, str], address: Address, args: Namespace
) -> Report | None:
    """The verdict of the Flight Recorder rules; None if the store does not show who is in the groups."""
    import msgspec

    from rankscope.commands.dump_folder import dump_folder, told_as_output
    from rankscope.commands.loading import diagnose_trace, load_paths
    from rankscope.live.store_dumps import write_files

    if not any(dump["entries"] for dump in dumps.values()):
        return None
    with dump_folder(args.output) as folder:
        with told_as_output(folder):
            write_files(dumps, stacks, folder)
        report = _without_known_holes(diagnose_trace(load_paths([folder])))
    if args.output:
        return report
    capture = msgspec.structs.replace(report.capture, paths=(str(address),))  # the folder is gone
    return msgspec.structs.replace(report, capture=capture)


def _without_known_holes(report: Report) -> Report:
    """A store keeps the last call of each rank by design: that its earlier ones are absent is no news."""
    import msgspec

    kept = tuple(finding for finding in report.findings if finding.rule != "ring-too-small")
    return msgspec.structs.replace(report, findings=kept)


def _not_judged(tracking: Found) -> list[str]:
    unknown = [tracked.group.name for tracked in tracking.groups if not tracked.group.ranks]
    if not unknown:
        return []
    return [f"not judged: the store does not say which ranks are in group {', '.join(unknown)}"]


def _print_json(tracking: Found, report: Report | None, address: Address) -> None:
    from rankscope.collect.desync.report import report_record

    groups = [
        {**report_record(tracked.state), "tracker": "torch" if tracked.backend else "rankscope"}
        for tracked in tracking.groups
    ]
    notes = [*tracking.notes, *_not_judged(tracking)]
    output.print_json({"store": str(address), "groups": groups, "notes": notes, "report": report})


def _print_text(tracking: Found, report: Report | None, address: Address, now: int, args: Namespace) -> None:

    from rankscope.collect.desync.report import report_lines
    from rankscope.render import load_renderer
    from rankscope.render.escape import escape

    states = [tracked.state for tracked in tracking.groups]
    lines = report_lines(states, f"read from the store at {address}", time_ns=now)
    output.print_lines(map(escape, [*tracking.notes, *lines, *_not_judged(tracking), ""]))
    if report is None:
        return
    options = output.terminal_options(args, _next_command(report, args))
    output.print_lines(load_renderer("txt")(report, options))


def _next_command(report: Report, args: Namespace) -> str:
    from rankscope.commands.diagnose import next_command

    if report.findings or args.output:
        return next_command(report)
    return f"rankscope desync {args.address} -o FOLDER"
