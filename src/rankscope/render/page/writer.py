"""Puts the page together: all views, what they could not show, and the data that their scripts read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from msgspec import structs

from rankscope.model.finding import Evidence, Report
from rankscope.model.parts import declared_parts
from rankscope.model.tables import Trace
from rankscope.render.html import NOTHING, Html, joined, markup, page_frame
from rankscope.render.page.blocks import Blocks
from rankscope.render.page.contents import Contents, PageOptions, View
from rankscope.render.page.findings import findings_view
from rankscope.render.page.head import head_html, page_title
from rankscope.render.page.redaction import Redaction, directories_of, without_source
from rankscope.render.source import code_folder
from rankscope.render.whole_file import whole_file

STYLES = ("page.css", "parts.css", "compile.css", "code.css", "report.css")
SCRIPTS = ("page.js", "code.js", "artifacts.js", "rank_map.js", "charts.js", "report.js")
SERVED_SCRIPTS = (*SCRIPTS, "serve.js")  # a server can do what a file cannot: hand the timeline to Perfetto


Progress = Callable[[int, int, str], None]


class Built(NamedTuple):
    """A page as text without its blocks of data, which a server sends on demand."""

    before: Html
    body: Html
    behind: Html
    blocks: Blocks
    remarks: tuple[str, ...]

    def parts(self) -> Iterator[Html]:
        yield self.before
        yield self.body
        for name in self.blocks.makers:
            yield self.blocks.html(name)
        yield self.behind


class Written(NamedTuple):
    n_bytes: int
    remarks: tuple[str, ...]  # what was thinned or left out


def write_page(
    trace: Trace, report: Report, path: str, options: PageOptions, progress: Progress | None = None
) -> Written:
    """The page replaces `path` when it is complete."""
    built = build_page(trace, report, options, progress)
    n_parts = len(built.blocks.makers) + 3
    n_bytes = 0
    with whole_file(path) as part, open(part, "xb") as file:
        for done, piece in enumerate(built.parts()):
            if progress is not None:
                progress(done, n_parts, "writing the page")
            n_bytes += file.write(piece.encode("utf-8", "replace"))
    remarks = built.remarks
    if n_bytes > options.max_bytes:
        remarks += ("The page is larger than requested: its scripts, styles and tables alone take that much.",)
    return Written(n_bytes, remarks)


def build_page(trace: Trace, report: Report, options: PageOptions, progress: Progress | None = None) -> Built:
    redaction = _redaction(trace, report, options) if options.redact else None
    blocks = Blocks(options.is_served, redaction.clean_data if redaction else None)
    contents = Contents(trace if options.shows_source else without_source(trace), report, options, blocks=blocks)
    of_world = replace(contents, report=without_other_worlds(report))
    views = sorted(_views(of_world, progress), key=lambda view: view.is_absent)
    views.insert(0, findings_view(contents, [view.anchor for view in views if not view.is_absent]))
    body = head_html(contents, views) + joined(_section(view) for view in views)
    body += markup('<p id="nothing" hidden>Nothing on this page matches all of these words.</p></main>')
    scripts = SERVED_SCRIPTS if options.is_served else SCRIPTS
    title, later = page_title(contents), contents.later
    if redaction:
        title, body, later = redaction.clean(title), redaction.clean_html(body), later.cleaned(redaction.clean_html)
    before, behind = page_frame(title, STYLES, scripts, may_ask=options.is_served)
    return Built(before, body + later.script(), behind, blocks, tuple(contents.remarks))


def _redaction(trace: Trace, report: Report, options: PageOptions) -> Redaction:
    worlds = {world.name: f"world {world.number}" for world in report.capture.worlds}
    folders = (options.base, code_folder(report, options.base))
    return Redaction(report.capture.hosts, directories_of(trace, folders), worlds)


def without_other_worlds(report: Report) -> Report:
    """The findings about other worlds keep their place in the list, and lose what would mark ranks of the shown one."""
    if not report.capture.worlds:
        return report
    emptied = (
        each
        if report.is_shown(each)
        else structs.replace(each, ranks=(), group=None, collective=None, evidence=Evidence())
        for each in report.findings
    )
    return structs.replace(report, findings=tuple(emptied))


def _views(contents: Contents, progress: Progress | None) -> Iterator[View]:
    declared = sorted(declared_parts("view", "render.page"), key=lambda part: part.settings.get("place", 50))
    for done, part in enumerate(declared):
        if progress is not None:
            progress(done, len(declared), f"preparing the page: {part.values[0]}")
        view: View = part.load()(contents)
        yield view


def _section(view: View) -> Html:
    kind = markup(' class="absent"') if view.is_absent else NOTHING
    heading = markup('<h2>{}<span class="hits"></span></h2>', view.title)
    return markup('<section id="{}"{}>{}{}</section>\n', view.anchor, kind, heading, view.body)
