"""A rank x step map of times: marks where they are few, a canvas that charts.js fills where they are many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from rankscope.model.tables import Array
from rankscope.render.html import Html, joined, markup
from rankscope.render.page.blocks import Block
from rankscope.render.page.chart_scale import Unit, whole_ticks
from rankscope.render.page.charts import MAX_MARKS, step_axis
from rankscope.render.page.contents import Contents

_N_LEVELS = 9  # classes h0 to h8 of report.css
_LARGEST = 65_534  # of a uint16; 0 stands for a missing value
_BYTES_PER_CELL = 2 * 4 / 3  # at worst: noise cannot be packed
_LEAST_ROW, _MOST_ROW, _MOST_HEIGHT = 4, 20, 420  # pixels


class HeatMap(NamedTuple):
    name: str
    ranks: Array
    steps: Array
    values: Array  # ranks x steps; NaN where a rank has no such step
    unit: Unit
    flags: Mapping[int, Html]  # links to what was found about a rank


def heat_map(contents: Contents, map_: HeatMap, share: float) -> Html:
    """`share` of the page is what its data may take; steps that do not fit are merged, keeping the longest."""
    room = contents.room(share) / _BYTES_PER_CELL
    columns = _joined(map_, max(1, int(room // max(1, len(map_.ranks)))))
    if len(columns.steps) < len(map_.steps):
        said = (
            f"The maps of step times have {len(columns.steps):,} columns for {len(map_.steps):,} steps; "
            "each column shows its longest step."
        )
        if said not in contents.remarks:
            contents.remarks.append(said)
    low, high = _span(map_.values)
    n_ranks = len(map_.ranks)
    height = min(_MOST_HEIGHT, n_ranks * max(_LEAST_ROW, min(_MOST_ROW, _MOST_HEIGHT // n_ranks)))
    if columns.values.size <= MAX_MARKS:
        plot = _marks(columns, low, high, height)
    else:
        contents.blocks.add(map_.name, lambda: _block(columns, low, high))
        plot = markup('<canvas data-block-name="{}" height="{}"></canvas>', map_.name, height)
    places = (np.arange(len(columns.steps)) + 0.5) / len(columns.steps)
    axis = step_axis(columns.steps, places, "step")
    return (
        markup(
            '<div class="xy heat">{}{}<span></span>{}</div>'
            '<p class="legend heat-key">{}<svg width="135" height="10" aria-hidden="true">',
            _rank_axis(map_, height),
            plot,
            axis,
            map_.unit.text(low),
        )
        + joined(
            markup('<rect class="h{}" x="{}" width="15" height="10"/>', level, level * 15) for level in range(_N_LEVELS)
        )
        + markup("</svg>{}</p>", map_.unit.text(high))
    )


def _joined(map_: HeatMap, n_columns: int) -> HeatMap:
    n_steps = len(map_.steps)
    if n_steps <= n_columns:
        return map_
    starts = np.unique(np.arange(n_columns) * n_steps // n_columns)
    filled = np.where(np.isnan(map_.values), -np.inf, map_.values)
    longest = np.maximum.reduceat(filled, starts, axis=1)
    return map_._replace(steps=map_.steps[starts], values=np.where(np.isinf(longest), np.nan, longest))


def _span(values: Array) -> tuple[float, float]:
    """Where all are much alike, small differences must not look like large ones, and all is calm."""
    middle = float(np.nanmedian(values))
    low, high = min(float(np.nanmin(values)), 0.9 * middle), max(float(np.nanmax(values)), 1.4 * middle)
    return low, (high if high > low else low + 1)


def _marks(map_: HeatMap, low: float, high: float, height: int) -> Html:
    n_ranks, n_steps = map_.values.shape
    levels = np.clip((map_.values - low) / (high - low) * _N_LEVELS, 0, _N_LEVELS - 1)
    wide, tall = 100 / n_steps, 100 / n_ranks
    cells = []
    for row, column in zip(*np.nonzero(np.isfinite(map_.values)), strict=True):
        title = f"rank {map_.ranks[row]}, step {map_.steps[column]}: {map_.unit.text(map_.values[row, column])}"
        cells.append(
            markup(
                '<rect class="mark h{}" x="{:.4g}%" y="{:.4g}%" '
                'width="{:.4g}%" height="{:.4g}%"><title>{}</title></rect>',
                int(levels[row, column]),
                column * wide,
                row * tall,
                wide,
                tall,
                title,
            )
        )
    return markup('<svg class="plot" height="{}" data-columns="{}">{}</svg>', height, n_steps, joined(cells))


def _block(map_: HeatMap, low: float, high: float) -> Block:
    """Times in units of the scale's 65,534th part."""
    scaled = np.clip((map_.values - low) / (high - low), 0, 1) * (_LARGEST - 1) + 1
    meta = {
        "low": low / map_.unit.size,
        "high": high / map_.unit.size,
        "unit": map_.unit.name,
        "columns": len(map_.steps),
    }
    arrays: dict[str, Array] = {
        "value": np.where(np.isnan(scaled), 0, scaled).astype(np.uint16).ravel(),
        "rank": map_.ranks.astype(np.int32),
        "step": map_.steps.astype(np.int32),
    }
    return Block(meta, arrays)


def _rank_axis(map_: HeatMap, height: int) -> Html:
    """Round numbers, and the ranks that findings name; those win where both would be in one place."""
    n_ranks = len(map_.ranks)
    at = {int(rank): (index + 0.5) / n_ranks * height for index, rank in enumerate(map_.ranks.tolist())}
    taken: list[float] = []
    drawn = []
    flagged = [rank for rank in map_.flags if rank in at]
    round_ones = [tick for tick in whole_ticks(int(map_.ranks[0]), int(map_.ranks[-1]), height // 30) if tick in at]
    for rank in (*flagged, *round_ones):
        if all(abs(at[rank] - other) >= 12 for other in taken):
            taken.append(at[rank])
            flag = map_.flags.get(rank, "")
            drawn.append(
                markup('<text x="100%" y="{:.0f}" dy=".35em" text-anchor="end">{} rank {}</text>', at[rank], flag, rank)
            )
    return markup('<svg class="y" height="{}">{}</svg>', height, joined(drawn))
