"""The report for people, line by line: the verdict first, then both sides of the evidence, then what to do.

Every span of text passes through `escape` on its way out, so nothing in a trace can steer the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rankscope.model.finding import (
    Capture,
    Finding,
    Location,
    Report,
    count_noun,
    ranks_phrase,
)
from rankscope.render import Options
from rankscope.render.compare import comparison_lines
from rankscope.render.escape import escape
from rankscope.render.finding_words import (
    capture_parts,
    found_counts,
    merged_stacks,
    peers_phrase,
    remarks_of,
    skipped_phrase,
    sources_phrase,
    where_parts,
)
from rankscope.render.source import shown_path, source_line

MAX_FULL_FINDINGS = 5
MAX_FRAMES = 3
# Meaning never hangs on colour alone: each style only repeats what a word or a sign beside it says.
SGR = {
    "error": "1;31",
    "warning": "1;33",
    "info": "1;36",
    "title": "1",
    "frame": "34",
    "mark": "1;31",
    "label": "1;36",
    "help": "1;32",
    "faint": "2",
}


class Span(NamedTuple):
    text: str
    style: str = ""


Line = list[Span]


def render(report: Report, options: Options) -> Iterator[str]:
    for line in _report_lines(report, options):
        yield "".join(_paint(span, options.color) for span in line).rstrip(" ")


def _paint(span: Span, color: bool) -> str:
    text = escape(span.text)
    return f"\x1b[{SGR[span.style]}m{text}\x1b[0m" if color and span.style and text else text


def _report_lines(report: Report, options: Options) -> Iterator[Line]:
    yield from _head(report.capture, options)
    n_full = len(report.findings) if options.show_all else MAX_FULL_FINDINGS
    for finding in report.findings[:n_full]:
        yield []
        yield from _finding_lines(finding, options)
    if report.findings[n_full:]:
        yield []
        for finding in report.findings[n_full:]:
            yield from _title(finding, options)
    if options.show_all and report.effects:
        yield []
        yield [Span("Effects of the above:", "title")]
        for finding in report.effects:
            yield []
            yield from _finding_lines(finding, options)
    yield []
    yield from _foot(report, options)


# Head and foot


def _head(capture: Capture, options: Options) -> Iterator[Line]:
    where = shown_path(capture.paths[0], options.base) if len(capture.paths) == 1 else f"{len(capture.paths)} paths"
    yield from _flow([], f"Read {sources_phrase(capture)} from {where}", options)
    yield from _flow([], capture_parts(capture), options)


def _foot(report: Report, options: Options) -> Iterator[Line]:
    found = found_counts(report)
    if not options.show_all:
        n_short = max(0, len(report.findings) - MAX_FULL_FINDINGS)
        folded = [f"{n_short} shown by title only"] if n_short else []
        folded += [f"{count_noun(len(report.effects), 'effect')} not listed"] if report.effects else []
        if folded:
            found[-1:] = [f"{found[-1]} ({', '.join(folded)}: --all)"] if found else []
    yield from _flow([], f"Found {', '.join(found) or 'no problem'}.", options, style="title")
    if not found or options.show_all:
        yield from _checked(report, options)
    skipped = skipped_phrase(report.checks, options.show_all)
    if skipped:
        yield from _flow([Span("Not checked: ")], skipped, options)
    if options.page_command:
        yield [Span("As a page: "), Span(options.page_command, "title")]
    if options.next_command:
        yield [Span("Next: "), Span(options.next_command, "title")]


def _checked(report: Report, options: Options) -> Iterator[Line]:
    """A clean answer must say what it rests on."""
    broken = {finding.rule for finding in (*report.findings, *report.effects)}
    in_order = [check.rule for check in report.checks if check.status == "ran" and check.rule not in broken]
    if in_order:
        yield from _flow([Span("Checked and in order: ")], ", ".join(in_order), options)


# One finding


def _finding_lines(finding: Finding, options: Options) -> Iterator[Line]:
    sites = [site for site in (finding.peer_location, finding.location) if site]
    gutter = max(3, *(len(str(site.line)) for site in sites), 0)
    yield from _title(finding, options)
    where = where_parts(finding)
    if where:
        yield from _flow([Span(" " * (gutter - 1) + "--> ", "frame")], where, options)
    if finding.evidence.comparison:
        yield from _comparison(finding, gutter, options)
    yield from _locations(finding, gutter, options)
    yield from _stacks(finding, gutter, options)
    yield from _remarks(finding, gutter, options)


def _title(finding: Finding, options: Options) -> Iterator[Line]:
    head = [Span(f"{finding.severity}[{finding.code}] ", finding.severity)]
    yield from _flow(head, finding.title, options, style="title", indent=2)


def _comparison(finding: Finding, gutter: int, options: Options) -> Iterator[Line]:
    assert finding.evidence.comparison
    bar = " " * gutter + "| "
    width = options.width and options.width - len(bar) - 2
    for text, is_marked in comparison_lines(finding.evidence.comparison, width):
        sign = Span("> ", "mark") if is_marked else Span("  ")
        yield [Span(bar, "frame"), sign, Span(text, "title" if is_marked else "")]


def _locations(finding: Finding, gutter: int, options: Options) -> Iterator[Line]:
    """Both code sites, the peers' first; they are one when the ranks differ in data only."""
    culprits = ranks_phrase(finding.ranks) if finding.ranks else ""
    sites: list[tuple[Location, str]] = []
    if finding.peer_location and finding.peer_location == finding.location:
        whose = " and ".join(filter(None, (peers_phrase(finding), culprits)))
        sites = [(finding.peer_location, whose)]
    else:
        if finding.peer_location:
            sites.append((finding.peer_location, peers_phrase(finding)))
        if finding.location:
            sites.append((finding.location, culprits))
    shown = [_shown_location(site, options) for site, _ in sites]
    column = max(map(len, shown), default=0)
    for (site, whose), text in zip(sites, shown, strict=True):
        yield from _site_line(text.ljust(column), whose, gutter, options)
        code = source_line(site, options.base) if options.source else None
        if code:
            yield [Span(f"{site.line:>{gutter}}| ", "frame"), Span(_clipped(code, gutter + 2, options))]


