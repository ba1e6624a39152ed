"""The report for people, line by line: the verdict first, what to do, then the evidence.

Every span of text passes through `escape` on its way out, so nothing in a trace can steer the terminal.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from rankscope.model.border import PLEASE_REPORT
from rankscope.model.finding import Capture, Finding, Location, Report, count_noun, ranks_phrase
from rankscope.model.source_text import source_line
from rankscope.render import Options
from rankscope.render.compare import comparison_lines
from rankscope.render.escape import escape
from rankscope.render.finding_words import (
    capture_parts,
    failed_phrases,
    found_phrase,
    merged_stacks,
    peers_phrase,
    ranks_part,
    remarks_of,
    skipped_phrases,
    sources_phrase,
    stack_owners,
    time_part,
    where_parts,
    worlds_parts,
)
from rankscope.render.source import code_folder, package_of, shown_path, typed_paths, with_paths

EXTENSION = "txt"
MAX_FULL_FINDINGS = 5
MAX_FRAMES = 4
MAX_TYPED = 3  # with more paths than these, a command says PATH
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
    options = options._replace(
        code_folder=code_folder(report, options.base),
        typed_paths=typed_paths(report.capture.paths, options.base) if len(report.capture.paths) <= MAX_TYPED else "",
    )
    lines = _quiet_lines(report, options) if options.quiet else _report_lines(report, options)
    for line in lines:
        yield "".join(_paint(span, options.color) for span in line).rstrip(" ")


def report_text(report: Report) -> str:
    """What `print(report)` shows."""
    return "\n".join(render(report, Options(base=os.getcwd())))


def _paint(span: Span, color: bool) -> str:
    text = escape(span.text)
    return f"\x1b[{SGR[span.style]}m{text}\x1b[0m" if color and span.style and text else text


def _quiet_lines(report: Report, options: Options) -> Iterator[Line]:
    for finding in report.findings:
        yield from _brief(finding, options)
    if not report.findings:
        yield [Span(f"{found_phrase(report)}.", "title")]


def _report_lines(report: Report, options: Options) -> Iterator[Line]:
    yield from _head(report.capture, options)
    has_problems = bool(report.count("error") or report.count("warning"))
    n_brief = 0
    for number, finding in enumerate(report.findings):
        is_minor = number >= MAX_FULL_FINDINGS or (has_problems and finding.severity == "info" and not options.verbose)
        is_brief = is_minor and not options.show_all
        n_brief += is_brief
        if not is_brief or n_brief == 1:
            yield []
        yield from _brief(finding, options) if is_brief else _finding_lines(finding, options)
    if options.show_all and report.effects:
        yield []
        yield [Span("Effects of the above:", "title")]
        for finding in report.effects:
            yield []
            yield from _finding_lines(finding, options)
    yield []
    yield from _foot(report, n_brief, options)


# Head and foot


def _head(capture: Capture, options: Options) -> Iterator[Line]:
    where = shown_path(capture.paths[0], options.base) if len(capture.paths) == 1 else f"{len(capture.paths)} paths"
    source = f"Read {sources_phrase(capture)} from {where}"
    shown = capture.shown_world()
    if shown is not None:
        yield from _flow([], f"{len(capture.worlds)} worlds side by side: {', '.join(worlds_parts(capture))}", options)
    if not options.verbose and not options.show_all:
        yield from _flow([], [f"{source}: {ranks_part(capture)}", *time_part(capture)], options)
        return
    yield from _flow([], source, options)
    yield from _flow([Span(f"{shown.name}: ")] if shown else [], capture_parts(capture), options)
    if options.code_folder:
        yield from _flow([], f"Code paths are relative to {options.code_folder}", options)


def _foot(report: Report, n_brief: int, options: Options) -> Iterator[Line]:
    folded = []
    if not options.show_all:
        folded += [f"{n_brief} in brief"] if n_brief else []
        folded += [f"{count_noun(len(report.effects), 'effect')} not listed"] if report.effects else []
    remark = f"{', '.join(folded)}: --all" if folded else ""
    yield from _flow([], f"{found_phrase(report, remark)}.", options, style="title")
    for phrase in failed_phrases(report.checks):
        yield from _flow([Span("Check failed: ", "warning")], f"{phrase}; {PLEASE_REPORT}", options)
    yield from _checked(report, options)
    if options.page_command:
        yield [Span("As a page: "), Span(options.page_command, "title")]
    if options.next_command:
        yield [Span("Next: "), Span(options.next_command, "title")]


def _checked(report: Report, options: Options) -> Iterator[Line]:
    """An answer must say what it is based on: one line, or all the rules by name."""
    ran = [check.rule for check in report.checks if check.status == "ran"]
    if not options.verbose and not options.show_all:
        if report.checks:
            rest = "" if len(ran) == len(report.checks) else "; -v lists the others and why they were skipped"
            yield from _flow([], f"Checked {len(ran)} of {count_noun(len(report.checks), 'rule')}{rest}", options)
        return
    broken = {finding.rule for finding in (*report.findings, *report.effects)}
    passed = [rule for rule in ran if rule not in broken]
    if passed:
        yield from _flow([Span("Checked, no problem: ")], ", ".join(passed), options)
    for phrase in skipped_phrases(report.checks):
        yield from _flow([Span("Not checked: ")], phrase, options)


# One finding


def _finding_lines(finding: Finding, options: Options) -> Iterator[Line]:
    sites = [site for site in (finding.peer_location, finding.location) if site]
    gutter = max(3, *(len(str(site.line)) for site in sites), 0)
    yield from _title(finding, options)
    yield from _remarks(finding, gutter, options, ("help", "restart"))
    where = where_parts(finding)
    if where:
        yield from _flow([Span(" " * (gutter - 1) + "--> ", "frame")], where, options)
    if finding.evidence.comparison:
        yield from _comparison(finding, gutter, options)
    yield from _locations(finding, gutter, options)
    yield from _stacks(finding, gutter, options)
    yield from _remarks(finding, gutter, options, ("certain", "likely", "note"))


def _brief(finding: Finding, options: Options) -> Iterator[Line]:
    yield from _title(finding, options)
    yield from _remarks(finding, 3, options, ("help",))


def _title(finding: Finding, options: Options) -> Iterator[Line]:
    head = [Span(f"{finding.severity}[{finding.code}] ", finding.severity), Span(f"({finding.certainty}) ")]
    yield from _flow(head, finding.title, options, style="title", indent=2)


def _comparison(finding: Finding, gutter: int, options: Options) -> Iterator[Line]:
    assert finding.evidence.comparison
    bar = " " * gutter + "| "
    width = options.width and options.width - len(bar) - 2
    for text, is_marked in comparison_lines(finding.evidence.comparison, width):
        sign = Span("> ", "mark") if is_marked else Span("  ")
        yield [Span(bar, "frame"), sign, Span(text, "title" if is_marked else "")]


def _locations(finding: Finding, gutter: int, options: Options) -> Iterator[Line]:
    """Both code sites with their callers, the peers' first; they are one if the ranks differ only in data."""
    sites = _sites(finding)
    shown = [_shown_location(site, options) for site, _ in sites]
    callers = [[] if options.show_all else _callers(finding, site, options) for site, _ in sites]
    is_shared = len(sites) == 2 and callers[0] == callers[1]
    column = max(map(len, shown), default=0)
    for (site, whose), text, called_from in zip(sites, shown, callers, strict=True):
        yield from _site_line(text.ljust(column), whose, gutter, options)
        code = source_line(site, options.base) if options.source else None
        if code:
            yield [Span(f"{site.line:>{gutter}}| ", "frame"), Span(_clipped(code, gutter + 2, options))]
        if called_from and not (is_shared and site is sites[0][0]):
            bar = [
                Span(" " * gutter + "| ", "frame"),
                Span("both called from " if is_shared else "called from ", "faint"),
            ]
            yield from _flow(bar, called_from, options, style="faint")


