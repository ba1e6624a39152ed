"""The numbers that ranks logged during training, over steps, with the findings at the steps that they are about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rankscope.model.finding import Finding, count_noun, finding_anchors, ranks_phrase
from rankscope.model.tables import MISSING, Array
from rankscope.render.html import Html, joined, markup, text
from rankscope.render.listing import Column, cell, row
from rankscope.render.page.chart_marks import steps_of
from rankscope.render.page.chart_scale import PLAIN, Unit, number_text, size_unit, time_unit
from rankscope.render.page.chart_section import WORST, shortened, table_below
from rankscope.render.page.charts import Band, Flag, Key, Line, LineChart, figure, lines
from rankscope.render.page.contents import Contents, View, absent, view
from rankscope.render.page.metrics_data import Series, metric_names, series_of

ANCHOR = "metrics"
TITLE = "Metrics"
FEW_RANKS = 8  # as lines; of more, their spread and the odd ones
_SHARE = 0.05  # of the page
_ABSENT = (
    "This capture has no metrics. rankscope record collects step times, throughput and memory without a code change; "
    'rankscope.metric("loss", value) in your code adds your own numbers.'
)
_COMMAND = "rankscope record -o traces/ -- torchrun train.py"
_MAX_CHARTS = 24
_MAX_NAME = 100
_N_ODD = 4
_ODD = 5.0  # median deviations from the median rank
_FEWEST_POINTS, _MOST_POINTS = 24, 240
_BYTES_PER_POINT, _BYTES_PER_VALUE = 130, 45  # about: of the hidden column and its title, and of each line in both


@view("metrics", place=40)
def metrics_view(contents: Contents) -> View:
    names = metric_names(contents.trace)
    if not names:
        return absent(ANCHOR, TITLE, _ABSENT, _COMMAND)
    shown = names[:_MAX_CHARTS]
    if len(names) > len(shown):
        contents.remarks.append(f"The first {len(shown)} of {len(names):,} metrics are shown.")
    n_points = _n_points(contents, len(shown))
    all_series = [series_of(contents.trace, name, n_points) for name in shown]
    thinned = [series.name for series in all_series if series.n_joined > 1]
    if thinned:
        contents.remarks.append(
            f"{count_noun(len(thinned), 'metric')} with more than {n_points} steps: each point covers several steps "
            "and shows their lowest and highest value."
        )
    charts = joined(_chart(contents, series, number) for number, series in enumerate(all_series))
    body = markup('{}<div class="multiples">{}</div>{}', _intro(all_series), charts, _worst(contents, all_series))
    return View(ANCHOR, TITLE, body, badge=f"{len(names):,}")


def _n_points(contents: Contents, n_charts: int) -> int:
    n_ranks = len(np.unique(contents.trace.table("metrics").array("rank")))
    n_lines = n_ranks if n_ranks <= FEW_RANKS else 5 + _N_ODD
    n_bytes = _BYTES_PER_POINT + n_lines * _BYTES_PER_VALUE
    return max(_FEWEST_POINTS, min(_MOST_POINTS, contents.room(_SHARE) // (n_bytes * n_charts)))


def _intro(all_series: Sequence[Series]) -> Html:
    n_ranks = max(len(series.ranks) for series in all_series)
    said = f"{count_noun(len(all_series), 'metric')} from {count_noun(n_ranks, 'rank')}."
    if n_ranks > FEW_RANKS:
        said += (
            " The line is the median rank; the bands are the middle 80% and the full range. Outlier ranks have their"
            " own lines."
        )
    if n_ranks > FEW_RANKS and any(series.n_joined > 1 for series in all_series):
        said += " Where a point covers several steps, lines show the mean and the outer band the extremes."
    broken = [_not_numbers(series) for series in all_series if series.broken]
    alarm = joined(markup('<p class="holes">{}</p>', each) for each in broken)
    return markup("<p>{}</p>{}", said, alarm)


def _not_numbers(series: Series) -> str:
    broken = series.broken
    assert broken is not None
    where = f"step {broken.step:,}" if series.has_steps else f"value {broken.step + 1:,}"
    return f"{shortened(series.name, _MAX_NAME)} is {number_text(broken.value)} at {where}{_on(broken.ranks)}" + (
        f", the first of {broken.n:,} such values." if broken.n > 1 else "."
    )


def _on(ranks: Sequence[int]) -> str:
    known = [rank for rank in ranks if rank != MISSING]
    return f" on {ranks_phrase(known)}" if known else ""


def rank_label(rank: int) -> str:
    """Logs of other tools rarely say which rank wrote them."""
    return f"rank {rank}" if rank != MISSING else "rank not recorded"


# Charts


class _Drawn(NamedTuple):
    lines: Sequence[Line]
    bands: Sequence[Band]
    legend: Sequence[Key]


def _chart(contents: Contents, series: Series, number: int) -> Html:
    unit = unit_of(series)
    scaled = series.scaled(_TO_NS) if series.name.endswith("_s") and not series.name.endswith("_per_s") else series
    drawn = _few(scaled) if len(series.ranks) <= FEW_RANKS else _many(scaled)
    chart = LineChart(
        scaled.steps,
        drawn.lines,
        unit,
        _titles(scaled, drawn, unit),
        drawn.bands,
        _flags(contents, series),
        "step" if series.has_steps else "value",
    )
    title = shortened(series.name, _MAX_NAME)
    return markup("<div><h3>{}</h3>{}</div>", title, figure(f"metric-{number}", title, lines(chart), drawn.legend))


_TO_NS = 1e9


def unit_of(series: Series) -> Unit:
    """As the name says: step_time_s is in seconds, host_memory_bytes in bytes."""
    finite = series.high[np.isfinite(series.high)]
    largest = float(np.abs(finite).max()) if finite.size else 0.0
    if series.name.endswith("_bytes"):
        return size_unit(largest)
    if series.name.endswith("_bytes_per_s"):
        size = size_unit(largest)
        return size._replace(name=f"{size.name}/s")
    if series.name.endswith("_s") and not series.name.endswith("_per_s"):
        return time_unit(largest * _TO_NS)
    return PLAIN


def _few(series: Series) -> _Drawn:
    joined = series.n_joined > 1
    drawn = [
        # Ranks tell some numbers now and then, each at steps of its own. What is no number does interrupt a line.
        Line(
            rank_label(rank), series.high[index], f"s{index}", series.low[index] if joined else None, not series.broken
        )
        for index, rank in enumerate(series.ranks.tolist())
    ]
    legend = [Key(f"key s{index}", text(line.label)) for index, line in enumerate(drawn)] if len(drawn) > 1 else []
    return _Drawn(drawn, (), legend)


def _many(series: Series) -> _Drawn:
    values = _finite(series.middle)
    tenth, middle, ninetieth = _quantiles(values, (0.1, 0.5, 0.9))
    low, high = _quantiles(series.low, (0.0,))[0], _quantiles(series.high, (1.0,))[0]
    odd = odd_ranks(values)
    drawn = [Line("median rank", middle, "middle")]
    drawn += [
        Line(rank_label(series.ranks[index]), values[index], f"s{1 + number}") for number, index in enumerate(odd)
    ]
    legend = [Key("key middle", "median rank"), Key("band-key", "10 to 90% of the ranks, and full range")]
    legend += [Key(f"key s{1 + number}", rank_label(series.ranks[index])) for number, index in enumerate(odd)]
    return _Drawn(drawn, (Band(low, high, "outer"), Band(tenth, ninetieth, "inner")), legend)


def odd_ranks(values: Array) -> list[int]:
    """Rows that are far from the median row most of the time, the farthest first."""
    middle = _quantiles(values, (0.5,))[0]
    away = np.abs(values - middle)
    usual = _quantiles(away, (0.5,))[0]
    floor = 0.02 * np.abs(middle) + 1e-12  # where all ranks agree, the least difference would be odd
    score = _quantiles((away / np.maximum(usual, floor)).T, (0.5,))[0]
    order = np.argsort(-np.nan_to_num(score, nan=-1.0), kind="stable")[:_N_ODD]
    return [int(index) for index in order if score[index] > _ODD]


def _finite(values: Array) -> Array:
    return np.where(np.isfinite(values), values, np.nan)


def _quantiles(values: Array, shares: Sequence[float]) -> Array:
    """Over the rows, of what is there; NaN in a column without any."""
    empty = np.isnan(values).all(axis=0)
    filled = np.where(empty, 0.0, values)
    quantiles: Array = np.nanquantile(filled, shares, axis=0)
    quantiles[:, empty] = np.nan
    return quantiles


def _titles(series: Series, drawn: _Drawn, unit: Unit) -> list[str]:
    titles = []
    last = [*(series.steps[1:] - 1).tolist(), series.last_step]
    noun = "step" if series.has_steps else "value"
    for index, (first, end) in enumerate(zip(series.steps.tolist(), last, strict=True)):
        lines = [f"{noun} {first:,}" if series.n_joined == 1 else f"{noun}s {first:,} to {end:,}"]
        for line in drawn.lines:
            value = line.values[index]
            if np.isfinite(value):
                low = line.lows[index] if line.lows is not None else value
                lines.append(f"{line.label}: " + (f"{unit.text(low)} to " if low < value else "") + unit.text(value))
        if drawn.bands:
            lines.append(
                f"all ranks: {unit.text(drawn.bands[0].low[index])} to {unit.text(drawn.bands[0].high[index])}"
            )
        titles.append("\n".join(lines))
    return titles


def _flags(contents: Contents, series: Series) -> list[Flag]:
    flags = []
    if series.broken:
        said = number_text(series.broken.value)
        flags.append(Flag(float(series.broken.step), said, _not_numbers(series), kind="broken"))
    return [*flags, *finding_flags(contents, series)]


# The table


def _worst(contents: Contents, all_series: Sequence[Series]) -> Html:
    """Per metric, the ranks and steps farthest from the median."""
    columns = (
        Column("Metric"),
        Column("Rank", True),
        Column("Step", True),
        Column("Value", True),
        Column("Median", True, "Of all ranks and steps."),
        Column("Times the usual deviation", True),
    )
    ranked = []
    for series in all_series:
        unit = unit_of(series)
        factor = _TO_NS if unit.name in ("s", "ms", "us", "ns") else 1.0
        ranked += [
            (score, series.name, rank, step, value * factor, middle * factor, unit)
            for score, rank, step, value, middle in _far(series)
        ]
    ranked.sort(key=lambda each: (-each[0], each[1], each[2], each[3]))
    rows = [
        row(
            [
                cell(text(shortened(name, _MAX_NAME))),
                cell(f"{rank}" if rank != MISSING else "", rank),
                cell(f"{step:,}", step),
                cell(text(unit.text(value)), value),
                cell(text(unit.text(middle)), middle),
                cell(number_text(score) if np.isfinite(score) else "", min(score, 1e300)),
            ]
        )
        for score, name, rank, step, value, middle, unit in ranked[:WORST]
    ]
    return table_below(contents, "metric-values", columns, rows, f"The {len(rows)} biggest outliers")


def _far(series: Series) -> list[tuple[float, int, int, float, float]]:
    """(score, rank, step, value, median); values that are not numbers come first."""
    finite = np.isfinite(series.high)
    middle = float(np.median(series.high[finite])) if finite.any() else np.nan
    above, below = series.high - middle, middle - series.low
    value = np.where(above >= below, series.high, series.low)
    away = np.abs(value - middle)
    usual = max(float(np.median(away[finite])) if finite.any() else 0.0, 0.02 * abs(middle), 1e-12)
    score = np.where(finite, away / usual, -1.0)
    places = np.argsort(-score, axis=None, kind="stable")[:WORST].tolist()
    outliers = []
    if series.broken:
        rank = series.broken.ranks[0]
        outliers.append((float("inf"), rank, series.broken.step, series.broken.value, middle))
    for index in places:
        at = np.unravel_index(index, score.shape)
        if score[at] > 0:
            outliers.append(
                (float(score[at]), int(series.ranks[at[0]]), int(series.steps[at[1]]), float(value[at]), middle)
            )
    return outliers


# Findings about metrics


_MAX_FLAGS = 8  # of a chart


def finding_flags(contents: Contents, series: Series) -> list[Flag]:
    """The first step that each finding names, else the step at whose time its collective was called."""
    flags = []
    findings = contents.report.findings
    for anchor, finding in zip(finding_anchors(findings), findings, strict=True):
        step = next(_steps(contents, finding, series), None)
        if step is not None and series.steps[0] <= step <= series.last_step:
            flags.append(Flag(float(step), finding.code, f"{finding.code}: {finding.title}", anchor))
    return flags[:_MAX_FLAGS]


def _steps(contents: Contents, finding: Finding, series: Series) -> Iterator[int]:
    if series.has_steps:
        yield from steps_of(finding)[:1]
    called = _called_ns(contents, finding)
    known = np.flatnonzero(series.times > 0)
    if called and len(known):
        after = int(np.searchsorted(np.maximum.accumulate(series.times[known]), called))
        # A metric is told when its step ends: the call belongs to the first step that was told after it.
        yield int(series.steps[known[after]]) if after < len(known) else series.last_step


def _called_ns(contents: Contents, finding: Finding) -> int:
    """When the first rank made the call; 0 when no recorder says."""
    if not (finding.group and finding.collective):
        return 0
    group_id = contents.group_id(finding.group)
    calls = contents.trace.table("collectives")
    if group_id is None or not len(calls):
        return 0
    sequence = calls.array("p2p_seq" if finding.collective.p2p else "seq")
    created = calls.array("created_ns")
    rows = (calls.array("group_id") == group_id) & (sequence == finding.collective.seq) & (created > 0)
    return int(created[rows].min()) if rows.any() else 0
