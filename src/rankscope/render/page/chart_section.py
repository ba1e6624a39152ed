"""What surrounds a chart: a heading, a sentence, the numbers as a table, and what the table leaves out."""

from __future__ import annotations

from collections.abc import Sequence

from rankscope.model.finding import count_noun
from rankscope.render.html import NOTHING, Html, joined, markup
from rankscope.render.listing import Column, fold, table
from rankscope.render.page.contents import Contents

WORST = 20  # bars of a chart, and rows that a table shows at first
MAX_ROWS = 200  # of a table: 16,384 ranks would fill the page


def section(anchor: str, title: str, said: str, *content: Html) -> Html:
    return markup('<h3 id="{}">{}</h3><p>{}</p>', anchor, title, said) + joined(content)


def table_below(contents: Contents, name: str, columns: Sequence[Column], rows: Sequence[Html], about: str) -> Html:
    """The numbers of a chart, folded: plain rows for keyboards, screen readers and search, the worst first."""
    shown = table(contents.later, name, columns, rows, WORST)
    return fold(f"{about} as a table", shown, kind="rows") if rows else NOTHING


def more_rows(n_rows: int, noun: str, command: str) -> Html:
    """What a table leaves out, and where it is."""
    if n_rows <= MAX_ROWS:
        return NOTHING
    said = f"The table has the first {MAX_ROWS} of {count_noun(n_rows, noun)}. For all of them:"
    return markup('<p class="faint">{} <code>{}</code></p>', said, command)


def shortened(name: str, limit: int) -> str:
    """Templates make names as long as pages."""
    return name if len(name) <= limit else f"{name[:limit]}… ({len(name):,} characters)"