def _site_line(text: str, whose: str, gutter: int, options: Options) -> Iterator[Line]:
    """The ranks stand behind their code site, or below it where a long path leaves no room."""
    arrow = Span(" " * (gutter - 1) + "--> ", "frame")
    whose = escape(whose)
    if options.width is None or len(arrow.text) + len(text) + 4 + len(whose) <= options.width:
        yield [arrow, Span(f"{text}    "), Span(whose, "faint")]
    else:
        yield [arrow, Span(text.rstrip())]
        yield from _flow([Span(" " * len(arrow.text))], whose, options, style="faint")


def _stacks(finding: Finding, gutter: int, options: Options) -> Iterator[Line]:
    bar = Span(" " * gutter + "| ", "frame")
    for stack in merged_stacks(finding.evidence.stacks):
        if not stack.frames or stack.frames in ((finding.location,), (finding.peer_location,)):
            continue  # the code sites above have said it
        n_shown = len(stack.frames) if options.show_all else MAX_FRAMES
        yield [bar, Span(f"stack of {stack.label or ranks_phrase(stack.ranks)}, innermost first:", "faint")]
        for frame in stack.frames[:n_shown]:
            yield [bar, Span("  " + _shown_location(frame, options))]
        if n_shown < len(stack.frames):
            yield [bar, Span(f"  ... {count_noun(len(stack.frames) - n_shown, 'more frame')} (--all)", "faint")]
        if options.show_all and stack.n_hidden:
            yield [bar, Span(f"  ({count_noun(stack.n_hidden, 'frame')} of torch left out)", "faint")]


def _remarks(finding: Finding, gutter: int, options: Options) -> Iterator[Line]:
    for label, text in remarks_of(finding):
        style = "help" if label == "help" else "label"
        yield from _flow([Span(" " * gutter + "= ", "frame"), Span(f"{label + ':':9}", style)], text, options)


# Layout


def _flow(
    head: Line, text: str | Sequence[str], options: Options, style: str = "", indent: int | None = None
) -> Iterator[Line]:
    """`head`, then `text`, which continues under its own beginning (or at `indent`) where the width ends.

    A sequence is a list of parts that are broken only between them, as long as each fits on a line.
    """
    n_head = sum(len(span.text) for span in head)
    n_indent = n_head if indent is None else indent
    row, room = "", None if options.width is None else options.width - n_head
    for word in _words(text, None if options.width is None else options.width - max(n_head, n_indent)):
        if row and room is not None and len(row) + 1 + len(word) > room:
            yield [*head, Span(row, style)]
            head, row, room = [Span(" " * n_indent)], word, options.width and options.width - n_indent
        else:
            row = f"{row} {word}" if row else word
    yield [*head, Span(row, style)]


def _words(text: str | Sequence[str], room: int | None) -> Iterator[str]:
    if isinstance(text, str):
        yield from escape(text).split(" ")
        return
    for number, part in enumerate(text, start=1):
        part = escape(part) + ("," if number < len(text) else "")
        if room is not None and len(part) > room:
            yield from part.split(" ")
        else:
            yield part


def _clipped(text: str, n_before: int, options: Options) -> str:
    text = escape(text)
    if options.width is None or n_before + len(text) <= options.width:
        return text
    return text[: max(options.width - n_before - 3, 20)] + "..."


def _shown_location(location: Location, options: Options) -> str:
    return escape(f"{shown_path(location.file, options.base)}:{location.line} in {location.function}")
