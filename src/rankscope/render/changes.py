"""What changed between two captures, for the terminal: the verdict first, then only what changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any

from rankscope.model.changes import Changes, FindingChange, NumberChange, StepChange, TimeChange
from rankscope.model.finding import Capture, Location, format_ranks, ranks_phrase
from rankscope.render import Options
from rankscope.render.compile_changes import Section, change_sections, change_verdict, section_lines
from rankscope.render.escape import escape
from rankscope.render.finding_words import capture_parts, sources_phrase
from rankscope.render.terminal import SGR

MAX_ROWS = 10
_MAX_NAME = 80
_MORE = "--all lists them"
_PARTS = {
    "waiting": "waiting for members",
    "transfer": "moving data",
    "duration": "duration",
    "arrival": "members join at different times",
}
_SOURCES = {"profiler": "profiler", "flight_recorder": "Flight Recorder", "metrics": "metrics"}


def render(changes: Changes, options: Options) -> Iterator[str]:
    yield from _head(changes, options)
    findings = list(_finding_lines(changes.findings, options))
    if findings:
        yield from ("", "Findings", *findings)
    max_rows = MAX_ROWS if not options.show_all else 1_000_000
    for section in time_sections(changes, options.show_all):
        yield from section_lines(section, options.width, max_rows, _MORE)
    if changes.compile:
        yield from ("", f"torch.compile: {escape(change_verdict(changes.compile))}")
        for section in compile_sections(changes, options.show_all):
            yield from section_lines(section, options.width, max_rows, _MORE)
    for section in other_sections(changes, options.show_all):
        yield from section_lines(section, options.width, max_rows, _MORE)
    notes = [*changes.not_compared, *changes.notes]
    if notes:
        yield ""
        yield from (f"  = note: {escape(note)}" for note in notes)
    if options.next_command:
        yield from ("", f"Next: {escape(options.next_command)}")


def _head(changes: Changes, options: Options) -> Iterator[str]:
    style = changes.worst or "help"
    verdict = escape(changes.verdict)
    yield f"\x1b[{SGR[style]}m{verdict}\x1b[0m" if options.color else verdict
    for name, capture in (("A", changes.old), ("B", changes.new)):
        yield f"  {name}  {escape(side_words(capture))}"


def side_words(capture: Capture) -> str:
    """`runs/good: 8 profiler traces, 8 ranks, 4 steps of 68 ms`."""
    return f"{', '.join(capture.paths)}: {', '.join([sources_phrase(capture), *capture_parts(capture)])}"


def _finding_lines(findings: Sequence[FindingChange], options: Options) -> Iterator[str]:
    shown = findings if options.show_all else findings[:MAX_ROWS]
    for change in shown:
        code = f"{change.severity}[{change.code}]"
        code = f"\x1b[{SGR[change.severity]}m{code}\x1b[0m" if options.color else code
        yield f"  {change.kind:<{len('unchecked')}}  {code} {escape(change.title)}"
        for detail in finding_details(change):
            yield f"  {'':{len('unchecked')}}  {escape(detail)}"
    if len(findings) > len(shown):
        yield f"  ... and {len(findings) - len(shown)} more: {_MORE}"


def finding_details(change: FindingChange) -> Iterator[str]:
    """Where it is and was, what it costs now and before, and which ranks cause it now and before."""
    here = change.location or change.old_location
    if here:
        moved = change.location and change.old_location and change.location.line != change.old_location.line
        was = f" (line {change.old_location.line} in A)" if moved and change.old_location else ""
        yield f"--> {_place(here)}{was}"
    if change.kind == "changed":
        if change.old_ranks != change.new_ranks:
            yield f"{_who(change.new_ranks)} instead of {_who(change.old_ranks)}"
        if change.old_cost_ns is not None and change.new_cost_ns is not None:
            yield f"cost: {precise(change.old_cost_ns)} -> {precise(change.new_cost_ns)}"
    if change.kind == "unchecked":
        yield f"{'A' if change.is_in_new else 'B'} could not be checked for this: {change.why}"


def _who(ranks: tuple[int, ...]) -> str:
    return ranks_phrase(ranks) if ranks else "no rank"


def _place(location: Location) -> str:
    return f"{location.file}:{location.line} in {location.function}"


# Tables, which the page shows as well


def time_sections(changes: Changes, show_all: bool) -> Iterator[Section]:
    heads = ("", "what", "ranks", "A", "B", "change", "noise")
    step = changes.step
    if step and (show_all or step.kind != "same" or step.slow_steps):
        yield Section(f"Step ({_SOURCES[step.source]})", ("", "step", "A", "B", "change", "noise"), _step_rows(step))
    parts = _told(changes.parts, show_all)
    if parts:
        slow = step.slow_steps if step else ()
        of = f"{'step' if len(slow) == 1 else 'steps'} {format_ranks(slow, 6)} of B" if slow else "a step"
        rows = [(time.kind, time.name, *_time_cells(time)) for time in parts]
        yield Section(f"Where the time goes in {of}, per rank", heads, rows)
    for source, title in _SOURCES.items():
        calls = [time for time in _told(changes.collectives, show_all) if time.source == source]
        if calls:
            rows = [(time.kind, _call(time), _PARTS.get(time.part, time.part), *_time_cells(time)) for time in calls]
            titles = (heads[0], "call", "", *heads[2:])
            yield Section(f"Collectives ({title}, per {_basis(calls[0])})", titles, rows)
    kernels = _told(changes.kernels, show_all)
    if kernels:
        is_counted = kernels[0].per == "step"
        rows = [
            (time.kind, _cut(time.name, show_all), *_time_cells(time), *([_counts(time)] if is_counted else []))
            for time in kernels
        ]
        counted_heads = (*heads, "times per step") if is_counted else heads
        yield Section(f"Kernels (per {_basis(kernels[0])})", counted_heads, rows)


def compile_sections(changes: Changes, show_all: bool) -> Iterator[Section]:
    """Times only where something appeared or disappeared: compile times vary from run to run."""
    compile_changes = changes.compile
    if compile_changes is None:
        return
    is_changed = bool(compile_changes.graph_breaks or compile_changes.recompiles or compile_changes.failures)
    for section in change_sections(compile_changes):
        if show_all or (is_changed and section.title != "Caches"):
            yield section


def other_sections(changes: Changes, show_all: bool) -> Iterator[Section]:
    numbers = [number for number in changes.numbers if show_all or number.kind != "same"]
    if numbers:
        yield Section("Metrics", ("", "name", "A", "B", "change", "noise"), [*map(_number_row, numbers)])
    if changes.setup:
        rows = [(change.name, change.old, change.new) for change in changes.setup]
        yield Section("Differences in how they were recorded", ("what", "A", "B"), rows)


def _told(times: Sequence[TimeChange], show_all: bool) -> list[TimeChange]:
    return [time for time in times if show_all or time.kind != "same"]


def _basis(time: TimeChange) -> str:
    return "rank and step" if time.per == "step" else "call"


def _step_rows(step: StepChange) -> list[Sequence[Any]]:
    times = (precise(step.old_ns), precise(step.new_ns), _signed(step.new_ns - step.old_ns))
    rows: list[Sequence[Any]] = [
        (step.kind, f"median of {step.n_old} and {step.n_new}", *times, precise(step.noise_ns))
    ]
    mean = (precise(step.old_mean_ns), precise(step.new_mean_ns), _signed(step.new_mean_ns - step.old_mean_ns))
    rows.append(("", "mean", *mean, ""))
    if step.slow_ns is not None:
        slow = f"{len(step.slow_steps)} slow of B: {format_ranks(step.slow_steps, 6)}"
        rows.append(("slower", slow, "", precise(step.slow_ns), _signed(step.slow_ns - step.old_ns), ""))
    return rows


def _time_cells(time: TimeChange) -> tuple[str, ...]:
    ranks = format_ranks(time.ranks, 6) if time.ranks else "all"
    if time.waits_for:
        ranks = f"{'' if time.part == 'arrival' else ranks + ' '}for {format_ranks(time.waits_for, 6)}"
    cells = ("-" if value is None else precise(value) for value in (time.old_ns, time.new_ns))
    return ranks, *cells, _signed(time.change_ns), precise(time.noise_ns)


def _call(time: TimeChange) -> str:
    here = time.location or time.old_location
    group = f" ({time.group})" if time.group else ""
    if here is None:
        return f"{time.name}{group}"
    moved = time.location and time.old_location and time.location.line != time.old_location.line
    was = f", line {time.old_location.line} in A" if moved and time.old_location else ""
    return f"{time.name}{group} at {PurePath(here.file).name}:{here.line} in {here.function}{was}"


def _cut(name: str, show_all: bool) -> str:
    """Names of kernels run to thousands of characters of template arguments."""
    return name if show_all or len(name) <= _MAX_NAME else name[: _MAX_NAME - 3] + "..."


def _counts(time: TimeChange) -> str:
    counts = ["-" if count is None else f"{count:.3g}" for count in (time.old_count, time.new_count)]
    return counts[0] if counts[0] == counts[1] else " -> ".join(counts)


def _number_row(number: NumberChange) -> Sequence[Any]:
    share = f"{100 * (number.new - number.old) / abs(number.old):+.1f}%" if number.old else ""
    return (
        number.kind,
        number.name,
        *(f"{value:.5g}" for value in (number.old, number.new)),
        share,
        f"{number.noise:.2g}",
    )


def precise(nanoseconds: int) -> str:
    """Three digits, so that small changes of long times can be seen: 8.42 ms."""
    value = float(nanoseconds)
    for unit in ("ns", "us", "ms"):
        if abs(value) < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} s" if abs(value) < 999.5 else f"{value:,.0f} s"


def _signed(nanoseconds: int) -> str:
    return f"{'+' if nanoseconds > 0 else '-' if nanoseconds < 0 else ''}{precise(abs(nanoseconds))}"
