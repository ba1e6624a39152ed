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
from rankscope.render.html import NOTHING, Html, joined, markup
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
    label: str
    segments: Sequence[Segment]
    note: str = ""  # behind the bar
    rank: int | None = None  # for links to it


class Key(NamedTuple):
    """An entry of a legend."""

    kind: str
    said: str


def figure(name: str, label: str, body: Html, legend: Sequence[Key] = ()) -> Html:
    """`label` says what is seen; arrow keys go from mark to mark once the figure has the focus."""
    keys = joined(markup('<span class="{}">{}</span>', key.kind, key.said) for key in legend)
    shown = markup('<p class="legend">{}</p>', keys) if legend else NOTHING
    return markup(
        '<figure class="chart" id="{}" tabindex="0" role="group" aria-label="{}">{}{}</figure>',
        name,
        label,
        shown,
        body,
    )


# Bars


def bars(rows: Sequence[Bar], unit: Unit, longest: float = 0.0) -> Html:
    """One below the other, all from the same zero; the axis ends at the longest unless `end` is given."""
    end = longest or max((sum(segment.value for segment in bar.segments) for bar in rows), default=0.0) or 1.0
    rounds = ticks(0, end / unit.size, 6)
    at = [tick * unit.size for tick in rounds]
    grid = joined(
        markup('<line class="grid" x1="{}" x2="{}" y2="100%"/>', _percent(tick / end), _percent(tick / end))
        for tick in at
    )
    axis = _tick_texts([(tick / end, said) for tick, said in zip(at, tick_texts(rounds, unit), strict=True)])
    return (
        markup('<div class="hbars">')
        + joined(_bar(bar, end, grid) for bar in rows)
        + markup('<span></span><svg class="axis" height="18" aria-hidden="true">{}</svg><span></span></div>', axis)
    )


def _bar(bar: Bar, end: float, grid: str) -> Html:
    marks, start = [], 0.0
    for segment in bar.segments:
        share = max(0.0, segment.value) / end
        if share > 0:
            marks.append(_segment(segment, start, share))
            start += share
    rank = NOTHING if bar.rank is None else markup(' data-rank="{}"', bar.rank)
    track = markup('<svg class="track" height="{}">{}{}</svg>', _BAR_HEIGHT, grid, joined(marks))
    return markup('<span class="of"{}>{}</span>{}<span class="num">{}</span>', rank, bar.label, track, bar.note)


def _segment(segment: Segment, start: float, share: float) -> Html:
    rect = markup('<rect class="{}" x="{}" width="{}" height="100%"/>', segment.kind, _percent(start), _percent(share))
    said = ""
    if segment.said and share * 100 >= _WIDE_ENOUGH:
        said = markup('<text x="{}" y="12">{}</text>', _percent(start + share / 2), segment.said)
    return markup('<g class="mark"><title>{}</title>{}{}</g>', segment.title, rect, said)


def meter(share: float, kind: str = "") -> Html:
    """A share of one, for a cell of a table."""
    rect = markup(
        '<rect class="{}" width="{}" height="100%"/>', kind or "computation", _percent(min(1.0, max(0.0, share)))
    )
    return markup('<svg class="meter" width="60" height="8" aria-hidden="true">{}</svg>', rect)


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


def lines(chart: LineChart) -> Html:
    low, high = _range([*(line.values for line in chart.lines), *_lows(chart), *_bounds(chart.bands)], chart.least_span)
    places = _places(chart.x)
    body = joined(_band(band, places, low, high) for band in chart.bands)
    body += joined(_line(line, places, low, high) for line in chart.lines)
    rounds = ticks(low / chart.unit.size, high / chart.unit.size, 4)
    at = [tick * chart.unit.size for tick in rounds]
    heights = [(1 - (tick - low) / (high - low)) * 100 for tick in at]
    grid = joined(
        markup('<line class="grid" x2="100%" y1="{:.4g}%" y2="{:.4g}%"/>', height, height) for height in heights
    )
    labels = joined(
        markup('<text x="100%" y="{:.4g}%" dy=".35em" text-anchor="end">{}</text>', height, said)
        for said, height in zip(tick_texts(rounds, chart.unit), heights, strict=True)
    )
    plot = markup(
        '<svg class="plot" height="{}">{}'
        '<svg viewBox="0 0 1000 100" preserveAspectRatio="none" width="100%" height="100%">{}</svg>'
        "{}{}</svg>",
        _LINE_HEIGHT,
        grid,
        body,
        _hits(places, chart.titles),
        _flags(chart, places),
    )
    return markup(
        '<div class="xy"><svg class="y" height="{}" aria-hidden="true">{}</svg>{}<span></span>{}</div>',
        _LINE_HEIGHT,
        labels,
        plot,
        step_axis(chart.x, places, chart.x_name),
    )


def step_axis(x: Array, places: Array, name: str) -> Html:
    """Ticks at whole numbers; a name behind the last one."""
    first, last = int(x[0]), int(x[-1])
    at = [tick for tick in whole_ticks(first, last) if first <= tick <= last]
    positions = np.interp(at, x, places) if len(x) > 1 else [0.5] * len(at)
    shown = [(float(position), f"{tick:,}") for position, tick in zip(positions, at, strict=True)]
    named = markup('<text x="50%" y="27">{}</text>', name)
    return markup('<svg class="axis" height="30" aria-hidden="true">{}{}</svg>', _tick_texts(shown), named)


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


