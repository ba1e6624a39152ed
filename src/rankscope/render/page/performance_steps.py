"""How long the steps of each rank take, and what their time consists of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rankscope.model.finding import count_noun
from rankscope.model.tables import MISSING, Array, Table
from rankscope.render.html import NOTHING, Html, joined, markup
from rankscope.render.listing import Column, cell, row
from rankscope.render.page.chart_marks import Marks
from rankscope.render.page.chart_scale import PERCENT, Unit, number_text, time_unit
from rankscope.render.page.chart_section import MAX_ROWS, WORST, more_rows, section, table_below
from rankscope.render.page.charts import Bar, Flag, Key, Line, LineChart, Segment, bars, figure, lines
from rankscope.render.page.contents import Contents
from rankscope.render.page.heat_map import HeatMap, heat_map

FEW_RANKS = 8  # as lines; more are a map
_MAX_STEPS = 300  # of a chart of lines
_LEAST_SPAN = 0.2  # of the median, on the axis of a chart of lines
_SHARE = 0.04  # of the page, for one map
# A part of a step, its columns, and what it is called.
_PARTS = (
    ("computation", ("kernel_ns",), "computation"),
    ("memory", ("memcpy_ns", "memset_ns"), "copies and fills"),
    ("communication", ("communication_ns",), "exposed communication"),
    ("runtime", ("runtime_ns",), "runtime calls"),
    ("loading", ("data_loader_ns",), "data loading"),
    ("operators", ("cpu_ns",), "operators on the host"),
    ("nothing", ("other_ns",), "nothing recorded"),
)


class _Grid(NamedTuple):
    """Ranks x steps, NaN where a rank has no such step."""

    ranks: Array
    steps: Array
    duration: Array
    own: Array  # without exposed communication: what the rank needs for itself


# Step times


def step_section(contents: Contents, marks: Marks) -> Html:
    grid = _grid(contents.trace.table("step_breakdown"))
    if grid.steps[-1] == MISSING:
        return NOTHING  # no step was marked: the breakdown below is of whole traces
    unit = time_unit(float(np.nanmedian(grid.duration)))
    body = _charts(contents, grid, unit, marks)
    return section("step-times", "Step times", _summary(grid, unit), body, _worst_steps(contents, grid, unit))


def _grid(breakdown: Table) -> _Grid:
    rank, step = breakdown.array("rank"), breakdown.array("step")
    if np.any(step != MISSING):
        marked = np.flatnonzero(step != MISSING)
        breakdown, rank, step = breakdown.take(marked), rank[marked], step[marked]
    ranks, row_of = np.unique(rank, return_inverse=True)
    steps, column_of = np.unique(step, return_inverse=True)
    duration = breakdown.array("duration_ns").astype(np.float64)
    planes = []
    for values in (duration, duration - breakdown.array("communication_ns")):
        plane = np.full((len(ranks), len(steps)), -np.inf)
        np.maximum.at(plane, (row_of, column_of), values)
        planes.append(np.where(np.isinf(plane), np.nan, plane))
    return _Grid(ranks, steps, *planes)


def _summary(grid: _Grid, unit: Unit) -> str:
    middle = float(np.nanmedian(grid.duration))
    said = f"{count_noun(len(grid.steps), 'step')} of {unit.text(middle)} (median)."
    longest = np.nanmax(grid.duration, axis=0)
    slow = [column for column in np.argsort(-longest, kind="stable")[:3].tolist() if longest[column] > 1.1 * middle]
    if slow:
        named = ", ".join(f"{grid.steps[column]} ({unit.text(longest[column])})" for column in slow)
        said += f" Longest {'step' if len(slow) == 1 else 'steps'}: {named}."
    if len(grid.ranks) > 1:
        said += " Ranks that communicate take equally long; compare their own time instead."
    return said


def _charts(contents: Contents, grid: _Grid, unit: Unit, marks: Marks) -> Html:
    shown = [("step-time", "Step time", grid.duration)]
    if np.any(grid.own < grid.duration):
        shown.append(("own-time", "Own time: step time minus exposed communication", grid.own))
    drawn = []
    for name, title, values in shown:
        if len(grid.ranks) <= FEW_RANKS:
            chart, legend = _line_chart(grid, values, unit, marks)
        else:
            map_ = HeatMap(name, grid.ranks, grid.steps, values, unit, marks.of_rank)
            chart, legend = heat_map(contents, map_, _SHARE), ()
        drawn.append(markup("<div><h4>{}</h4>{}</div>", title, figure(f"chart-{name}", title, chart, legend)))
    return markup('<div class="multiples">{}</div>', joined(drawn))


def _line_chart(grid: _Grid, values: Array, unit: Unit, marks: Marks) -> tuple[Html, Sequence[Key]]:
    merged = -(-len(grid.steps) // _MAX_STEPS)  # steps to one point: the longest counts
    starts = np.arange(0, len(grid.steps), merged)
    filled = np.where(np.isnan(values), -np.inf, values)
    highest = np.maximum.reduceat(filled, starts, axis=1)
    highest[np.isinf(highest)] = np.nan
    steps = grid.steps[starts]
    titles = [_title(steps, index, merged, grid.ranks, highest, unit) for index in range(len(steps))]
    flags = [
        Flag(step, code, f"{code} names step {step}", anchor)
        for step in steps.tolist()
        for code, anchor in marks.of_step.get(step, ())
    ]
    drawn = [
        Line(f"rank {rank}", height, f"s{index}")
        for index, (rank, height) in enumerate(zip(grid.ranks, highest, strict=True))
    ]
    legend = (
        [Key(f"key s{index}", marks.label(rank)) for index, rank in enumerate(grid.ranks.tolist())]
        if len(drawn) > 1
        else []
    )
    return lines(
        LineChart(steps, drawn, unit, titles, flags=flags, least_span=_LEAST_SPAN * float(np.nanmedian(values)))
    ), legend


def _title(steps: Array, column: int, joined: int, ranks: Array, values: Array, unit: Unit) -> str:
    last = steps[column + 1] - 1 if column + 1 < len(steps) else steps[column]
    head = f"step {steps[column]}" if joined == 1 else f"steps {steps[column]} to {last}, the longest"
    lines = [
        f"rank {rank}: {unit.text(value)}"
        for rank, value in zip(ranks, values[:, column], strict=True)
        if np.isfinite(value)
    ]
    return "\n".join([head, *lines])


def _worst_steps(contents: Contents, grid: _Grid, unit: Unit) -> Html:
    """By the excess of a rank's own time over the median rank's in the step; with few ranks, over its other steps."""
    across = len(grid.ranks) >= 3
    usual = np.broadcast_to(np.nanmedian(grid.own, axis=0 if across else 1, keepdims=True), grid.own.shape)
    excess = np.where(np.isfinite(grid.own), grid.own - usual, -np.inf)
    order = np.argsort(-excess, axis=None, kind="stable")[:WORST]
    against = "the median rank" if across else "its median step"
    columns = (
        Column("Rank", True),
        Column("Step", True),
        Column(f"Step time ({unit.name})", True),
        Column(f"Own time ({unit.name})", True, "Step time minus exposed communication."),
        Column(f"Above {against} ({unit.name})", True),
        Column("%", True),
    )
    rows = []
    for cell_number in order.tolist():
        at = np.unravel_index(cell_number, grid.own.shape)
        if not np.isfinite(excess[at]):
            continue
        numbers = [float(plane[at]) for plane in (grid.duration, grid.own, excess)]
        more = excess[at] / usual[at] * 100 if usual[at] else 0.0
        rank, step = int(grid.ranks[at[0]]), int(grid.steps[at[1]])
        cells = [cell(f"{rank}", rank), cell(f"{step}", step)]
        rows.append(
            row([*cells, *(cell(unit.number(value), value) for value in numbers), cell(number_text(more), more)])
        )
    return table_below(contents, "worst-steps", columns, rows, f"The {len(rows)} worst steps")


# Breakdown


def breakdown_section(contents: Contents, marks: Marks) -> Html:
    breakdown = contents.trace.table("step_breakdown")
    rank = breakdown.array("rank")
    ranks, row_of = np.unique(rank, return_inverse=True)
    counts = np.bincount(row_of)
    parts = np.stack([np.bincount(row_of, values) / counts for values in _part_columns(breakdown)], axis=1)
    order = np.argsort(parts[:, 2] - parts.sum(axis=1), kind="stable")  # the longest own time first
    is_whole = bool(np.all(breakdown.array("step") == MISSING))
    unit = time_unit(float(np.median(parts.sum(axis=1))))
    shown = [
        _part_bar(marks.label(int(ranks[index])), parts[index], unit, int(ranks[index])) for index in order[:WORST]
    ]
    if len(ranks) > 2:
        shown.append(_part_bar("median rank", np.median(parts, axis=0), unit, None))
    what = "the whole trace (no steps were marked)" if is_whole else "an average step"
    said = f"Where the time goes in {what}. Overlapping activities are counted once, in the order of the legend."
    if len(ranks) > WORST:
        many = count_noun(len(ranks), "rank")
        said += f" The chart shows the {WORST} of {many} with the most time outside of communication."
    legend = [Key(kind, name) for number, (kind, _, name) in enumerate(_PARTS) if parts[:, number].any()]
    chart = figure("chart-breakdown", "Where each rank's time goes", bars(shown, unit), legend)
    per_step = _step_bars(breakdown, unit, marks)
    below = _part_table(contents, ranks, parts, order, unit)
    return section("breakdown", "Breakdown", said, chart, below, per_step)


def _part_columns(breakdown: Table) -> list[Array]:
    return [np.sum([breakdown.array(column) for column in columns], axis=0) for _, columns, _ in _PARTS]


def _part_bar(label: str, parts: Array, unit: Unit, rank: int | None) -> Bar:
    whole = float(parts.sum()) or 1.0
    segments = [
        Segment(kind, value, f"{name}: {unit.text(value)} ({value / whole * 100:.1f}%)", f"{value / whole * 100:.0f}%")
        for (kind, _, name), value in zip(_PARTS, parts.tolist(), strict=True)
    ]
    return Bar(label, segments, unit.text(whole), rank)


def _part_table(contents: Contents, ranks: Array, parts: Array, order: Array, unit: Unit) -> Html:
    used = [number for number in range(len(_PARTS)) if parts[:, number].any()]
    columns = [Column("Rank", True), Column(f"Time ({unit.name})", True)]
    columns += [Column(f"{_PARTS[number][2].capitalize()} ({PERCENT.name})", True) for number in used]
    rows = []
    for index in order[:MAX_ROWS].tolist():
        whole = float(parts[index].sum())
        shares = [parts[index, number] / whole * 100 if whole else 0.0 for number in used]
        head = [cell(f"{ranks[index]}", int(ranks[index])), cell(unit.number(whole), whole)]
        rows.append(row([*head, *(cell(number_text(share), share) for share in shares)]))
    return table_below(contents, "breakdown-ranks", columns, rows, "Ranks") + more_rows(
        len(ranks), "rank", "rankscope metrics PATH steps"
    )


def _step_bars(breakdown: Table, unit: Unit, marks: Marks) -> Html:
    """The mean over all ranks, step by step; only the longest steps if there are many."""
    steps, row_of = np.unique(breakdown.array("step"), return_inverse=True)
    if len(steps) < 2:
        return NOTHING
    counts = np.bincount(row_of)
    parts = np.stack([np.bincount(row_of, values) / counts for values in _part_columns(breakdown)], axis=1)
    kept = np.sort(np.argsort(-parts.sum(axis=1), kind="stable")[:WORST])
    shown = []
    for index in kept.tolist():
        step = int(steps[index])
        flags = [markup('<a class="code" href="#{}">{}</a>', *reversed(flag)) for flag in marks.of_step.get(step, ())]
        label = joined([*flags, f"step {step}" if step != MISSING else "no step"], " ")
        shown.append(_part_bar(label, parts[index], unit, None))
    said = "By step, averaged over ranks" + (f"; the {WORST} longest of {len(steps):,}" if len(steps) > WORST else "")
    return markup("<h4>{}</h4>", said) + figure("chart-steps", said, bars(shown, unit))
