"""Tables and folds of a page. What a reader does not see at first is kept as text and put in when asked for, so that
thousands of compilations do not become hundreds of thousands of elements."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from rankscope.render.html import NOTHING, Html, joined, markup, script_data

ROWS_SHOWN = 200
_EMPTY_CELL = re.compile(markup(r"<td[^>]*></td>"))


class Column(NamedTuple):
    title: str
    is_number: bool = False
    help: str = ""


@dataclass
class Later:
    """HTML that page.js puts into the page: further rows by list, contents of folds by number."""

    lists: dict[str, list[Html]] = field(default_factory=dict)
    folds: list[Html] = field(default_factory=list)

    def cleaned(self, clean: Callable[[Html], Html]) -> Later:
        lists = {name: [*map(clean, items)] for name, items in self.lists.items()}
        return Later(lists, [*map(clean, self.folds)])

    def script(self) -> Html:
        """A block of data, which no policy needs to allow."""
        data = msgspec.json.encode({"lists": self.lists, "folds": self.folds}, enc_hook=str).decode()
        return markup('<script type="application/json" id="later">{}</script>', script_data(data))


def table(later: Later, name: str, columns: Sequence[Column], rows: Sequence[Html], n_shown: int = ROWS_SHOWN) -> Html:
    """A table that can be sorted and searched. The rows are made of `row` and `cell`."""
    if not rows:
        return NOTHING
    heads = joined(
        markup('<th scope="col"{}', _class("num" if column.is_number else ""))
        + (markup(' title="{}"', column.help) if column.help else NOTHING)
        + markup(">{}</th>", column.title)
        for column in columns
    )
    return markup(
        '<div class="wide"><table class="data {}"><thead><tr>{}</tr></thead>{}</table></div>',
        name,
        heads,
        listed(later, "tbody", name, rows, n_shown),
    )


def blocks(later: Later, name: str, items: Sequence[Html], n_shown: int = ROWS_SHOWN) -> Html:
    """Items that are not rows: each is one element."""
    return listed(later, "div", name, items, n_shown) if items else NOTHING


def listed(later: Later, tag: str, name: str, items: Sequence[Html], n_shown: int) -> Html:
    """An element that holds the items; those beyond `n_shown` are added on demand."""
    n_later = len(items) - n_shown
    if n_later > 0:
        later.lists[name] = list(items[n_shown:])
    # page.js writes the same note, with a button; this one is for those who let no script run.
    note = markup(' data-later="{}"', n_later) if n_later > 0 else NOTHING
    return (
        markup('<{} data-list="{}" data-shown="{}"{}>', tag, name, n_shown, note)
        + joined(items[:n_shown])
        + markup("</{}>", tag)
    )


def row(cells: Sequence[Html], anchor: str = "") -> Html:
    return (
        markup("<tr")
        + (markup(' id="{}"', anchor) if anchor else NOTHING)
        + markup(">")
        + joined(cells)
        + markup("</tr>")
    )


def without_empty(columns: Sequence[Column], rows: Sequence[Sequence[Html]]) -> tuple[list[Column], list[list[Html]]]:
    """Leaves out columns of numbers that are empty in every row; the rows are lists of cells."""
    kept = [
        position
        for position, column in enumerate(columns)
        if not column.is_number or any(not _EMPTY_CELL.fullmatch(cells[position]) for cells in rows)
    ]
    return [columns[position] for position in kept], [[cells[position] for position in kept] for cells in rows]


def cell(content: str, value: float | None = None, kind: str = "") -> Html:
    """`value` is what a column of numbers is sorted by."""
    if value is None:
        return markup("<td{}>{}</td>", _class(kind), content)
    return markup('<td class="{}" data-v="{:g}">{}</td>', ("num " + kind).rstrip(), value, content)


def fold(summary: str, body: Html, *, later: Later | None = None, is_open: bool = False, kind: str = "") -> Html:
    """With `later` the body is added when it is first opened."""
    if later is None:
        return markup(
            "<details{}{}><summary>{}</summary>{}</details>", _class(kind), " open" if is_open else "", summary, body
        )
    later.folds.append(body)
    return markup(
        '<details{} data-fold="{}"><summary>{}</summary></details>', _class(kind), len(later.folds) - 1, summary
    )


def link(path: str, content: str, title: str = "") -> Html:
    """To a file of the tree."""
    about = markup(' title="{}"', title) if title else NOTHING
    return markup('<a href="{}"{}>{}</a>', quote(path), about, content)


def outer_link(url: str, content: str) -> Html:
    """To an address from a log. Only a web address becomes a link: `javascript:` would run in the page."""
    if not url.startswith(("https://", "http://")):
        return joined([content])
    return markup('<a href="{}" rel="noreferrer noopener">{}</a>', url, content)


def n_bytes_phrase(number: int) -> str:
    """For people: 812 B, 14 kB, 2.1 MB."""
    if number < 1000:
        return f"{number} B"
    if number < 999_500:
        return f"{number / 1e3:.0f} kB"
    return f"{number / 1e6:.1f} MB" if number < 999_950_000 else f"{number / 1e9:.1f} GB"


def _class(kind: str) -> Html:
    return markup(' class="{}"', kind) if kind else NOTHING
