"""The top of the page: the verdict, what was captured, the holes in it, and what the page does not show."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from rankscope.model.finding import count_noun, format_duration, format_ranks
from rankscope.render.cards import prose
from rankscope.render.finding_words import found_counts, headline, sources_phrase, time_span
from rankscope.render.html import text
from rankscope.render.page.contents import Contents, View

_MAX_PATHS = 3


def page_title(contents: Contents) -> str:
    first = next(iter(contents.report.findings), None)
    return f"{first.code}: {headline(first)}" if first else "rankscope: nothing found"


def head_html(contents: Contents, views: Sequence[View]) -> str:
    return _bar(views) + "<main>" + _verdict(contents) + _tiles(contents) + _holes(contents) + _remarks(contents)


def _bar(views: Sequence[View]) -> str:
    links = "".join(_nav_link(view) for view in views)
    search = (
        '<input type="search" id="search" placeholder="Search  /" aria-label="Search this page" autocomplete="off">'
    )
    theme = '<button type="button" id="theme" aria-label="Light or dark" title="Light or dark" hidden>◐</button>'
    return f'<div class="bar"><span class="home"><b>rankscope</b></span><nav>{links}</nav>{search}{theme}</div>\n'


def _nav_link(view: View) -> str:
    kind = ' class="absent" title="no data"' if view.is_absent else ""
    badge = f" <small>{text(view.badge)}</small>" if view.badge else ""
    return f'<a href="#{view.anchor}"{kind}>{text(view.title)}{badge}</a>'


def _verdict(contents: Contents) -> str:
    report = contents.report
    first = next(iter(report.findings), None)
    said = prose(headline(first)) if first and first.severity != "info" else "Nothing to mend was found"
    kicker = " · ".join(filter(None, (_where(contents), *found_counts(report))))
    return f'<p class="kicker">{kicker}</p><h1>{said}</h1>\n'


def _where(contents: Contents) -> str:
    paths = contents.report.capture.paths
    if contents.options.redact:  # a path may be a single word, which looks like any other
        return count_noun(len(paths), "path")
    shown = ", ".join(map(os.fspath, paths[:_MAX_PATHS]))
    return text(shown + (f" and {len(paths) - _MAX_PATHS:,} more" if len(paths) > _MAX_PATHS else ""))


def _tiles(contents: Contents) -> str:
    tiles = "".join(
        f"<div><dt>{text(noun)}</dt><dd>{text(number)} <small>{text(detail)}</small></dd></div>"
        for number, noun, detail in _numbers(contents)
    )
    return f'<dl class="tiles">{tiles}</dl><p class="sources">{text(_sources(contents))}</p>\n'


def _numbers(contents: Contents) -> Iterator[tuple[str, str, str]]:
    """(number, of what, what to know about it)"""
    capture = contents.report.capture
    n_missing = max(0, capture.world_size - len(capture.ranks))
    yield f"{len(capture.ranks):,}", "ranks", f"of {capture.world_size:,}" if n_missing else ""
    if capture.hosts:
        yield f"{len(capture.hosts):,}", "hosts", ""
    if capture.n_groups:
        yield f"{capture.n_groups:,}", "process groups", ""
    if capture.n_calls:
        yield f"{capture.n_calls:,}", "recorded calls", ""
    if capture.n_steps and capture.step_ns is not None:
        yield f"{capture.n_steps:,}", "steps", f"of {format_duration(capture.step_ns)}"
    if capture.first_ns is not None and capture.last_ns is not None:
        yield format_duration(capture.last_ns - capture.first_ns), "time span", ""


def _sources(contents: Contents) -> str:
    capture = contents.report.capture
    parts = [f"Read {sources_phrase(capture)}"]
    if capture.devices:
        parts.append(" and ".join(capture.devices[:2]))
    if capture.first_ns is not None and capture.last_ns is not None:
        parts.append(time_span(capture.first_ns, capture.last_ns))
    return "; ".join(parts) + "."


def _holes(contents: Contents) -> str:
    """What is missing from the capture, before anybody trusts what is there."""
    capture = contents.report.capture
    missing = sorted(set(range(capture.world_size)) - set(capture.ranks))
    holes = (
        [f"Nothing was read of {count_noun(len(missing), 'rank')}: {format_ranks(missing, limit=8)}."]
        if missing
        else []
    )
    files = contents.trace.table("files")
    n_damaged = int(files.text("status").equals("damaged").sum())
    if n_damaged:
        holes.append(f"{count_noun(n_damaged, 'file')} could not be read whole.")
    if not holes:
        return ""
    return f'<p class="holes">{text(" ".join(holes))} <a href="#capture">What was read</a></p>\n'


def _remarks(contents: Contents) -> str:
    said = list(contents.remarks)
    if contents.options.redact:
        said.append("Lines of code, directories and names of hosts were left out (--redact).")
    elif not contents.options.source:
        said.append("Lines of code were left out (--no-source).")
    return f'<p class="remarks">{text(" ".join(said))}</p>\n' if said else ""
