"""`rankscope timeline`: everything that was recorded of all ranks, in one file for Perfetto."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from typing import TYPE_CHECKING, Any, NamedTuple

from rankscope.commands import output
from rankscope.commands.fr import parse_ranks
from rankscope.commands.loading import PATH_HELP, add_reading_options, diagnose_trace, load_trace
from rankscope.commands.metrics import parse_steps
from rankscope.commands.progress import Progress
from rankscope.errors import InputError, UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator, Sequence

    from rankscope.model.finding import Finding, Report
    from rankscope.model.tables import Trace
    from rankscope.render.timeline.axis import Axis
    from rankscope.render.timeline.drawing import Cut
    from rankscope.render.timeline.writer import Written

MAX_EVENTS = 5_000_000
_EXTENSIONS = (".json", ".json.gz")
_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|ms|s|min|h)")
_EARLIEST_NS = 10**15  # a smaller number is no time since the epoch
_MARGIN_NS = 10**9


class Moment(NamedTuple):
    """A time since the epoch, or since the beginning of the capture."""

    nanoseconds: int
    is_absolute: bool

    def on(self, axis: Axis) -> int:
        return self.nanoseconds if self.is_absolute else axis.base_ns + self.nanoseconds


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="+", help=PATH_HELP)
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="write to FILE: .json or .json.gz")
    parser.add_argument("--force", action="store_true", help="overwrite FILE if it exists")
    parser.add_argument("--json", action="store_true", help="print a summary as JSON")
    parser.add_argument("--ranks", type=parse_ranks, metavar="R", help="only these ranks, for example 0-7,12")
    parser.add_argument("--steps", type=parse_steps, metavar="S", help="only these steps, for example 3-5")
    moment = "12.5s or 300ms after the start, an ISO time, or nanoseconds since the epoch"
    parser.add_argument("--since", type=parse_moment, metavar="TIME", help=f"only events that end after TIME: {moment}")
    parser.add_argument("--until", type=parse_moment, metavar="TIME", help="only events that start before TIME")
    parser.add_argument(
        "--around",
        metavar="FINDING",
        help="only the time and ranks around a finding: H102, or H102-2 for the second H102",
    )
    parser.add_argument(
        "--margin",
        type=parse_span,
        metavar="TIME",
        help="with --around: how much time before and after (default: one step, or 1s)",
    )
    parser.add_argument(
        "--max-events",
        type=_count,
        default=MAX_EVENTS,
        metavar="N",
        help="if there are more events, leave out the shortest operators, calls and kernels (default: 5000000)",
    )
    add_reading_options(parser)


def parse_span(text: str) -> int:
    """The type of an option: 12.5s, 300ms."""
    from decimal import Decimal

    match = _SPAN.fullmatch(text.strip())
    if not match:
        raise ArgumentTypeError(f"{text!r} is not a duration; write it like 12.5s or 300ms")
    return int(Decimal(match[1]) * _UNITS[match[2]])


def parse_moment(text: str) -> Moment:
    """The type of an option. An ISO time without a zone is UTC."""
    from datetime import datetime, timedelta, timezone

    if text.isdecimal() and int(text) >= _EARLIEST_NS:
        return Moment(int(text), is_absolute=True)
    if _SPAN.fullmatch(text.strip()):
        return Moment(parse_span(text), is_absolute=False)
    try:
        moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text.strip()))
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is not a time; write it like 12.5s, 2026-01-15T14:02:14 or in nanoseconds"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    return Moment((moment - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1) * 1000, True)


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"{text!r} is not a number of events")
    return int(text)


def run(args: Namespace) -> int:
    _check(args)
    from rankscope import pipeline
    from rankscope.render.timeline.axis import prepare_axis
    from rankscope.render.timeline.writer import write_timeline

    trace = load_trace(args)
    report = diagnose_trace(trace)
    trace = pipeline.shown_world(trace, report)
    cut = _cut(trace, report, prepare_axis(trace), args)
    with Progress() as progress:
        written = write_timeline(trace, report.shown_findings, args.output, cut, args.max_events, progress)
    if args.json:
        output.print_json(_described(written, cut, args.output))
    for line in _summary(written, args):
        output.tell(line)
    return 0


def _check(args: Namespace) -> None:
    """Refuses before the work is done, not after."""
    if not args.output.lower().endswith(_EXTENSIONS):
        raise UsageError(f"unknown file extension: {args.output!r}", "use .json or .json.gz")
    given = [name for name in ("steps", "around", "since") if getattr(args, name) is not None]
    if args.until is not None and "since" not in given:
        given.append("until")
    if len(given) > 1:
        raise UsageError(f"--{given[0]} and --{given[1]} cannot be combined", "use one of the two")
    if args.margin is not None and args.around is None:
        raise UsageError("--margin works only with --around", "use --since and --until instead")
    output.check_writable(args.output, args.force)


def _cut(trace: Trace, report: Report, axis: Axis, args: Namespace) -> Cut:
    from rankscope.render.timeline.drawing import Cut

    ranks = _chosen_ranks(report, args.ranks)
    since = args.since.on(axis) if args.since else None
    until = args.until.on(axis) if args.until else None
    if since is not None and until is not None and since >= until:
        raise UsageError("--since is not before --until", "swap the two times")
    if args.steps:
        since, until = _time_of_steps(trace, args.steps, ranks)
    if args.around:
        from rankscope.render.timeline.markers import finding_time
        from rankscope.render.timeline.windows import ranks_around

        finding = _find(report, args.around)
        margin = args.margin if args.margin is not None else report.capture.step_ns or _MARGIN_NS
        time = finding_time(trace, finding, axis)
        since, until = time - margin, time + margin
        ranks = ranks or ranks_around(finding, report.capture.ranks)
    return Cut(axis, ranks, since, until)


def _chosen_ranks(report: Report, wanted: Sequence[int] | None) -> tuple[int, ...] | None:
    from rankscope.model.finding import format_ranks

    if wanted is None:
        return None
    present = set(report.capture.ranks)
    if not present & set(wanted):
        raise InputError(
            f"no traces of ranks {format_ranks(list(wanted), limit=8)}",
            f"the traces are of ranks {format_ranks(present, limit=8)}"
            if present
            else "the rank of these files is unknown",
        )
    return tuple(sorted(present & set(wanted)))


def _time_of_steps(trace: Trace, steps: Sequence[int], ranks: Sequence[int] | None) -> tuple[int, int]:
    from rankscope.model.finding import format_ranks
    from rankscope.render.timeline.windows import window_of_steps

    if not trace.has("steps"):
        raise UsageError(
            "these traces do not mark steps", "only profiler traces do: use --since and --until, or --around"
        )
    window = window_of_steps(trace, steps, ranks)
    if window is None:
        known = {step for step in trace.table("steps").array("step").tolist() if step >= 0}
        raise UsageError(
            f"no step {format_ranks(list(steps), limit=8)} in these traces",
            f"the steps are {format_ranks(known, limit=8)}",
        )
    return window


def _find(report: Report, wanted: str) -> Finding:
    from rankscope.model.finding import finding_anchors

    anchors = finding_anchors(report.findings)
    for anchor, finding in zip(anchors, report.findings, strict=True):
        if wanted.upper() in (anchor.upper(), finding.code):
            return finding
    raise UsageError(
        f"no finding {wanted} in these traces",
        f"the findings are {', '.join(anchors[:20])}" if anchors else "leave out --around",
    )


def _described(written: Written, cut: Cut, path: str) -> dict[str, Any]:
    import os

    return {
        "path": path,
        "n_bytes": os.path.getsize(path),
        "n_events": written.n_events,
        "counts": written.counts,
        "ranks": list(written.ranks),
        "base_time_ns": cut.axis.base_ns,
        "since_ns": cut.since_ns,
        "until_ns": cut.until_ns,
        "shorter_left_out_ns": written.least_ns,
        "clocks": {str(rank): clock for rank, clock in written.clocks.items()},
    }


def _summary(written: Written, args: Namespace) -> Iterator[str]:
    from rankscope.model.finding import count_noun, ranks_phrase

    counts = written.counts
    spans = ", ".join(
        count_noun(counts[f"{noun}s"], noun) for noun in ("span", "flow", "counter") if counts.get(f"{noun}s")
    )
    yield f"Wrote {spans or 'no spans'} of {count_noun(len(written.ranks), 'rank')} to {args.output}"
    yield from _notes(written)
    if written.unaligned:
        yield f"note: the clocks of {ranks_phrase(written.unaligned)} are not aligned: too few collectives are shared"
    yield f"Next: open https://ui.perfetto.dev and drop {args.output} there (the page keeps it on this machine)"


def _notes(written: Written) -> Iterator[str]:
    from rankscope.model.finding import count_noun, format_duration
    from rankscope.render.timeline.thinning import NOTHING

    counts = written.counts
    for table, least in written.least_ns.items():
        shown = "all" if least == NOTHING else f"those shorter than {format_duration(least)}"
        yield f"note: left out {shown} of {table}: a larger --max-events, or fewer --ranks or --steps, keeps them"
    if counts.get("left_out"):
        yield f"note: {count_noun(counts['left_out'], 'event')} left out: no time, or a year away from the others"
    if counts.get("clamped"):
        yield f"note: {count_noun(counts['clamped'], 'time')} corrected: negative, or outside the capture"
    if counts.get("crowded"):
        yield f"note: {count_noun(counts['crowded'], 'span')} left out: too many at the same time on one track"
    if not counts.get("spans") and not counts.get("counters"):
        yield "note: nothing was recorded there; try without --ranks, --steps, --since, --until or --around"
