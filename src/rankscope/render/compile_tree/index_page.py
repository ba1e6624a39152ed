"""index.html of one rank: the verdict, the findings, what compiling cost, then everything else."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

from rankscope.model.finding import Finding, Report, count_noun, format_duration
from rankscope.model.tables import Trace
from rankscope.render.cards import Cards, skipped_checks
from rankscope.render.compile_tree import index_sections as sections
from rankscope.render.compile_tree import rest_sections as rest
from rankscope.render.compile_tree.outputs import RankTree, TreeOptions
from rankscope.render.compile_tree.page_data import RankView, Totals, code_by_line, compilations_of, totals_of
from rankscope.render.compile_tree.page_help import help_html
from rankscope.render.html import NOTHING, Html, joined, markup, page_frame
from rankscope.render.listing import Later, blocks, fold, link

STYLES = ("page.css", "parts.css", "compile.css")
SCRIPTS = ("page.js",)
FINDINGS_SHOWN = 50


def write_index(trace: Trace, report: Report, tree: RankTree, folder: str | Path, options: TreeOptions) -> None:
    """Written last: it links only files that already exist."""
    before, behind = page_frame(_title(tree), STYLES, SCRIPTS)
    with open(Path(folder, "index.html"), "w", encoding="utf-8", errors="replace", newline="\n") as file:
        file.write(before)
        file.writelines(index_parts(trace, report, tree, Path(folder), options))
        file.write(behind)


def index_parts(trace: Trace, report: Report, tree: RankTree, folder: Path, options: TreeOptions) -> Iterator[Html]:
    """The body, piece by piece."""
    view, later = RankView(trace, tree), Later()
    base = options.base.rstrip(os.sep) + os.sep if options.base else ""
    compilations = compilations_of(view)
    page = sections.Page(view, compilations, {each.key: each for each in compilations}, later, base)
    totals = totals_of(view, compilations)
    findings = [finding for finding in report.findings if not finding.ranks or tree.rank in finding.ranks]
    parts = [
        ("findings", "Findings", _findings(page, findings, report, options)),
        ("time", "Compile time", sections.ledger(page)),
        ("recompiles", "Recompilations", sections.chains(page)),
        ("breaks", "Graph breaks", sections.graph_breaks(page)),
        ("caches", "Caches", sections.caches(page)),
        ("stacks", "What was compiled, by call stack", sections.stacks(page)),
        ("compilations", "Compilations and their files", sections.compilation_table(page)),
        ("more", "Other files in this report", rest.other_files(page, folder)),
        ("records", "Records in the log", rest.records(page)),
        ("settings", "Versions and settings", rest.settings(page)),
        ("help", "Help", fold("Compile ids, phases and files explained", help_html())),
    ]
    shown = [(anchor, title, body) for anchor, title, body in parts if body]
    anchors = [anchor for anchor, _, _ in shown]
    yield _bar(tree, anchors)
    yield markup("<main>{}", "" if tree.folder else options.header_html)
    yield _verdict(view, totals, findings, anchors)
    for anchor, title, body in shown:
        yield markup('<section id="{}"><h2>{}<span class="hits"></span></h2>{}</section>\n', anchor, title, body)
    yield markup('<p id="nothing" hidden>Nothing on this page matches all of these words.</p></main>')
    yield later.script()


def _title(tree: RankTree) -> str:
    return "torch.compile" + (f", rank {tree.rank}" if tree.folder and tree.rank >= 0 else "")


def _bar(tree: RankTree, anchors: Sequence[str]) -> Html:
    home = markup("<b>{}</b>", _title(tree))
    if tree.folder:
        home = link("../index.html", "All ranks") + home
    places = joined(markup('<a href="#{}">{}</a>', anchor, anchor.capitalize()) for anchor in anchors)
    search = markup(
        '<input type="search" id="search" placeholder="Search" aria-label="Search this page" autocomplete="off">'
    )
    return markup('<div class="bar"><span class="home">{}</span><nav>{}</nav>{}</div>\n', home, places, search)


def _verdict(view: RankView, totals: Totals, findings: Sequence[Finding], anchors: Sequence[str]) -> Html:
    counts = [
        count_noun(number, severity)
        for severity in ("error", "warning")
        if (number := sum(finding.severity == severity for finding in findings))
    ]
    spent = f"{format_duration(totals.total_ns)} of compile time"
    if not totals.n_compilations:
        said = "Nothing was compiled in this log" + (f": {' and '.join(counts)}" if counts else "")
    else:
        failed = f"{totals.n_failed:,} of {count_noun(totals.n_compilations, 'compilation')} failed"
        healthy = failed if totals.n_failed else f"No problems found in {spent}"
        said = f"{' and '.join(counts)} in {spent}" if counts else healthy
    tiles = joined(_tile(*tile, anchors) for tile in _tiles(totals))
    return markup(
        '<p class="kicker">{}</p><h1>{}</h1><dl class="tiles">{}</dl>\n', joined(_origin(view), " · "), said, tiles
    )


def _origin(view: RankView) -> Iterator[str]:
    for log in view.rows("compile_logs"):
        yield markup("<span>{}</span>", os.path.basename(log["plain_path"]))
        if log["torch_version"]:
            yield f"torch {log['torch_version']}"
        if log["first_ns"] > 0:
            began = datetime.fromtimestamp(log["first_ns"] / 1e9, timezone.utc)
            yield f"{began:%Y-%m-%d %H:%M} UTC" + ("" if log["clock"] == "absolute" else " (year and zone assumed)")
        if log["is_cut"]:
            yield markup("<b>truncated</b>")


def _tiles(totals: Totals) -> Iterator[tuple[str, str, str, str]]:
    """(number, of what, what to know about it, where it leads)"""
    failed = f"{totals.n_failed:,} failed" if totals.n_failed else ""
    yield f"{totals.n_compilations:,}", "compilations", failed, "compilations"
    yield format_duration(totals.total_ns), "compile time", "", "time"
    cost = format_duration(totals.recompile_ns) if totals.n_recompilations else ""
    yield f"{totals.n_recompilations:,}", "recompilations", cost, "recompiles"
    places = count_noun(totals.n_distinct_breaks, "place") if totals.n_breaks else ""
    yield f"{totals.n_breaks:,}", "graph breaks", places, "breaks"
    bypassed = f", {totals.n_bypasses:,} bypassed" if totals.n_bypasses else ""
    yield f"{totals.n_hits:,}", "cache hits", f"{totals.n_misses:,} missed{bypassed}", "caches"


def _tile(number: str, noun: str, detail: str, anchor: str, anchors: Sequence[str]) -> Html:
    named = markup('<a href="#{}">{}</a>', anchor, noun) if anchor in anchors else noun
    return markup("<div><dt>{}</dt><dd>{} <small>{}</small></dd></div>", named, number, detail)


def _findings(page: sections.Page, findings: Sequence[Finding], report: Report, options: TreeOptions) -> Html:
    cards = Cards(code_by_line(page.view), options.meanings, options.base)
    # What is good to know must not push what is wrong off the screen.
    is_healthy = all(finding.severity == "info" for finding in findings)
    shown = [
        cards.card(f"finding-{number}", finding, is_open=is_healthy or finding.severity != "info")
        for number, finding in enumerate(findings, start=1)
    ]
    n_elsewhere = len(report.findings) - len(findings)
    notes = NOTHING if shown else markup("<p>No problems found in this log.</p>")
    if n_elsewhere:
        elsewhere = count_noun(n_elsewhere, "finding")
        notes += markup('<p class="faint">{} about other ranks: {}.</p>', elsewhere, link("../index.html", "all ranks"))
    return blocks(page.later, "cards", shown, FINDINGS_SHOWN) + notes + skipped_checks(report.checks)
