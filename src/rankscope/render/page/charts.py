"""Small charts as SVG that needs no script: bars, lines over steps, strips over time.

Positions along the width are percentages, so that a chart fills any width while its text keeps its size. What a mark
stands for is its <title>: browsers show it by themselves, and charts.js makes one quick tooltip of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rankscope.model.tables import Array
from rankscope.render.html import text
from rankscope.render.page.chart_scale import Unit, tick_texts, ticks, whole_ticks

MAX_MARKS = 2_000  # more elements make a page slow; above that a canvas draws
_BAR_HEIGHT = 16
_WIDE_ENOUGH = 9.0  # percent of the width: room for a number within a bar
_LINE_HEIGHT = 150  # of the plot, in pixels
_STRIP_HEIGHT = 22


class Segment(NamedTuple):
    kind: str  # a class of report.css, which gives the color
    value: float
    title: str
    said: str = ""  # within the segment, where it is wide enough


class Bar(NamedTuple):
    label: str  # HTML
    segments: Sequence[Segment]
    note: str = ""  # behind the bar
    rank: int | None = None  # for links to it


class Key(NamedTuple):
    """An entry of a legend."""

    kind: str
    said: str  # HTML


def figure(name: str, label: str, body: str, legend: Sequence[Key] = ()) -> str:
    """`label` says what is seen; arrow keys go from mark to mark once the figure has the focus."""
    keys = "".join(f'<span class="{key.kind}">{key.said}</span>' for key in legend)
    shown = f'<p class="legend">{keys}</p>' if legend else ""
    return (
        f'<figure class="chart" id="{name}" tabindex="0" role="group" aria-label="{text(label)}">{shown}{body}</figure>'
    )


# Bars


def bars(rows: Sequence[Bar], unit: Unit, longest: float = 0.0) -> str:
    """One below the other, all from the same zero; the axis ends at the longest unless `end` is given."""
    end = longest or max((sum(segment.value for segment in bar.segments) for bar in rows), default=0.0) or 1.0
    rounds = ticks(0, end / unit.size, 6)
    at = [tick * unit.size for tick in rounds]
    grid = "".join(
        f'<line class="grid" x1="{_percent(tick / end)}" x2="{_percent(tick / end)}" y2="100%"/>' for tick in at
    )
    axis = _tick_texts([(tick / end, said) for tick, said in zip(at, tick_texts(rounds, unit), strict=True)])
    return (
        '<div class="hbars">'
        + "".join(_bar(bar, end, grid) for bar in rows)
        + f'<span></span><svg class="axis" height="18" aria-hidden="true">{axis}</svg><span></span></div>'
    )


def _bar(bar: Bar, end: float, grid: str) -> str:
    marks, start = [], 0.0
    for segment in bar.segments:
        share = max(0.0, segment.value) / end
        if share > 0:
            marks.append(_segment(segment, start, share))
            start += share
    rank = "" if bar.rank is None else f' data-rank="{bar.rank}"'
    track = f'<svg class="track" height="{_BAR_HEIGHT}">{grid}{"".join(marks)}</svg>'
    return f'<span class="of"{rank}>{bar.label}</span>{track}<span class="num">{text(bar.note)}</span>'


def _segment(segment: Segment, start: float, share: float) -> str:
    rect = f'<rect class="{segment.kind}" x="{_percent(start)}" width="{_percent(share)}" height="100%"/>'
    said = ""
    if segment.said and share * 100 >= _WIDE_ENOUGH:
        said = f'<text x="{_percent(start + share / 2)}" y="12">{text(segment.said)}</text>'
    return f'<g class="mark"><title>{text(segment.title)}</title>{rect}{said}</g>'


def meter(share: float, kind: str = "") -> str:
    """A share of one, for a cell of a table."""
    rect = f'<rect class="{kind or "computation"}" width="{_percent(min(1.0, max(0.0, share)))}" height="100%"/>'
    return f'<svg class="meter" width="60" height="8" aria-hidden="true">{rect}</svg>'


# Lines


class Line(NamedTuple):
    label: str
    values: Array  # one for each x; what is not finite is left out
    kind: str
    lows: Array | None = None  # where several values fell on one x: values are the highest, these the lowest
    joins_gaps: bool = False


class Band(NamedTuple):
    low: Array
    high: Array
    kind: str


class Flag(NamedTuple):
    """Something at a step: a finding, or the first value that is no number."""

    x: float
    said: str
    title: str
    link: str = ""
    kind: str = ""


class LineChart(NamedTuple):
    x: Array  # ascending; whole numbers, such as steps
    lines: Sequence[Line]
    unit: Unit
    titles: Sequence[str]  # what is said at each x
    bands: Sequence[Band] = ()
    flags: Sequence[Flag] = ()
    x_name: str = "step"
    least_span: float = 0.0  # of the axis: small differences must not look like large ones


def lines(chart: LineChart) -> str:
    low, high = _range([*(line.values for line in chart.lines), *_lows(chart), *_bounds(chart.bands)], chart.least_span)
    places = _places(chart.x)
    body = "".join(_band(band, places, low, high) for band in chart.bands)
    body += "".join(_line(line, places, low, high) for line in chart.lines)
    rounds = ticks(low / chart.unit.size, high / chart.unit.size, 4)
    at = [tick * chart.unit.size for tick in rounds]
    heights = [(1 - (tick - low) / (high - low)) * 100 for tick in at]
    grid = "".join(f'<line class="grid" x2="100%" y1="{height:.4g}%" y2="{height:.4g}%"/>' for height in heights)
    labels = "".join(
        f'<text x="100%" y="{height:.4g}%" dy=".35em" text-anchor="end">{text(said)}</text>'
        for said, height in zip(tick_texts(rounds, chart.unit), heights, strict=True)
    )
    plot = (
        f'<svg class="plot" height="{_LINE_HEIGHT}">{grid}'
        f'<svg viewBox="0 0 1000 100" preserveAspectRatio="none" width="100%" height="100%">{body}</svg>'
        f"{_hits(places, chart.titles)}{_flags(chart, places)}</svg>"
    )
    return (
        f'<div class="xy"><svg class="y" height="{_LINE_HEIGHT}" aria-hidden="true">{labels}</svg>{plot}'
        f"<span></span>{step_axis(chart.x, places, chart.x_name)}</div>"
    )


def step_axis(x: Array, places: Array, name: str) -> str:
    """Ticks at whole numbers; a name behind the last one."""
    first, last = int(x[0]), int(x[-1])
    at = [tick for tick in whole_ticks(first, last) if first <= tick <= last]
    positions = np.interp(at, x, places) if len(x) > 1 else [0.5] * len(at)
    shown = [(float(position), f"{tick:,}") for position, tick in zip(positions, at, strict=True)]
    named = f'<text x="50%" y="27">{text(name)}</text>'
    return f'<svg class="axis" height="30" aria-hidden="true">{_tick_texts(shown)}{named}</svg>'


def _places(x: Array) -> Array:
    """From 0 to 1, with some room at both ends, so that the outermost dots are whole."""
    if len(x) == 1:
        return np.array([0.5])
    margin = min(0.5 / len(x), 0.02)
    placed: Array = margin + (x - x[0]) / max(float(x[-1] - x[0]), 1e-9) * (1 - 2 * margin)
    return placed


def _range(values: Sequence[Array], least_span: float) -> tuple[float, float]:
    finite = np.concatenate([np.asarray(each, np.float64) for each in values]) if values else np.empty(0)
    finite = finite[np.isfinite(finite)]
    if not finite.size:
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    if high - low < least_span:
        low, high = (low + high - least_span) / 2, (low + high + least_span) / 2
    if low >= 0 and low < 0.7 * high:
        low = 0.0  # a length that starts at zero can be compared by eye
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return (low - room if low else low), high + room


def _lows(chart: LineChart) -> Iterator[Array]:
    return (line.lows for line in chart.lines if line.lows is not None)


def _bounds(bands: Sequence[Band]) -> Iterator[Array]:
    for band in bands:
        yield from (band.low, band.high)


def _line(line: Line, places: Array, low: float, high: float) -> str:
    """One path, interrupted where values are missing, unless gaps are joined. A single value is drawn as a dot."""
    finite = np.isfinite(line.values)
    if not finite.any():
        return ""
    parts = []
    for run in [np.flatnonzero(finite)] if line.joins_gaps else _runs(finite):
        x, y = places[run] * 1000, _heights(line.values[run], low, high)
        if line.lows is None:
            points = [f"{a:.1f} {b:.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True)]
        else:
            bottom = _heights(line.lows[run], low, high).tolist()
            points = [
                f"{a:.1f} {b:.1f} {a:.1f} {c:.1f}" for a, b, c in zip(x.tolist(), y.tolist(), bottom, strict=True)
            ]
        parts.append("M" + points[0] + ("h0" if len(points) == 1 else "L" + " ".join(points[1:])))
    dot = " dot" if np.count_nonzero(finite) == 1 else ""
    return f'<path class="line {line.kind}{dot}" d="{"".join(parts)}"/>'


def _band(band: Band, places: Array, low: float, high: float) -> str:
    parts = []
    for run in _runs(np.isfinite(band.low) & np.isfinite(band.high)):
        x = (places[run] * 1000).tolist()
        above = zip(x, _heights(band.high[run], low, high).tolist(), strict=True)
        below = zip(x[::-1], _heights(band.low[run], low, high).tolist()[::-1], strict=True)
        parts.append("M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in (*above, *below)) + "Z")
    return f'<path class="band {band.kind}" d="{"".join(parts)}"/>' if parts else ""


def _heights(values: Array, low: float, high: float) -> Array:
    shown: Array = (1 - (values - low) / (high - low)) * 100
    return shown


def _runs(wanted: Array) -> list[slice]:
    """The runs of wanted positions."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], wanted, [False])).astype(np.int8)))
    return [slice(int(start), int(end)) for start, end in zip(edges[::2], edges[1::2], strict=True)]


