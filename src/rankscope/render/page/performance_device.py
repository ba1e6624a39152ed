"""What the devices do: communication hidden and exposed, idle time and its causes, the kernels that take longest."""

from __future__ import annotations

from collections import defaultdict

from rankscope.model.finding import count_noun
from rankscope.render.html import NOTHING, Html, joined, markup, text
from rankscope.render.listing import Column, cell, row, table
from rankscope.render.page.chart_marks import Marks
from rankscope.render.page.chart_scale import number_text, time_unit
from rankscope.render.page.chart_section import MAX_ROWS, WORST, more_rows, section, shortened, table_below
from rankscope.render.page.charts import Bar, Key, Segment, bars, figure, meter
from rankscope.render.page.contents import Contents

_KERNELS = 100  # rows of the table of kernels
_MAX_NAME = 160  # characters of a kernel's name; templates make them as long as pages
_MAX_TITLE = 2_000
_ODD = 1.2  # times the median rank's mean duration
_CAUSES = {
    "host": ("operators", "the host was busy elsewhere"),
    "launch": ("runtime", "launching took longer than the kernels"),
    "sync": ("waiting", "the host waited for the device"),
    "data": ("loading", "data loading"),
    "device": ("plain", "launched, but delayed on the device"),
    "unknown": ("nothing", "launch not in the trace"),
}


# Overlap

_OVERLAP = """
    SELECT rank, sum(overlap_ns)::BIGINT, sum(exposed_comm_ns)::BIGINT, sum(comm_ns)::BIGINT
    FROM comm_overlap WHERE comm_ns > 0 GROUP BY rank ORDER BY 3 DESC, rank
"""


def overlap_section(contents: Contents, marks: Marks) -> Html:
    table_rows = contents.trace.sql(_OVERLAP).rows()
    if not table_rows:
        return NOTHING
    unit = time_unit(max(comm for *_, comm in table_rows))
    shown = [
        Bar(
            marks.label(rank),
            [
                Segment("computation", hidden, f"hidden behind computation: {unit.text(hidden)}"),
                Segment("communication", exposed, f"exposed: {unit.text(exposed)}"),
            ],
            f"{hidden / comm * 100:.0f}% hidden",
            rank,
        )
        for rank, hidden, exposed, comm in table_rows[:WORST]
    ]
    legend = [Key("computation", "hidden behind computation"), Key("communication", "exposed")]
    columns = [
        Column("Rank", True),
        *(Column(f"{name} ({unit.name})", True) for name in ("Communication", "Hidden", "Exposed")),
        Column("Hidden (%)", True),
    ]
    rows = [
        row(
            [
                cell(f"{rank}", rank),
                *(cell(unit.number(value), value) for value in (comm, hidden, exposed)),
                cell(number_text(hidden / comm * 100), hidden / comm),
            ]
        )
        for rank, hidden, exposed, comm in table_rows[:MAX_ROWS]
    ]
    return section(
        "overlap",
        "Communication and computation",
        "How much of the communication was hidden behind computation. Waiting for peers in a collective counts as "
        "communication.",
        figure("chart-overlap", "Communication hidden and exposed, per rank", bars(shown, unit), legend),
        table_below(contents, "overlap-ranks", columns, rows, "Ranks"),
        more_rows(len(table_rows), "rank", "rankscope metrics PATH overlap"),
    )


# Idle time

_IDLE = """
    SELECT rank, cause, sum(duration_ns)::BIGINT, count(*), max(duration_ns)::BIGINT
    FROM idle_gaps GROUP BY rank, cause ORDER BY 3 DESC, rank, cause
"""


def idle_section(contents: Contents, marks: Marks) -> Html:
    table_rows = contents.trace.sql(_IDLE).rows()
    if not table_rows:
        return NOTHING
    of_rank: dict[int, dict[str, int]] = defaultdict(dict)
    for rank, cause, idle, *_ in table_rows:
        of_rank[rank][cause] = idle
    order = sorted(of_rank, key=lambda rank: (-sum(of_rank[rank].values()), rank))
    unit = time_unit(sum(of_rank[order[0]].values()))
    shown = []
    for rank in order[:WORST]:
        segments = [
            Segment(kind, of_rank[rank].get(cause, 0), f"{said}: {unit.text(of_rank[rank].get(cause, 0))}")
            for cause, (kind, said) in _CAUSES.items()
        ]
        shown.append(Bar(marks.label(rank), segments, unit.text(sum(of_rank[rank].values())), rank))
    seen = {cause for _, cause, *_ in table_rows}
    legend = [Key(kind, said) for cause, (kind, said) in _CAUSES.items() if cause in seen]
    columns = [
        Column("Rank", True),
        Column("What the next kernel waited for"),
        Column(f"Idle ({unit.name})", True),
        Column("Gaps", True),
        Column(f"Longest ({unit.name})", True),
    ]
    rows = [
        row(
            [
                cell(f"{rank}", rank),
                cell(text(_CAUSES.get(cause, ("", cause))[1])),
                cell(unit.number(idle), idle),
                cell(f"{n:,}", n),
                cell(unit.number(longest), longest),
            ]
        )
        for rank, cause, idle, n, longest in table_rows[:MAX_ROWS]
    ]
    return section(
        "idle",
        "Idle time",
        "Time when nothing ran on any stream of a device, by what the next kernel waited for.",
        figure("chart-idle", "Device idle time by cause, per rank", bars(shown, unit), legend),
        table_below(contents, "idle-causes", columns, rows, "Ranks and causes"),
        more_rows(len(table_rows), "row", "rankscope metrics PATH gaps"),
        _streams(contents),
    )