def _line(line: Line, places: Array, low: float, high: float) -> Html:
    """One path, interrupted where values are missing, unless gaps are joined. A single value is drawn as a dot."""
    finite = np.isfinite(line.values)
    if not finite.any():
        return NOTHING
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
    return markup('<path class="line {}{}" d="{}"/>', line.kind, dot, "".join(parts))


def _band(band: Band, places: Array, low: float, high: float) -> Html:
    parts = []
    for run in _runs(np.isfinite(band.low) & np.isfinite(band.high)):
        x = (places[run] * 1000).tolist()
        above = zip(x, _heights(band.high[run], low, high).tolist(), strict=True)
        below = zip(x[::-1], _heights(band.low[run], low, high).tolist()[::-1], strict=True)
        parts.append("M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in (*above, *below)) + "Z")
    return markup('<path class="band {}" d="{}"/>', band.kind, "".join(parts)) if parts else NOTHING


def _heights(values: Array, low: float, high: float) -> Array:
    shown: Array = (1 - (values - low) / (high - low)) * 100
    return shown


def _runs(wanted: Array) -> list[slice]:
    """The runs of wanted positions."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], wanted, [False])).astype(np.int8)))
    return [slice(int(start), int(end)) for start, end in zip(edges[::2], edges[1::2], strict=True)]


def _hits(places: Array, titles: Sequence[str]) -> Html:
    """A column for each x, invisible until the pointer is over it."""
    middles = (places[1:] + places[:-1]) / 2
    edges = np.concatenate(([0.0], middles, [1.0])).tolist()
    return joined(
        markup(
            '<rect class="mark hit" x="{}" width="{}" height="100%"><title>{}</title></rect>',
            _percent(start),
            _percent(end - start),
            title,
        )
        for start, end, title in zip(edges[:-1], edges[1:], titles, strict=True)
    )


def _flags(chart: LineChart, places: Array) -> Html:
    drawn = []
    # A single value has no before and after, and a series may end before what the flag is about.
    shown = [flag for flag in chart.flags if len(chart.x) > 1 and chart.x[0] <= flag.x <= chart.x[-1]]
    for number, flag in enumerate(shown):
        x = float(np.interp(flag.x, chart.x, places))
        anchor = "end" if x > 0.9 else "start"
        where = markup('x="{}" dx="{}" y="{}"', _percent(x), -4 if x > 0.9 else 4, 11 + 12 * (number % 4))
        said = markup('<text {} text-anchor="{}">{}</text>', where, anchor, flag.said)
        drawn.append(
            markup(
                '<g class="flag {}"><title>{}</title><line x1="{}" x2="{}" y2="100%"/>',
                flag.kind,
                flag.title,
                _percent(x),
                _percent(x),
            )
            + (markup('<a href="#{}">{}</a>', flag.link, said) if flag.link else said)
            + markup("</g>")
        )
    return joined(drawn)


# Strips


class Lane(NamedTuple):
    label: str
    spans: Sequence[tuple[float, float, Segment]]  # from, to (in the unit of the strip), what
    rank: int | None = None


def strips(lanes: Sequence[Lane], unit: Unit, length: float, edges: Sequence[float] = ()) -> Html:
    """Lanes over one axis of time that starts at zero; edges are lines through all of them, such as ends of steps."""
    length = length or 1.0
    cuts = joined(
        markup('<line class="edge" x1="{}" x2="{}" y2="100%"/>', _percent(at / length), _percent(at / length))
        for at in edges
    )
    drawn = []
    for lane in lanes:
        marks = joined(
            markup(
                '<rect class="mark {}" x="{}" width="{}" height="100%"><title>{}</title></rect>',
                what.kind,
                _percent(start / length),
                _percent((end - start) / length),
                what.title,
            )
            for start, end, what in lane.spans
        )
        rank = NOTHING if lane.rank is None else markup(' data-rank="{}"', lane.rank)
        drawn.append(
            markup(
                '<span class="of"{}>{}</span><svg class="track" height="{}">{}{}</svg>',
                rank,
                lane.label,
                _STRIP_HEIGHT,
                marks,
                cuts,
            )
        )
    rounds = ticks(0, length / unit.size, 6)
    said = tick_texts(rounds, unit)
    axis = _tick_texts([(tick * unit.size / length, each) for tick, each in zip(rounds, said, strict=True)])
    below = markup('<span></span><svg class="axis" height="18" aria-hidden="true">{}</svg>', axis)
    return markup('<div class="lanes">{}{}</div>', joined(drawn), below)


# Shared


def _tick_texts(at: Sequence[tuple[float, str]]) -> Html:
    """The outermost ones lean inwards, so that nothing is cut off."""
    drawn = []
    for x, said in at:
        anchor = "start" if x < 0.02 else "end" if x > 0.98 else "middle"
        drawn.append(markup('<text x="{}" y="13" text-anchor="{}">{}</text>', _percent(x), anchor, said))
    return joined(drawn)


def _percent(share: float) -> str:
    shown = f"{share * 100:.2f}" if math.isfinite(share) else "0"
    return (shown.rstrip("0").rstrip(".") if "." in shown else shown) + "%"
