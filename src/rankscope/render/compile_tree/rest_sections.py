"""The end of a rank's index: the other files of the report, what the log consists of, versions and settings."""

from __future__ import annotations

from pathlib import Path

from rankscope.model.finding import count_noun
from rankscope.render.compile_tree.index_sections import Page, counted
from rankscope.render.compile_tree.page_data import kinds_of, settings_of, stray_stacks_of
from rankscope.render.compile_tree.page_help import KINDS
from rankscope.render.compile_tree.stack_trie import trie_html
from rankscope.render.html import NOTHING, Html, joined, markup, text
from rankscope.render.listing import Column, cell, fold, link, n_bytes_phrase, row, table

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
