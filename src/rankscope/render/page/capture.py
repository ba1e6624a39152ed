"""What was read: every file, what became of it, and how far each clock can be trusted."""

from __future__ import annotations

from typing import Any

from rankscope.model.finding import count_noun
from rankscope.render.html import NOTHING, Html, markup, text
from rankscope.render.listing import Column, cell, n_bytes_phrase, row, table
from rankscope.render.page.contents import Contents, View, view

ANCHOR = "capture"
FILES_SHOWN = 20
_COLUMNS = (
    Column("File"),
    Column("Kind"),
    Column("Rank", True),
    Column("Size", True),
    Column("Status"),
    Column("Problem"),
)


@view("capture", place=90)
def capture_view(contents: Contents) -> View:
    files = [file for file in contents.trace.table("files").rows() if file["status"] != "ignored"]
    files.sort(key=lambda file: (file["status"] == "read", file["file_id"]))  # what went wrong comes first
    n_ignored = len(contents.trace.table("files")) - len(files)
    rows = [row(_cells(file)) for file in files]
    body = table(contents.later, "files-read", _COLUMNS, rows, FILES_SHOWN) or markup("<p>No files were read.</p>")
    if n_ignored:
        body += markup(
            '<p class="faint">{} in the folder ignored: not traces.</p>', count_noun(n_ignored, "other file")
        )
    return View(ANCHOR, "Capture", body, badge=f"{len(files):,}" if files else "")


def _cells(file: dict[str, Any]) -> list[Html]:
    rank, n_bytes = file["rank"], file["n_bytes"]
    problem = " ".join(filter(None, (file["problem"], file["hint"])))
    return [
        cell(markup('<span class="place">{}</span>', file["path"])),
        cell(text(file["source"])),
        cell(text(rank) if rank >= 0 else NOTHING, rank),
        cell(text(n_bytes_phrase(n_bytes)) if n_bytes >= 0 else NOTHING, n_bytes),
        cell(text(file["status"])),
        cell(text(problem)),
    ]
