"""Who waits for whom in a job that hangs: the graph, drawn, and the same as a table."""

from __future__ import annotations

from rankscope.model.finding import Finding, Location, count_noun, finding_anchors, ranks_phrase
from rankscope.model.tables import MISSING
from rankscope.render.escape import cut_short
from rankscope.render.html import NOTHING, Html, markup, text
from rankscope.render.listing import Column, cell, row, table
from rankscope.render.page.contents import Contents, View, absent, view
from rankscope.render.page.stacks import standing_of
from rankscope.render.page.wait_drawing import MAX_CHARS, Box, Line, drawing
from rankscope.render.page.wait_graph import NOBODY, Edge, Graph, Node, wait_graph
from rankscope.render.page.wait_words import (
    call_phrase,
    groups_phrase,
    is_hang,
    own_rows,
    place_on_map,
    since_phrase,
    which,
    who,
    why_phrase,
)
from rankscope.render.source import shown_path

ANCHOR, TITLE = "waits", "Waits"
ROWS_SHOWN = 20
COMMAND = "rankscope record -o traces/ -- torchrun --nproc-per-node 8 train.py"
_RANGES_LISTED = 12
_MAX_CELL = 120
_COLUMNS = (
    Column("Who"),
    Column("Waits in"),
    Column("Waits for"),
    Column("Why", help="what holds up the ranks that the others wait for"),
    Column("Since", help="UTC, by the clock of the first rank that made the call"),
    Column("Where"),
)


@view("waits", place=20)
def waits_view(contents: Contents) -> View:
    if not contents.trace.has("collectives"):
        return absent(ANCHOR, TITLE, "This capture has no Flight Recorder dumps.", COMMAND)
    graph = wait_graph(contents.trace)
    if graph is None:
        return View(ANCHOR, TITLE, markup('<p class="absent">{}</p>', _nobody_waits(contents)), is_absent=True)
    descriptions = [_Told(contents, node) for node in graph.nodes]
    cause = _cause(contents)
    boxes = [_box(each, cause) for each in descriptions]
    n_waiting = sum(len(node.ranks) for node in graph.nodes if node.calls)
    listed = _table(contents, graph, descriptions)
    body = markup("<p>{}</p>{}{}", _intro(graph, n_waiting), drawing(graph, boxes), listed)
    return View(ANCHOR, TITLE, body, badge=f"{n_waiting:,}")


def _nobody_waits(contents: Contents) -> str:
    """Not the same as missing data: the dumps exist, and they show no rank that waits."""
    if _cause(contents)[1]:
        return "The dumps show no waiting calls, so there is no wait graph; see the findings for what is known."
    return "No rank is waiting for another."


def _cause(contents: Contents) -> tuple[str, Finding | None]:
    """The finding that says why the job hangs, and its anchor."""
    findings = contents.report.findings
    for anchor, finding in zip(finding_anchors(findings), findings, strict=True):
        if is_hang(finding):
            return anchor, finding
    return "", None


class _Told:
    """A node in words."""

    def __init__(self, contents: Contents, node: Node) -> None:
        self.node = node
        trace = contents.trace
        calls, rows = trace.table("collectives"), own_rows(trace, node)
        self.call = self.group = self.since = ""
        if node.calls:
            self.call = call_phrase(node.calls, [calls.text("op")[at] for at in rows])
            self.group, self.since = groups_phrase(trace, node.calls), since_phrase(node.calls)
        stands, self.stack = standing_of(contents, node.ranks[0])
        sites = [int(calls.array("site_id")[at]) for at in rows] or [call.site for call in node.calls] or [stands]
        self.site: Location | None = None
        if (frame := sites[-1]) != MISSING:
            frames = trace.table("frames")
            file, function = frames.text("file")[frame], frames.text("function")[frame]
            self.site = Location(file, int(frames.array("line")[frame]), function)
        self.on_map = "" if node.is_nobody or node.has_no_dump else place_on_map(node)


