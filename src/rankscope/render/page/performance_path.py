"""What determined how long the job took, and what would shorten it."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from rankscope.model.tables import MISSING, Array, Table
from rankscope.render.html import NOTHING, Html, markup, text
from rankscope.render.listing import Column, cell, row
from rankscope.render.page.chart_marks import Marks
from rankscope.render.page.chart_scale import Unit, number_text, time_unit
from rankscope.render.page.chart_section import MAX_ROWS, more_rows, section, shortened, table_below
from rankscope.render.page.charts import Bar, Key, Lane, Segment, bars, figure, strips
from rankscope.render.page.contents import Contents

_N_BINS = 400  # moments of the strip; each shows what took most of it
_N_LANES = 8  # ranks that have a lane of their own
_MAX_EDGES = 50
_MAX_NAME = 200
# The class that gives the color, and the words, for each kind of piece.
_KINDS = {
    "kernel": ("computation", "kernel"),
    "communication": ("communication", "communication"),
    "copy": ("memory", "copy or fill"),
    "host": ("operators", "host"),
    "data-loading": ("loading", "data loading"),
    "launch": ("runtime", "launch"),
    "sync": ("waiting", "host resumes after a wait"),
    "kernel-gap": ("nothing", "gap between kernels"),
}
_SUMMARY = f"""
    SELECT rank, kind, n_pieces, duration_ns, coalesce(share_pct, 0), coalesce(main_name, '') FROM path_summary
    ORDER BY duration_ns DESC, rank, kind LIMIT {MAX_ROWS}
"""


class _Binned(NamedTuple):
    """What took most of each bin of time: a lane, a kind, and a piece as an example; -1 where there was nothing."""

    lane: Array
    kind: Array
    piece: Array


def path_section(contents: Contents, marks: Marks) -> Html:
    path = contents.trace.table("critical_path")
    if not len(path):
        return NOTHING
    summary = contents.trace.sql(_SUMMARY).rows()
    unit = time_unit(float(path.array("duration_ns").sum()))
    columns = [
        Column("Rank", True),
        Column("Kind"),
        Column(f"Time ({unit.name})", True),
        Column("Of the path (%)", True),
        Column("Pieces", True),
        Column("Most of it"),
    ]
    rows = [
        row(
            [
                cell(marks.label(rank, word=""), rank),
                cell(text(_KINDS.get(kind, ("", kind))[1])),
                cell(unit.number(duration), duration),
                cell(number_text(share), share),
                cell(f"{n:,}", n),
                cell(markup('<span class="place">{}</span>', shortened(name, _MAX_NAME))),
            ]
        )
        for rank, kind, n, duration, share, name in summary
    ]
    return section(
        "critical-path",
        "Critical path",
        "The chain of work across all ranks that determined how long the job took: speeding up anything else gains "
        "nothing. Each mark shows what took most of that moment.",
        _strip(path, unit, marks),
        table_below(contents, "path-kinds", columns, rows, "Path"),
        more_rows(len(contents.trace.table("path_summary")), "row", "rankscope metrics PATH path_summary"),
    )


def _strip(path: Table, unit: Unit, marks: Marks) -> Html:
    start = path.array("start_ns")
    zero, end = int(start.min()), int((start + path.array("duration_ns")).max())
    ranks, lane_of = _lanes(path)
    binned = _binned(path, lane_of, np.linspace(zero, end, _N_BINS + 1))
    width = (end - zero) / _N_BINS
    lanes = [
        Lane(
            marks.label(rank) if rank is not None else "other ranks",
            [
                (first * width, last * width, _piece(path, int(binned.kind[first]), binned.piece[first:last], unit))
                for first, last in _same(binned, lane)
            ],
            rank,
        )
        for lane, rank in enumerate(ranks)
    ]
    kinds = path.text("kind").values
    seen = {kinds[kind] for kind in np.unique(binned.kind).tolist() if kind >= 0}
    legend = [Key(name, said) for kind, (name, said) in _KINDS.items() if kind in seen]
    chart = strips([lane for lane in lanes if lane.spans], unit, float(end - zero), _step_ends(path, zero))
    return figure("chart-path", "The critical path over time, by rank", chart, legend)


def _lanes(path: Table) -> tuple[list[int | None], Array]:
    """The ranks with most of the path, in order of rank; all others share the last lane."""
    ranks, row_of = np.unique(path.array("rank"), return_inverse=True)
    times = np.bincount(row_of, path.array("duration_ns"))
    chosen = np.sort(np.argsort(-times, kind="stable")[:_N_LANES])
    lane_of = np.full(len(ranks), len(chosen))
    lane_of[chosen] = np.arange(len(chosen))
    named: list[int | None] = ranks[chosen].tolist()
    return (named if len(chosen) == len(ranks) else [*named, None]), lane_of[row_of]


def _binned(path: Table, lane_of: Array, edges: Array) -> _Binned:
    """Pieces are cut at the edges of the bins; a bin belongs to the lane and kind that fill most of it."""
    start = path.array("start_ns").astype(np.float64)
    end = start + path.array("duration_ns")
    first = np.clip(np.searchsorted(edges, start, "right") - 1, 0, _N_BINS - 1)
    last = np.clip(np.searchsorted(edges, end, "left") - 1, 0, _N_BINS - 1)
    n_parts = np.maximum(last - first, 0) + 1
    piece = np.repeat(np.arange(len(start)), n_parts)
    bins = np.arange(len(piece)) - np.repeat(np.cumsum(n_parts) - n_parts, n_parts) + first[piece]
    within = np.minimum(end[piece], edges[bins + 1]) - np.maximum(start[piece], edges[bins])
    n_kinds = len(path.text("kind").values)
    n_lanes = int(lane_of.max()) + 1
    what = lane_of[piece] * n_kinds + path.text("kind").codes[piece]
    filled = np.bincount(bins * (n_lanes * n_kinds) + what, within, _N_BINS * n_lanes * n_kinds).reshape(_N_BINS, -1)
    winner = np.where(filled.max(axis=1) > 0, filled.argmax(axis=1), MISSING)
    # The longest piece of the winner is what the bin is named after.
    order = np.lexsort((within, bins))
    order = order[what[order] == winner[bins[order]]]
    example = np.full(_N_BINS, MISSING)
    example[bins[order]] = piece[order]
    lane, kind = np.where(winner >= 0, winner // n_kinds, MISSING), np.where(winner >= 0, winner % n_kinds, MISSING)
    return _Binned(lane, kind, example)


def _same(binned: _Binned, lane: int) -> list[tuple[int, int]]:
    """Runs of bins of the lane that have one kind."""
    key = np.where(binned.lane == lane, binned.kind, MISSING)
    edges = np.flatnonzero(np.diff(np.concatenate(([-2], key, [-2]))))
    return [(a, b) for a, b in itertools.pairwise(edges.tolist()) if key[a] >= 0]


def _piece(path: Table, kind: int, pieces: Array, unit: Unit) -> Segment:
    distinct = np.unique(pieces)
    durations = path.array("duration_ns")[distinct]
    longest = int(distinct[int(np.argmax(durations))])
    name, said = _KINDS.get(path.text("kind").values[kind], ("nothing", path.text("kind").values[kind]))
    step = int(path.array("step")[longest])
    at = f", step {step}" if step != MISSING else ""
    what = shortened(path.text("name")[longest], _MAX_NAME)
    title = f"rank {path.array('rank')[longest]}{at}: {said}\n{what}".rstrip()
    return Segment(name, 0, f"{title}\n{unit.text(float(durations.max()))}")


def _step_ends(path: Table, zero: int) -> list[float]:
    step = path.array("step")
    ends = path.array("start_ns") + path.array("duration_ns")
    steps = np.unique(step[step != MISSING])
    if len(steps) > _MAX_EDGES:
        return []
    return [float(ends[step == each].max() - zero) for each in steps[:-1]]


# What would help

_WHAT_IF = """
    SELECT what, saved_ns, step_ns, share_pct FROM what_if
    WHERE kind NOT IN ('recorded', 'replayed') AND saved_ns > 0 ORDER BY saved_ns DESC, what LIMIT 20
