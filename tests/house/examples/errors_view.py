"""The view of device errors on the page."""

from __future__ import annotations

from rankscope.render.html import text
from rankscope.render.page.contents import Contents, View, absent, view

ANCHOR, TITLE = "device-errors", "Device errors"


@view("device errors", place=60)
def errors_view(contents: Contents) -> View:
    errors = contents.trace.table("device_errors")
    if not len(errors):
        return absent(ANCHOR, TITLE, "This capture has no device error logs.", "nvidia-smi -q -d PAGE_RETIREMENT")
    rows = "".join(f"<tr><td>{row['rank']}<td>{row['xid']}<td>{text(row['message'])}" for row in errors.rows())
    return View(ANCHOR, TITLE, f"<table><tr><th>rank<th>error<th>message{rows}</table>", badge=str(len(errors)))
