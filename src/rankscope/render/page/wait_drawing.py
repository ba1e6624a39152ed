"""The graph of waits as SVG: layers from left to right towards the cause, which is marked by color, shape and word."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rankscope.render.escape import cut_short
from rankscope.render.html import NOTHING, Html, joined, markup
from rankscope.render.page.wait_graph import Edge, Graph
from rankscope.render.page.wait_words import why_phrase

WIDTH, GAP, ROW_GAP = 212, 92, 26
LINE, PADDING = 18, 11
MAX_CHARS = 25
_SWEEPS = 4
_CUT = 10  # of the corners of a cause
_DIP = 24  # how far below the boxes an edge runs that leads back, and each further one below it
_LOOP = 26  # how far above its box a loop runs
_MANY_LAYERS = 4
_Ends = tuple[int, int]


class Line(NamedTuple):
    said: str
    kind: str = ""
    href: str = ""


class Box(NamedTuple):
    """The lines of a node, from the top. A tag is next to the first line."""

    lines: tuple[Line, ...]
    kind: str = ""  # cause or lost
    tag: Line | None = None

    @property
    def height(self) -> int:
        return len(self.lines) * LINE + 2 * PADDING


@dataclass(frozen=True)
class _Place:
    x: float
    y: float
    height: int

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def drawing(graph: Graph, boxes: Sequence[Box]) -> Html:
    edges = essential_edges(graph)
    places, width, height = _placed(graph, edges, boxes)
    _, back = _sorted_out(graph, edges)
    height += _DIP * len(back)
    left = GAP // 2 + 2 if any(places[edge.holding].x == 0 for edge in back) else 2
    top = _LOOP + 2 if graph.inner else 2
    drawn = joined(_arrows(graph, edges, places))
    drawn += joined(_box(box, place) for box, place in zip(boxes, places, strict=True))
    head = markup(
        '<defs><marker id="wait-head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" '
        'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>'
    )
    kind = "wait-graph large" if max(graph.layers) >= _MANY_LAYERS else "wait-graph"
    width, height = int(width + left + 2), int(height + top + 2)
    return markup(
        '<div class="wide towards-cause"><svg class="{}" viewBox="-{} -{} {} {}" '
        'width="{}" height="{}" role="group" aria-label="Who waits for whom">'
        "{}{}</svg></div>",
        kind,
        left,
        top,
        width,
        height,
        width,
        height,
        head,
        drawn,
    )


def essential_edges(graph: Graph) -> list[Edge]:
    """Without those that a longer way says too: who waits for A, which waits for B, waits for B all the same."""
    forward: dict[int, set[int]] = defaultdict(set)
    for edge in graph.edges:
        if graph.layers[edge.waiting] > graph.layers[edge.holding]:
            forward[edge.waiting].add(edge.holding)
    beyond: dict[int, set[int]] = {}  # all nodes that are reached
    for node in sorted(range(len(graph.nodes)), key=lambda node: graph.layers[node]):
        beyond[node] = forward[node].union(*(beyond[other] for other in forward[node]))
    targets: dict[int, list[int]] = defaultdict(list)
    for edge in graph.edges:
        targets[edge.waiting].append(edge.holding)
    return [
        edge
        for edge in graph.edges
        if not any(edge.holding in beyond[other] for other in targets[edge.waiting] if other != edge.holding)
    ]


def _placed(graph: Graph, edges: Sequence[Edge], boxes: Sequence[Box]) -> tuple[list[_Place], float, float]:
    layers = _ordered_layers(graph, edges)
    heights = [sum(boxes[node].height + ROW_GAP for node in layer) - ROW_GAP for layer in layers]
    whole = max(heights)
    places: dict[int, _Place] = {}
    for number, layer in enumerate(layers):
        x = (len(layers) - 1 - number) * (WIDTH + GAP)
        y = (whole - heights[number]) / 2
        for node in layer:
            places[node] = _Place(x, y, boxes[node].height)
            y += boxes[node].height + ROW_GAP
    return [places[node] for node in range(len(boxes))], len(layers) * (WIDTH + GAP) - GAP, whole


def _ordered_layers(graph: Graph, edges: Sequence[Edge]) -> list[list[int]]:
    """Places nodes near their neighbors, so that few edges cross."""
    layers: list[list[int]] = [[] for _ in range(max(graph.layers) + 1)]
    for node, number in enumerate(graph.layers):
        layers[number].append(node)
    linked: dict[int, list[int]] = defaultdict(list)
    for edge in edges:
        linked[edge.waiting].append(edge.holding)
        linked[edge.holding].append(edge.waiting)
    for sweep in range(_SWEEPS):
        # Positions are counted from the middle of a layer, which is how layers stand beside each other.
        spot = {node: at - (len(layer) - 1) / 2 for layer in layers for at, node in enumerate(layer)}
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            middle = {
                node: sum(spot[other] for other in linked[node]) / len(linked[node]) if linked[node] else spot[node]
                for node in layer
            }
            layer.sort(key=lambda node: (middle[node], node))
            spot.update({node: at - (len(layer) - 1) / 2 for at, node in enumerate(layer)})
    return layers


def _arrows(graph: Graph, edges: Sequence[Edge], places: Sequence[_Place]) -> list[Html]:
    forward, back = _sorted_out(graph, edges)
    base = max(place.y + place.height for place in places)
    leaving, entering = _ports(forward, places)
    drawn = [_arrow(graph, edge, *_loop(places[edge.waiting])) for edge in graph.inner]
    for number, edge in enumerate(back):
        drawn.append(_arrow(graph, edge, *_back_path(places, edge, base + _DIP * (number + 1) - 6)))
    for edge in forward:
        start = (places[edge.waiting].x + WIDTH, leaving[edge.ends])
        end = (places[edge.holding].x - 2, entering[edge.ends])
        bend = GAP * 0.55
        path = f"M{start[0]:.0f} {start[1]:.1f}C{start[0] + bend:.0f} {start[1]:.1f} "
        path += f"{end[0] - bend:.0f} {end[1]:.1f} {end[0]:.0f} {end[1]:.1f}"
        # One that passes other layers is hidden behind them but for its end.
        share = 0.5 if end[0] - start[0] <= GAP else 0.85
        drawn.append(_arrow(graph, edge, path, (end[0] - GAP / 2, start[1] + (end[1] - start[1]) * share - 5)))
    return drawn


def _sorted_out(graph: Graph, edges: Sequence[Edge]) -> tuple[list[Edge], list[Edge]]:
    """Those that lead towards the cause, and those that lead back."""
    forward = [edge for edge in edges if graph.layers[edge.waiting] > graph.layers[edge.holding]]
    return forward, [edge for edge in edges if graph.layers[edge.waiting] <= graph.layers[edge.holding]]


def _back_path(places: Sequence[_Place], edge: Edge, base: float) -> tuple[str, tuple[float, float]]:
    """Down from the box, along below all others, up in the gap before the one that it leads to."""
    source, target = places[edge.waiting], places[edge.holding]
    x, y = source.x + WIDTH / 2, source.y + source.height
    turn, end_y = target.x - GAP / 2, target.y + target.height * 0.85
    path = (
        f"M{x:.0f} {y:.1f}V{base - 12:.1f}Q{x:.0f} {base:.1f} {x - 12:.0f} {base:.1f}H{turn + 12:.0f}"
        f"Q{turn:.0f} {base:.1f} {turn:.0f} {base - 12:.1f}V{end_y + 12:.1f}Q{turn:.0f} {end_y:.1f} {turn + 12:.0f} "
        f"{end_y:.1f}H{target.x - 2:.0f}"
    )
    return path, ((x + turn) / 2, base - 5)


def _loop(place: _Place) -> tuple[str, tuple[float, float]]:
    """From the top of a box back to it: its ranks wait for each other."""
    start, end, above = place.x + WIDTH - 24, place.x + WIDTH - 72, place.y - _LOOP
    path = f"M{start:.0f} {place.y:.1f}C{start:.0f} {above:.1f} {end:.0f} {above:.1f} {end:.0f} {place.y - 2:.1f}"
    return path, (end - 46, place.y - 8)


def _ports(edges: Sequence[Edge], places: Sequence[_Place]) -> tuple[dict[_Ends, float], dict[_Ends, float]]:
    """Where each edge leaves its box and enters the other: side by side, in the order of where they lead."""
    leaving: dict[_Ends, float] = {}
    entering: dict[_Ends, float] = {}
    for ports, side, other in ((leaving, 0, 1), (entering, 1, 0)):
        together: dict[int, list[_Ends]] = defaultdict(list)
        for edge in edges:
            together[edge.ends[side]].append(edge.ends)
        for node, at_node in together.items():
            place = places[node]
            step = place.height / (len(at_node) + 1)
            ordered = sorted(at_node, key=lambda ends: (places[ends[other]].middle, ends))
            ports.update({ends: place.y + step * (number + 1) for number, ends in enumerate(ordered)})
    return leaving, entering


def _arrow(graph: Graph, edge: Edge, path: str, label: tuple[float, float]) -> Html:
    kind = "edge cycle" if edge.in_cycle else "edge"
    return markup(
        '<g class="{}"><path d="{}" marker-end="url(#wait-head)"/><text x="{:.0f}" '
        'y="{:.1f}" text-anchor="middle">{}</text></g>',
        kind,
        path,
        label[0],
        label[1],
        why_phrase(edge, graph.nodes[edge.holding]),
    )


def _box(box: Box, place: _Place) -> Html:
    x, y, right, bottom = place.x, place.y, place.x + WIDTH, place.y + place.height
    if box.kind == "cause":
        corners = f"M{x + _CUT} {y:.1f}H{right - _CUT}L{right} {y + _CUT:.1f}V{bottom - _CUT:.1f}L{right - _CUT} "
        corners += f"{bottom:.1f}H{x + _CUT}L{x} {bottom - _CUT:.1f}V{y + _CUT:.1f}z"
        shape = markup('<path class="shape" d="{}"/>', corners)
    else:
        shape = markup(
            '<rect class="shape" x="{}" y="{:.1f}" width="{}" height="{}" rx="8"/>', x, y, WIDTH, place.height
        )
    said = joined(
        _line(line, x + PADDING + 2, y + PADDING + LINE * (number + 1) - 5) for number, line in enumerate(box.lines)
    )
    tag = _line(box.tag, right - PADDING, y + PADDING + LINE - 5, "end") if box.tag else NOTHING
    return markup('<g class="{}">{}{}{}</g>', f"node {box.kind}".strip(), shape, said, tag)


def _line(line: Line, x: float, y: float, anchor: str = "") -> Html:
    shown = cut_short(line.said, MAX_CHARS)
    whole = markup("<title>{}</title>", line.said) if shown != line.said else NOTHING
    kind = markup(' class="{}"', line.kind) if line.kind else NOTHING
    side = markup(' text-anchor="{}"', anchor) if anchor else NOTHING
    drawn = markup('<text x="{:.0f}" y="{:.1f}"{}{}>{}{}</text>', x, y, kind, side, shown, whole)
    return markup('<a href="{}">{}</a>', line.href, drawn) if line.href else drawn
