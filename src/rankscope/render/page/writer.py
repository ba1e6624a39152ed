"""Puts the page together: all views, what they could not show, and the data that their scripts read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import NamedTuple

from rankscope.model.finding import Report
from rankscope.model.tables import Trace
from rankscope.render.html import page_frame, text
from rankscope.render.page.blocks import Blocks
from rankscope.render.page.contents import Contents, PageOptions, View
from rankscope.render.page.findings import findings_view
from rankscope.render.page.head import head_html, page_title
from rankscope.render.page.redaction import Redaction, directories_of, without_source
from rankscope.render.whole_file import whole_file

# In the order in which they stand, those without data behind the others. Module `waits` has a function `waits_view`.
VIEWS = ("rank_map", "waits", "stacks", "performance", "compiling", "metrics", "capture")
STYLES = ("page.css", "parts.css", "compile.css", "code.css", "report.css")
SCRIPTS = ("page.js", "code.js", "artifacts.js", "rank_map.js", "charts.js", "report.js")
SERVED_SCRIPTS = (*SCRIPTS, "serve.js")  # a server can do what a file cannot: hand the timeline to Perfetto


class Built(NamedTuple):
    """A page as text without its blocks of data, which a server keeps to itself until they are asked for."""

    before: str
    body: str
    behind: str
    blocks: Blocks
    remarks: tuple[str, ...]

    def parts(self) -> Iterator[str]:
        yield self.before
        yield self.body
        for name in self.blocks.makers:
            yield self.blocks.html(name)
        yield self.behind


class Written(NamedTuple):
    n_bytes: int
    remarks: tuple[str, ...]  # what was thinned or left out


def write_page(trace: Trace, report: Report, path: str, options: PageOptions) -> Written:
    """The page replaces `path` when it is complete."""
    built = build_page(trace, report, options)
    n_bytes = 0
    with whole_file(path) as part, open(part, "xb") as file:
        for piece in built.parts():
            n_bytes += file.write(piece.encode("utf-8", "replace"))
    remarks = built.remarks
    if n_bytes > options.max_bytes:
        remarks += ("The page is larger than asked for: its scripts, styles and tables alone need that much.",)
    return Written(n_bytes, remarks)


def build_page(trace: Trace, report: Report, options: PageOptions) -> Built:
    redaction = Redaction(report.capture.hosts, directories_of(trace, options.base)) if options.redact else None
    clean = redaction.clean if redaction else str
    blocks = Blocks(options.is_served, redaction.clean_data if redaction else None)
    contents = Contents(trace if options.shows_source else without_source(trace), report, options, blocks=blocks)
    views = sorted((_view_of(name)(contents) for name in VIEWS), key=lambda view: view.is_absent)
    views.insert(0, findings_view(contents, [view.anchor for view in views if not view.is_absent]))
    body = head_html(contents, views) + "".join(_section(view) for view in views)
    body += '<p id="nothing" hidden>Nothing on this page has all of these words.</p></main>'
    scripts = SERVED_SCRIPTS if options.is_served else SCRIPTS
    before, behind = page_frame(clean(page_title(contents)), STYLES, scripts, may_ask=options.is_served)
    later = contents.later.cleaned(clean) if redaction else contents.later
    return Built(before, clean(body) + later.script(), behind, blocks, tuple(contents.remarks))


def _view_of(name: str) -> Callable[[Contents], View]:
    made: Callable[[Contents], View] = getattr(import_module(f"rankscope.render.page.{name}"), f"{name}_view")
    return made


def _section(view: View) -> str:
    kind = ' class="absent"' if view.is_absent else ""
    heading = f'<h2>{text(view.title)}<span class="hits"></span></h2>'
    return f'<section id="{view.anchor}"{kind}>{heading}{view.body}</section>\n'