def _hits(places: Array, titles: Sequence[str]) -> str:
    """A column for each x, invisible until the pointer is over it."""
    middles = (places[1:] + places[:-1]) / 2
    edges = np.concatenate(([0.0], middles, [1.0])).tolist()
    return "".join(
        f'<rect class="mark hit" x="{_percent(start)}" width="{_percent(end - start)}" height="100%">'
        f"<title>{text(title)}</title></rect>"
        for start, end, title in zip(edges[:-1], edges[1:], titles, strict=True)
    )


def _flags(chart: LineChart, places: Array) -> str:
    drawn = []
    # A single value has no before and after, and a series may end before what the flag is about.
    shown = [flag for flag in chart.flags if len(chart.x) > 1 and chart.x[0] <= flag.x <= chart.x[-1]]
    for number, flag in enumerate(shown):
        place = float(np.interp(flag.x, chart.x, places))
        anchor = "end" if place > 0.9 else "start"
        where = f'x="{_percent(place)}" dx="{-4 if place > 0.9 else 4}" y="{11 + 12 * (number % 4)}"'
        said = f'<text {where} text-anchor="{anchor}">{text(flag.said)}</text>'
        drawn.append(
            f'<g class="flag {flag.kind}"><title>{text(flag.title)}</title>'
            f'<line x1="{_percent(place)}" x2="{_percent(place)}" y2="100%"/>'
            + (f'<a href="#{text(flag.link)}">{said}</a>' if flag.link else said)
            + "</g>"
        )
    return "".join(drawn)


