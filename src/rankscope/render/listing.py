"""Tables and folds of a page. What a reader does not see at first is kept as text and put in when asked for, so that
thousands of compilations do not become hundreds of thousands of elements."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from rankscope.render.html import text

ROWS_SHOWN = 200
_EMPTY_CELL = re.compile(r"<td[^>]*></td>")


class Column(NamedTuple):
    title: str
    is_number: bool = False
    help: str = ""


@dataclass
class Later:
    """HTML that page.js puts into the page: further rows by list, contents of folds by number."""

    lists: dict[str, list[str]] = field(default_factory=dict)
    folds: list[str] = field(default_factory=list)

    def cleaned(self, clean: Callable[[str], str]) -> Later:
        lists = {name: [*map(clean, items)] for name, items in self.lists.items()}
        return Later(lists, [*map(clean, self.folds)])

    def script(self) -> str:
        """A block of data, which no policy needs to allow. No `<` in it: nothing can end the block early."""
        data = msgspec.json.encode({"lists": self.lists, "folds": self.folds}).decode()
        return '<script type="application/json" id="later">' + data.replace("<", "\\u003c") + "</script>"


def table(later: Later, name: str, columns: Sequence[Column], rows: Sequence[str], n_shown: int = ROWS_SHOWN) -> str:
    """A table that can be sorted and searched. The rows are HTML, made of `row` and `cell`."""
    if not rows:
        return ""
    heads = "".join(
        f'<th scope="col"{_class("num" if column.is_number else "")}'
        + (f' title="{text(column.help)}"' if column.help else "")
        + f">{text(column.title)}</th>"
        for column in columns
    )
    return (
        f'<div class="wide"><table class="data {name}"><thead><tr>{heads}</tr></thead>'
        f"{listed(later, 'tbody', name, rows, n_shown)}</table></div>"
    )


def blocks(later: Later, name: str, items: Sequence[str], n_shown: int = ROWS_SHOWN) -> str:
    """Items that are not rows: each is one element."""
    return listed(later, "div", name, items, n_shown) if items else ""


def listed(later: Later, tag: str, name: str, items: Sequence[str], n_shown: int) -> str:
    """An element that holds the items; those beyond `n_shown` are added on demand."""
    n_later = len(items) - n_shown
    if n_later > 0:
        later.lists[name] = list(items[n_shown:])
    # page.js writes the same note, with a button; this one is for those who let no script run.
    note = f' data-later="{n_later}"' if n_later > 0 else ""
    return f'<{tag} data-list="{name}" data-shown="{n_shown}"{note}>' + "".join(items[:n_shown]) + f"</{tag}>"


def row(cells: Sequence[str], anchor: str = "") -> str:
    return "<tr" + (f' id="{text(anchor)}"' if anchor else "") + ">" + "".join(cells) + "</tr>"


def without_empty(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> tuple[list[Column], list[list[str]]]:
    """Leaves out columns of numbers that are empty in every row; the rows are lists of cells."""
    kept = [
        position
        for position, column in enumerate(columns)
        if not column.is_number or any(not _EMPTY_CELL.fullmatch(cells[position]) for cells in rows)
    ]
    return [columns[position] for position in kept], [[cells[position] for position in kept] for cells in rows]


def cell(content: str, value: float | None = None, kind: str = "") -> str:
    """`content` is HTML; `value` is what a column of numbers is sorted by."""
    if value is None:
        return f"<td{_class(kind)}>{content}</td>"
    return f'<td class="{("num " + kind).rstrip()}" data-v="{value:g}">{content}</td>'


def fold(summary: str, body: str, *, later: Later | None = None, is_open: bool = False, kind: str = "") -> str:
    """A fold; both texts are HTML. With `later` the body is added when it is first opened."""
    if later is None:
        return f"<details{_class(kind)}{' open' if is_open else ''}><summary>{summary}</summary>{body}</details>"
    later.folds.append(body)
    return f'<details{_class(kind)} data-fold="{len(later.folds) - 1}"><summary>{summary}</summary></details>'


def link(path: str, content: str, title: str = "") -> str:
    """To a file of the tree; `content` is HTML."""
    about = f' title="{text(title)}"' if title else ""
    return f'<a href="{text(quote(path))}"{about}>{content}</a>'


def outer_link(url: str, content: str) -> str:
    """To an address from a log. Only a web address becomes a link: `javascript:` would run in the page."""
    if not url.startswith(("https://", "http://")):
        return content
    return f'<a href="{text(url)}" rel="noreferrer noopener">{content}</a>'


def n_bytes_phrase(number: int) -> str:
    """For people: 812 B, 14 kB, 2.1 MB."""
    if number < 1000:
        return f"{number} B"
    if number < 999_500:
        return f"{number / 1e3:.0f} kB"
    return f"{number / 1e6:.1f} MB" if number < 999_950_000 else f"{number / 1e9:.1f} GB"


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