def _sites(finding: Finding) -> list[tuple[Location, str]]:
    """(where, which ranks)"""
    culprits = ranks_phrase(finding.ranks) if finding.ranks else ""
    if finding.peer_location and finding.peer_location == finding.location:
        return [(finding.peer_location, " and ".join(filter(None, (peers_phrase(finding), culprits))))]
    sites = [(finding.peer_location, peers_phrase(finding))] if finding.peer_location else []
    return [*sites, (finding.location, culprits)] if finding.location else sites


def _callers(finding: Finding, site: Location, options: Options) -> list[str]:
    """The file of the site itself, which is shown just above, goes without its folder."""
    stack = next((stack for stack in merged_stacks(finding.evidence.stacks) if stack.frames[:1] == (site,)), None)
    file = _shown_location(site, options).partition(":")[0]
    frames = _shown_frames(stack.frames[1:], options) if stack else []
    return [os.path.basename(file) + frame[len(file) :] if frame.startswith(f"{file}:") else frame for frame in frames]


def _site_line(text: str, whose: str, gutter: int, options: Options) -> Iterator[Line]:
    """The ranks follow their code site, on the next line if a long path leaves no room."""
    arrow = Span(" " * (gutter - 1) + "--> ", "frame")
    whose = escape(whose)
    if options.width is None or len(arrow.text) + len(text) + 4 + len(whose) <= options.width:
        yield [arrow, Span(f"{text}    "), Span(whose, "faint")]
    else:
        yield [arrow, Span(text.rstrip())]
        yield from _flow([Span(" " * len(arrow.text))], whose, options, style="faint")