"""
_REPLAYED = "SELECT step_ns FROM what_if WHERE kind = 'replayed'"
_WORTH = 0.005  # of the step


def what_if_section(contents: Contents, marks: Marks) -> Html:
    """Only if the rules replayed the job: it takes too long for a page."""
    if "what_if" not in contents.trace.tables:
        return NOTHING
    step = next((ns for (ns,) in contents.trace.sql(_REPLAYED).rows()), 0)
    savings = [each for each in contents.trace.sql(_WHAT_IF).rows() if step and each[1] >= _WORTH * step]
    if not savings:
        return NOTHING
    unit = time_unit(step)
    shown = [
        Bar(
            text(what),
            [Segment("plain", saved, f"{what}: saves {unit.text(saved)}, {unit.text(left)} per step")],
            unit.text(saved),
        )
        for what, saved, left, _ in savings[:10]
    ]
    columns = [Column("If this were as fast as its peers")]
    columns += [Column(f"{name} ({unit.name})", True) for name in ("Saved per step", "Step would take")]
    columns.append(Column("Reduction (%)", True))
    rows = [
        row(
            [
                cell(text(what)),
                cell(unit.number(saved), saved),
                cell(unit.number(left), left),
                cell(number_text(saved / step * 100), saved / step),
            ]
        )
        for what, saved, left, _ in savings
    ]
    return section(
        "what-if",
        "What would help",
        f"The steps replayed, with one thing as fast as its peers. Currently, a step takes {unit.text(step)}.",
        figure("chart-what-if", "Time saved per step", bars(shown, unit)),
        table_below(contents, "what-if", columns, rows, "What would help"),
    )
