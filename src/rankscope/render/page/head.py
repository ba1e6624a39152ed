"""The top of the page: the verdict, what was captured, the holes in it, and what the page does not show."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from rankscope.model.finding import count_noun, format_duration, ranks_phrase
from rankscope.render.cards import prose
from rankscope.render.finding_words import headline, sources_phrase, time_span, worlds_parts
from rankscope.render.html import NOTHING, Html, joined, markup, text
from rankscope.render.page.contents import Contents, View

_MAX_PATHS = 3


def page_title(contents: Contents) -> str:
    first = next(iter(contents.report.findings), None)
    return f"{first.code}: {headline(first)}" if first else "rankscope: no problems found"


def head_html(contents: Contents, views: Sequence[View]) -> Html:
    return (
        _bar(views)
        + markup("<main>")
        + _verdict(contents)
        + _tiles(contents)
        + _worlds(contents)
        + _holes(contents)
        + _remarks(contents)
    )


def _bar(views: Sequence[View]) -> Html:
    links = joined(_nav_link(view) for view in views)
    search = markup(
        '<input type="search" id="search" placeholder="Search  /" aria-label="Search this page" autocomplete="off">'
    )
    theme = markup(
        '<button type="button" id="theme" aria-label="Toggle dark mode" title="Toggle dark mode" hidden>◐</button>'
    )
    return markup(
        '<div class="bar"><span class="home"><b>rankscope</b></span><nav>{}</nav>{}{}</div>\n', links, search, theme
    )


def _nav_link(view: View) -> Html:
    kind = markup(' class="absent" title="no data"') if view.is_absent else NOTHING
    badge = markup(" <small>{}</small>", view.badge) if view.badge else NOTHING
    return markup('<a href="#{}"{}>{}{}</a>', view.anchor, kind, view.title, badge)


def _verdict(contents: Contents) -> Html:
    report = contents.report
    first = next(iter(report.findings), None)
    notes = [count_noun(n, "note")] if (n := report.count("info")) else []
    problems = [count_noun(n, severity) for severity in ("error", "warning") if (n := report.count(severity))]
    if first and first.severity != "info":
        said = prose(headline(first))
    else:
        said = text("".join(["No problems found", *(f" ({each})" for each in notes)]))
    kicker = " · ".join(filter(None, (_where(contents), *problems, *notes)))
    return markup('<p class="kicker">{}</p><h1>{}</h1>\n', kicker, said)


def _where(contents: Contents) -> str:
    paths = contents.report.capture.paths
    if contents.options.redact:  # a path may be a single word, which looks like any other
        return count_noun(len(paths), "path")
    shown = ", ".join(map(os.fspath, paths[:_MAX_PATHS]))
    return shown + (f" and {len(paths) - _MAX_PATHS:,} more" if len(paths) > _MAX_PATHS else "")


def _tiles(contents: Contents) -> Html:
    tiles = joined(
        markup("<div><dt>{}</dt><dd>{} <small>{}</small></dd></div>", noun, number, detail)
        for number, noun, detail in _numbers(contents)
    )
    return markup('<dl class="tiles">{}</dl><p class="sources">{}</p>\n', tiles, _sources(contents))


def _numbers(contents: Contents) -> Iterator[tuple[str, str, str]]:
    """(number, noun, detail)"""
    capture = contents.report.capture
    n_missing = max(0, capture.world_size - len(capture.ranks))
    yield (*_counted(len(capture.ranks), "rank"), f"of {capture.world_size:,}" if n_missing else "")
    if capture.hosts:
        yield (*_counted(len(capture.hosts), "host"), "")
    if capture.n_groups:
        yield (*_counted(capture.n_groups, "process group"), "")
    if capture.n_calls:
        yield (*_counted(capture.n_calls, "recorded call"), "")
    if capture.n_steps and capture.step_ns is not None:
        yield (*_counted(capture.n_steps, "step"), f"of {format_duration(capture.step_ns)}")
    if capture.first_ns is not None and capture.last_ns is not None:
        yield format_duration(capture.last_ns - capture.first_ns), "time span", ""


def _counted(n: int, noun: str) -> tuple[str, str]:
    number, _, words = count_noun(n, noun).partition(" ")
    return number, words


def _sources(contents: Contents) -> str:
    capture = contents.report.capture
    parts = [f"Read {sources_phrase(capture)}"]
    if capture.devices:
        parts.append(" and ".join(capture.devices[:2]))
    if capture.first_ns is not None and capture.last_ns is not None:
        parts.append(time_span(capture.first_ns, capture.last_ns))
    return "; ".join(parts) + "."


def _worlds(contents: Contents) -> Html:
    """Says which of several worlds the page shows: each of them has a rank 0."""
    capture = contents.report.capture
    shown = capture.shown_world()
    if shown is None:
        return NOTHING
    other = next(world for world in capture.worlds if world is not shown)
    said = (
        f"{len(capture.worlds)} worlds were alive side by side: {', '.join(worlds_parts(capture))}. The findings are "
        f"from all of them. The numbers above and every other view show {shown.name}. To see {other.name}, "
        f"add --capture {other.number}."
    )
    return markup('<p class="holes">{}</p>\n', said)


def _holes(contents: Contents) -> Html:
    """What is missing from the capture, before the reader trusts the rest."""
    capture = contents.report.capture
    missing = sorted(set(range(capture.world_size)) - set(capture.ranks))
    holes = [f"No data from {ranks_phrase(missing, 8)}."] if missing else []
    files = contents.trace.table("files")
    n_damaged = int(files.text("status").equals("damaged").sum())
    if n_damaged:
        holes.append(f"{count_noun(n_damaged, 'file')} could not be read completely.")
    if not holes:
        return NOTHING
    return markup('<p class="holes">{} <a href="#capture">What was read</a></p>\n', " ".join(holes))


def _remarks(contents: Contents) -> Html:
    said = list(contents.remarks)
    if contents.options.redact:
        said.append("Source lines, directories and host names were left out (--redact).")
    elif not contents.options.source:
        said.append("Source lines were left out (--no-source).")
    return markup('<p class="remarks">{}</p>\n', " ".join(said)) if said else NOTHING