def _stacks(finding: Finding, gutter: int, options: Options) -> Iterator[Line]:
    bar = Span(" " * gutter + "| ", "frame")
    shown_above = {finding.location, finding.peer_location}
    for stack in merged_stacks(finding.evidence.stacks):
        if not stack.frames or (stack.frames[0] in shown_above and (not options.show_all or len(stack.frames) == 1)):
            continue  # a code site with its callers has said it
        yield from _flow([bar], f"stack of {stack_owners(stack)}, innermost frame first:", options, style="faint")
        for text in _shown_frames(stack.frames, options):
            yield [bar, Span(f"  {text}", "faint" if text.startswith("...") else "")]
        if options.show_all and stack.n_hidden:
            yield [bar, Span(f"  ... {count_noun(stack.n_hidden, 'frame')} in torch and launchers ...", "faint")]


def _shown_frames(frames: Sequence[Location], options: Options) -> list[str]:
    """The user's frames; those of frameworks between them are folded, and so are outer ones beyond the first few."""
    if options.show_all:
        return [_shown_location(frame, options) for frame in frames]
    has_users = any(not package_of(frame.file) for frame in frames)
    texts: list[str] = []
    n_left = MAX_FRAMES
    for package, run in groupby(frames, key=lambda frame: package_of(frame.file) if has_users else ""):
        same = list(run)
        if package and n_left:
            texts.append(f"... {count_noun(len(same), 'frame')} in {escape(package)} ...")
        elif not package:
            texts += [_shown_location(frame, options) for frame in same[:n_left]]
            n_left = max(0, n_left - len(same))
    n_users = sum(not has_users or not package_of(frame.file) for frame in frames)
    n_more = n_users - MAX_FRAMES
    return texts + ([f"... {count_noun(n_more, 'more frame')} (--all)"] if n_more > 0 else [])


def _remarks(finding: Finding, gutter: int, options: Options, labels: Sequence[str]) -> Iterator[Line]:
    for label, text in remarks_of(finding):
        if label in labels:
            style, shown = ("help", "fix") if label == "help" else ("label", label)
            label_spans = [Span(" " * gutter + "= ", "frame"), Span(f"{shown + ':':9}", style)]
            yield from _flow(label_spans, with_paths(text, options.typed_paths), options)


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
    return escape(
        f"{shown_path(location.file, options.base, options.code_folder)}:{location.line} in {location.function}"
    )