_STREAM_CAUSES = {
    "host_wait": "launched too late",
    "kernel_wait": "between two kernels",
    "other": "delayed on the device",
}
_STREAMS = f"""
    SELECT rank, device, stream, category, n_gaps, idle_ns, max_ns, coalesce(share_pct, 0) FROM idle_breakdown
    ORDER BY idle_ns DESC, rank, device, stream, category LIMIT {MAX_ROWS}
"""


def _streams(contents: Contents) -> Html:
    table_rows = contents.trace.sql(_STREAMS).rows()
    if not table_rows:
        return NOTHING
    unit = time_unit(table_rows[0][5])
    columns = [
        *(Column(name, True) for name in ("Rank", "Device", "Stream")),
        Column("Why"),
        Column("Gaps", True),
        Column(f"Idle ({unit.name})", True),
        Column(f"Longest ({unit.name})", True),
        Column("Of its idle time (%)", True),
    ]
    rows = [
        row(
            [
                *(cell(f"{number}", number) for number in (rank, device, stream)),
                cell(text(_STREAM_CAUSES.get(category, category))),
                cell(f"{n:,}", n),
                cell(unit.number(idle), idle),
                cell(unit.number(longest), longest),
                cell(number_text(share), share),
            ]
        )
        for rank, device, stream, category, n, idle, longest, share in table_rows
    ]
    return table_below(
        contents, "idle-streams", columns, rows, "Idle time per stream (one may be idle while others run),"
    )


# Kernels

_TOP_KERNELS = f"""
    WITH all_time AS (SELECT sum(total_ns) AS ns FROM kernel_breakdown),
    top AS (
        SELECT name, any_value(type) AS type, sum(n_kernels)::BIGINT AS n, sum(total_ns)::BIGINT AS total_ns,
               count(*) AS n_ranks, median(mean_ns) AS middle, min(mean_ns) AS fastest, max(mean_ns) AS slowest,
               arg_max(rank, (mean_ns, -rank)) AS slowest_rank
        FROM kernel_breakdown GROUP BY name ORDER BY total_ns DESC, name LIMIT {_KERNELS}
    )
    SELECT coalesce(top.name, ''), coalesce(type, ''), n, total_ns, total_ns / greatest(ns, 1),
           n_ranks, middle, fastest, slowest, slowest_rank
    FROM top, all_time ORDER BY total_ns DESC, name
"""


def kernel_section(contents: Contents, marks: Marks) -> Html:
    table_rows = contents.trace.sql(_TOP_KERNELS).rows()
    if not table_rows:
        return NOTHING
    columns = [
        Column("Kernel"),
        Column("Type"),
        Column("Calls", True),
        Column("Time", True, "Sum of all ranks."),
        Column("Share (%)", True, "Share of the time of all kernels, copies and fills, counting overlaps twice."),
        Column("Mean", True, "The median rank."),
        Column("Fastest", True, "Mean of the fastest rank."),
        Column("Slowest", True, "Mean of the slowest rank."),
        Column("Odd rank"),
    ]
    rows = []
    for name, kind, n, total, share, n_ranks, middle, fastest, slowest, slowest_rank in table_rows:
        is_odd = n_ranks >= 3 and slowest > _ODD * middle
        times = f": {slowest / max(middle, 1):.1f} times the median"
        odd = joined([marks.label(slowest_rank), times]) if is_odd else NOTHING
        rows.append(
            row(
                [
                    cell(_kernel_name(name)),
                    cell(text(kind)),
                    cell(f"{n:,}", n),
                    cell(time_unit(total).text(total), total),
                    cell(markup("{} {:.1f}", meter(share, kind), share * 100), share),
                    *(cell(time_unit(value).text(value), value) for value in (middle, fastest, slowest)),
                    cell(odd),
                ]
            )
        )
    said = (
        f"The {_KERNELS} with the most time."
        if len(table_rows) == _KERNELS
        else f"All {count_noun(len(table_rows), 'kernel')}."
    )
    said += f" A rank is odd if its mean is more than {_ODD:g} times the median rank's."
    return section("kernels", "Kernels", said, table(contents.later, "kernels", columns, rows, WORST))


def _kernel_name(name: str) -> Html:
    return markup('<span class="place" title="{}">{}</span>', name[:_MAX_TITLE], shortened(name, _MAX_NAME))
