"""The view of device errors on the page."""

from __future__ import annotations

from rankscope.render.html import joined, markup
from rankscope.render.page.contents import Contents, View, absent, view

ANCHOR, TITLE = "device-errors", "Device errors"


@view("device errors", place=60)
def errors_view(contents: Contents) -> View:
    errors = contents.trace.table("device_errors")
    if not len(errors):
        return absent(ANCHOR, TITLE, "This capture has no device error logs.", "nvidia-smi -q -d PAGE_RETIREMENT")
    rows = joined(markup("<tr><td>{}<td>{}<td>{}", row["rank"], row["xid"], row["message"]) for row in errors.rows())
    table = markup("<table><tr><th>rank<th>error<th>message{}</table>", rows)
    return View(ANCHOR, TITLE, table, badge=str(len(errors)))