# Strips


class Lane(NamedTuple):
    label: str  # HTML
    spans: Sequence[tuple[float, float, Segment]]  # from, to (in the unit of the strip), what
    rank: int | None = None


def strips(lanes: Sequence[Lane], unit: Unit, length: float, edges: Sequence[float] = ()) -> str:
    """Lanes over one axis of time that starts at zero; edges are lines through all of them, such as ends of steps."""
    length = length or 1.0
    cuts = "".join(
        f'<line class="edge" x1="{_percent(at / length)}" x2="{_percent(at / length)}" y2="100%"/>' for at in edges
    )
    drawn = []
    for lane in lanes:
        marks = "".join(
            f'<rect class="mark {what.kind}" x="{_percent(start / length)}" width="{_percent((end - start) / length)}" '
            f'height="100%"><title>{text(what.title)}</title></rect>'
            for start, end, what in lane.spans
        )
        rank = "" if lane.rank is None else f' data-rank="{lane.rank}"'
        drawn.append(
            f'<span class="of"{rank}>{lane.label}</span><svg class="track" height="{_STRIP_HEIGHT}">{marks}{cuts}</svg>'
        )
    rounds = ticks(0, length / unit.size, 6)
    said = tick_texts(rounds, unit)
    axis = _tick_texts([(tick * unit.size / length, each) for tick, each in zip(rounds, said, strict=True)])
    below = f'<span></span><svg class="axis" height="18" aria-hidden="true">{axis}</svg>'
    return f'<div class="lanes">{"".join(drawn)}{below}</div>'


# Shared


def _tick_texts(at: Sequence[tuple[float, str]]) -> str:
    """The outermost ones lean inwards, so that nothing is cut off."""
    drawn = []
    for place, said in at:
        anchor = "start" if place < 0.02 else "end" if place > 0.98 else "middle"
        drawn.append(f'<text x="{_percent(place)}" y="13" text-anchor="{anchor}">{text(said)}</text>')
    return "".join(drawn)


def _percent(share: float) -> str:
    shown = f"{share * 100:.2f}" if math.isfinite(share) else "0"
    return (shown.rstrip("0").rstrip(".") if "." in shown else shown) + "%"