def _box(description: _Told, cause: tuple[str, Finding | None]) -> Box:
    node = description.node
    fitting = [ranks for limit in (4, 3) if len(ranks := which(node, limit)) <= MAX_CHARS]
    lines = [Line(who(node), "who", description.on_map), Line(fitting[0] if fitting else which(node, 3), "faint")]
    if node.calls:
        lines += [Line(description.call), Line(description.group, "faint"), Line(description.since, "faint")]
    elif not node.is_nobody:
        lines.append(Line("left no dump" if node.has_no_dump else "not waiting in a call"))
    if description.site:
        file = description.site.file.rsplit("/", 1)[-1]
        lines.append(Line(f"{file}:{description.site.line} {description.site.function}", "mono", description.stack))
    elif description.stack:
        lines.append(Line("where it is now", "mono", description.stack))
    kind = "cause" if node.is_cause else "lost" if node.has_no_dump else ""
    tag = Line("cause", "tag", f"#{cause[0]}" if cause[0] else "") if node.is_cause else None
    return Box(tuple(line for line in lines if line.said), kind, tag)


def _intro(graph: Graph, n_waiting: int) -> Html:
    causes = [rank for node in graph.nodes if node.is_cause and not node.is_nobody for rank in node.ranks]
    verb = "is" if n_waiting == 1 else "are"
    said = f"{count_noun(n_waiting, 'rank')} {verb} waiting"
    if causes:
        said += f", ultimately for {ranks_phrase(causes)}"
    elif any(node.is_cause and node.ranks[0] == NOBODY["stalled"] for node in graph.nodes):
        said += " although no rank is missing: all have joined a call that does not complete"
    said += ". Arrows point from the waiting ranks to the ranks they wait for"
    said += "; similar ranks and calls are drawn as one." if graph.is_coarse else "."
    if any(edge.in_cycle for edge in (*graph.edges, *graph.inner)):
        said += " The thick arrows are a cycle: these ranks wait for each other."
    return text(said)


def _table(contents: Contents, graph: Graph, descriptions: list[_Told]) -> Html:
    """One row per arrow, those next to the cause first, including the arrows that the drawing omits."""
    edges = sorted(
        (*graph.edges, *graph.inner),
        key=lambda edge: (graph.layers[edge.holding], graph.layers[edge.waiting], edge.ends),
    )
    rows = [row(_cells(contents, descriptions, edge)) for edge in edges]
    listed = table(contents.later, "waits-listed", _COLUMNS, rows, ROWS_SHOWN)
    return listed + (
        markup(
            '<p class="faint">For each call and rank separately: '
            '<code>rankscope query PATH "select * from waits order by is_cause desc"</code></p>'
        )
    )


def _cells(contents: Contents, descriptions: list[_Told], edge: Edge) -> list[Html]:
    waiting, holding = descriptions[edge.waiting], descriptions[edge.holding]
    call = waiting.call if edge.calls == waiting.node.calls else call_phrase(edge.calls)
    group = groups_phrase(contents.trace, edge.calls)
    shown_group = text(cut_short(group, _MAX_CELL))
    where = ""
    if waiting.site:
        file = shown_path(waiting.site.file, *contents.folders)
        where = markup('<span class="place">{}:{}</span> {}', file, waiting.site.line, waiting.site.function)
        where = markup('<a href="{}">{}</a>', waiting.stack, where) if waiting.stack else where
    return [
        cell(_ranks(waiting)),
        cell(
            markup(
                '{} <span class="faint" title="{}">{}</span>',
                cut_short(call, _MAX_CELL),
                group,
                shown_group,
            )
        ),
        cell(_ranks(holding) + (markup(" <b>cause</b>") if holding.node.is_cause else NOTHING)),
        cell(text(why_phrase(edge, holding.node)), kind="whole"),
        cell(text(since_phrase(edge.calls).removeprefix("since ")), kind="whole"),
        cell(where),
    ]


def _ranks(description: _Told) -> Html:
    name, ranks = text(who(description.node)), text(which(description.node, _RANGES_LISTED))
    shown = markup('<a href="{}">{}</a>', description.on_map, name) if description.on_map else name
    return markup('{} <span class="faint">{}</span>', shown, ranks) if ranks else shown
