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
from rankscope.render.compile_tree.index_sections import Page, counted
from rankscope.render.compile_tree.outputs import RankTree, TreeOptions
from rankscope.render.compile_tree.page_data import (
    RankView,
    Totals,
    code_by_line,
    compilations_of,
    kinds_of,
    settings_of,
    stray_stacks_of,
    totals_of,
)
from rankscope.render.compile_tree.page_help import KINDS, help_html
from rankscope.render.compile_tree.stack_trie import trie_html
from rankscope.render.html import NOTHING, Html, joined, markup, page_frame, text
from rankscope.render.listing import Column, Later, blocks, cell, fold, link, n_bytes_phrase, row, table

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
        ("more", "Other files in this report", other_files(page, folder)),
        ("records", "Records in the log", records(page)),
        ("settings", "Versions and settings", settings(page)),
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


# The sections at the end: other files, records, stray stacks


FILES_OF_A_REPORT = (
    ("failures_and_restarts.html", "Failures and restarts", "every compilation that failed or restarted, and why"),
    ("chromium_events.json", "Timeline", "every phase of every compilation, for Perfetto"),
    ("collectives_parity.json", "Collectives parity", "collectives in the schedule compared with those in the code"),
    ("compile_directory.json", "Directory", "the files by compile id, for scripts"),
    ("raw.jsonl", "Records", "every record without its payload, one per line, for scripts"),
    ("raw.log", "The log", "as torch wrote it"),
)


def other_files(page: Page, folder: Path) -> Html:
    listed = [(name, title, what) for name, title, what in FILES_OF_A_REPORT if (folder / name).exists()]
    listed += [
        (path.name, f"Provenance of {path.stem.removeprefix('provenance_tracking_')}", "graphs and code side by side")
        for path in sorted(folder.glob("provenance_tracking_*.html"))
    ]
    items = joined(markup("<dt>{}</dt><dd>{}</dd>", link(name, text(title)), what) for name, title, what in listed)
    timeline = NOTHING
    if (folder / "chromium_events.json").exists():
        timeline = markup(
            '<p>To see the timeline, open <a href="https://ui.perfetto.dev" rel="noreferrer noopener">ui.perfetto.dev'
            "</a> and drop <code>chromium_events.json</code> on it: Perfetto reads it in the browser and uploads "
            "nothing.</p>"
        )
    return markup('<dl class="others">{}</dl>{}', items, timeline) if items else NOTHING


def records(page: Page) -> Html:
    columns = [Column("Kind"), Column("Records", True), Column("Size", True), Column("What it is")]
    unknown = "unknown to this version; kept as logged"
    made = [
        row(
            [
                cell(markup("<code>{}</code>", each.kind) if each.kind else markup("<b>not understood</b>")),
                counted(each.n_records),
                cell(n_bytes_phrase(each.n_bytes), each.n_bytes),
                cell(text(KINDS.get(each.kind, unknown if each.kind else "damaged records; raw.log has them"))),
            ]
        )
        for each in kinds_of(page.view)
    ]
    kinds = fold("What the log consists of", table(page.later, "kinds", columns, made)) if made else NOTHING
    return kinds + stray_stacks(page)


def settings(page: Page) -> Html:
    versions, configs = settings_of(page.view)
    said = joined(
        markup("<dt>{}</dt><dd>{}</dd>", name.removesuffix("_version"), value) for name, value in versions.items()
    )
    return (markup('<dl class="others">{}</dl>', said) if said else NOTHING) + joined(
        _config(page, *config) for config in configs.items()
    )


def _config(page: Page, name: str, values: dict[str, str]) -> Html:
    made = [
        row([cell(markup("<code>{}</code>", setting)), cell(markup("<code>{}</code>", value))])
        for setting, value in sorted(values.items())
    ]
    shown = table(page.later, name, [Column("Setting"), Column("Value")], made, 1000)
    return fold(
        markup('{} <span class="faint">{}</span>', name, count_noun(len(values), "setting")),
        shown,
        later=page.later,
    )


def stray_stacks(page: Page) -> Html:
    """Where torch logged something outside of any compilation; it logs the stack when it expected one."""
    hanging = (
        (stray.frames, markup('<span class="chip missing">{}</span>', stray.what))
        for stray in stray_stacks_of(page.view)
    )
    drawn = trie_html("strays", hanging, page.base, page.later)
    return fold("Call stacks of records without a compile id", drawn) if drawn else NOTHING
