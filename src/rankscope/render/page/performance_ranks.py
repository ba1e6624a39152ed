"""What ranks cost each other: which ranks the others wait for and why, waiting and transfer times, pipeline bubbles."""

from __future__ import annotations

from typing import Any

from rankscope.render.html import NOTHING, Html, markup, text
from rankscope.render.listing import Column, cell, row
from rankscope.render.page.chart_marks import Marks
from rankscope.render.page.chart_scale import number_text, size_unit, time_unit
from rankscope.render.page.chart_section import MAX_ROWS, WORST, more_rows, section, table_below
from rankscope.render.page.charts import Bar, Key, Segment, bars, figure
from rankscope.render.page.contents import Contents

# Stragglers

_LEAST_PCT = 0.5  # of the step
_NOBODY = markup('<p class="faint">No rank costs its peers more than {:g}% of a step.</p>', _LEAST_PCT)
_STRAGGLERS = f"""
    SELECT rank, coalesce(cost_ns, 0) AS cost_ns, coalesce(cost_pct, 0), n_late_steps, n_steps, n_peers,
           coalesce(cause, ''), coalesce(n_last, 0), coalesce(caused, 0)
    FROM stragglers
    LEFT JOIN (SELECT rank, any_value(cause) AS cause FROM late_causes WHERE is_main GROUP BY rank) USING (rank)
    LEFT JOIN (SELECT rank, sum(caused_wait_ns)::BIGINT AS caused FROM arrivals GROUP BY rank) USING (rank)
    ORDER BY cost_ns DESC, rank LIMIT {MAX_ROWS}
"""


def straggler_section(contents: Contents, marks: Marks) -> Html:
    table_rows = contents.trace.sql(_STRAGGLERS).rows()
    if not table_rows:
        return NOTHING
    unit = time_unit(max(table_rows[0][1], 1))
    shown = [_straggler_bar(each, marks, unit.text(each[1])) for each in table_rows[:WORST] if each[2] >= _LEAST_PCT]
    columns = [
        Column("Rank", True),
        Column(f"Costs its peers ({unit.name} per step)", True, "Extra communication time of the median peer."),
        Column("Of the step (%)", True),
        Column("Late steps", True),
        Column("Peers", True),
        Column("Why"),
        Column("Joined last", True, "Calls that it joined last; it may have been delayed elsewhere."),
        Column(f"Others waited ({unit.name})", True, "Total over all other ranks, in the calls that it joined last."),
    ]
    rows = [
        row(
            [
                cell(f"{rank}", rank),
                cell(unit.number(cost), cost),
                cell(number_text(percent), percent),
                cell(f"{n_late:,} of {n_steps:,}", n_late),
                cell(f"{n_peers:,}", n_peers),
                cell(text(cause)),
                cell(f"{n_last:,}", n_last),
                cell(unit.number(caused), caused),
            ]
        )
        for rank, cost, percent, n_late, n_steps, n_peers, cause, n_last, caused in table_rows
    ]
    chart = (
        figure("chart-stragglers", "What each rank costs its peers per step", bars(shown, unit)) if shown else _NOBODY
    )
    return section(
        "stragglers",
        "Stragglers",
        "How much longer the median peer spends in communication than this rank, per step. The rank that spends the "
        "least time there is the one that the others wait for.",
        chart,
        table_below(contents, "stragglers", columns, rows, "Ranks"),
        more_rows(len(contents.trace.table("stragglers")), "rank", "rankscope metrics PATH stragglers"),
        _late_parts(contents),
    )


def _straggler_bar(straggler: tuple[Any, ...], marks: Marks, cost: str) -> Bar:
    rank, cost_ns, percent, *_, cause, _, _ = straggler
    because = f" ({cause})" if cause else ""
    said = f"rank {rank} costs its peers {cost} per step, {percent:.1f}% of the step{because}"
    return Bar(marks.label(rank), [Segment("plain", cost_ns, said)], cost + because, rank)


_LATE_PARTS = f"""
    SELECT rank, part, is_main, own_ns, peers_ns, own_ns - peers_ns FROM late_causes
    WHERE own_ns > 0 OR peers_ns > 0 ORDER BY late_ns DESC, rank, own_ns - peers_ns DESC, part LIMIT {MAX_ROWS}
"""


def _late_parts(contents: Contents) -> Html:
    table_rows = contents.trace.sql(_LATE_PARTS).rows()
    if not table_rows:
        return NOTHING
    unit = time_unit(max(own_ns for _, _, _, own_ns, _, _ in table_rows))
    columns = [Column("Rank", True), Column("Part of its step")]
    columns += [Column(f"{name} ({unit.name})", True) for name in ("Its own", "Median peer", "Difference")]
    rows = [
        row(
            [
                cell(f"{rank}", rank),
                cell(markup("<b>{}</b>", part) if is_main else text(part)),
                *(cell(unit.number(value), value) for value in (own_ns, peers, excess)),
            ]
        )
        for rank, part, is_main, own_ns, peers, excess in table_rows
    ]
    about = "What the late ranks spend more time on than their peers,"
    return table_below(contents, "late-parts", columns, rows, about)


# Collectives

_COLLECTIVES = f"""
    SELECT coalesce(group_name, ''), coalesce(op, ''), sum(n_calls)::BIGINT, count(*),
           sum(wait_ns)::BIGINT, sum(transfer_ns)::BIGINT,
           sum(exposed_ns)::BIGINT, arg_min(rank, (wait_ns, rank)), group_key
    FROM comm_waits GROUP BY group_key, group_name, op
    ORDER BY sum(wait_ns) + sum(transfer_ns) DESC, group_key, op LIMIT {MAX_ROWS}
"""


def collective_section(contents: Contents, marks: Marks) -> Html:
    table_rows = contents.trace.sql(_COLLECTIVES).rows()
    if not table_rows:
        return NOTHING
    per_rank = [
        (wait / n_ranks, transfer / n_ranks, exposed / n_ranks)
        for _, _, _, n_ranks, wait, transfer, exposed, *_ in table_rows
    ]
    unit = time_unit(max(wait + transfer for wait, transfer, _ in per_rank))
    shown = []
    for (group, op, *_), (wait, transfer, exposed) in zip(table_rows[:WORST], per_rank, strict=False):
        segments = [
            Segment("waiting", wait, f"waiting for others: {unit.text(wait)}"),
            Segment("communication", transfer, f"moving data: {unit.text(transfer)}"),
        ]
        label = markup("{} <small>{}</small>", op, group)
        shown.append(Bar(label, segments, f"{unit.text(exposed)} exposed"))
    columns = [
        Column("Operation"),
        Column("Group"),
        Column("Ranks", True),
        Column("Calls", True),
        *(
            Column(f"{name} ({unit.name})", True, "Average over ranks.")
            for name in ("Waiting", "Moving data", "Exposed")
        ),
        Column("Waits least", True, "The rank that waits least is the one the others wait for."),
    ]
    rows = [
        row(
            [
                cell(text(op)),
                cell(text(group)),
                cell(f"{n_ranks:,}", n_ranks),
                cell(f"{n:,}", n),
                *(cell(unit.number(value), value) for value in parts),
                cell(marks.label(least) if n_ranks > 1 else "", least),
            ]
        )
        for (group, op, n, n_ranks, _, _, _, least, _), parts in zip(table_rows, per_rank, strict=True)
    ]
    legend = [Key("waiting", "waiting for the last member"), Key("communication", "moving data")]
    return section(
        "collectives",
        "Collectives",
        "Time in the calls of each operation and group, averaged over ranks.",
        figure("chart-collectives", "Waiting and moving data, per operation and group", bars(shown, unit), legend),
        table_below(contents, "collective-waits", columns, rows, "Operations and groups"),
        _bandwidth(contents),
    )


_BANDWIDTH = f"""
    SELECT coalesce(op, ''), coalesce(group_name, ''), group_size, coalesce(n_hosts, -1), n_bytes, n_matches,
           transfer_ns, bus_gbps, slowest_gbps, fastest_gbps
    FROM comm_bandwidth ORDER BY n_matches * transfer_ns DESC, group_key, op, n_bytes LIMIT {MAX_ROWS}
"""


def _bandwidth(contents: Contents) -> Html:
    table_rows = contents.trace.sql(_BANDWIDTH).rows()
    if not table_rows:
        return NOTHING
    unit = time_unit(max(each[6] for each in table_rows))
    columns = [
        Column("Operation"),
        Column("Group"),
        Column("Ranks", True),
        Column("Hosts", True),
        Column("Size", True),
        Column("Calls", True),
        Column(f"Transfer ({unit.name})", True, "Median, once all members had joined."),
        Column("Bus (GB/s)", True, "Median bus bandwidth."),
        Column("Slowest", True),
        Column("Fastest", True),
    ]
    rows = [
        row(
            [
                cell(text(op)),
                cell(text(group)),
                cell(f"{size:,}", size),
                cell(f"{n_hosts:,}" if n_hosts > 0 else "", n_hosts),
                cell(size_unit(n_bytes).text(n_bytes), n_bytes),
                cell(f"{n:,}", n),
                cell(unit.number(transfer), transfer),
                *(cell("" if value is None else number_text(value), value or 0) for value in rates),
            ]
        )
        for op, group, size, n_hosts, n_bytes, n, transfer, *rates in table_rows
    ]
    return table_below(contents, "bandwidth", columns, rows, "Bandwidth of collectives,")


# Pipelines

_BUBBLES = """
    SELECT stage, count(DISTINCT rank), avg(step_ns), avg(compute_ns), avg(bubble_ns),
           avg(wait_ns), avg(transfer_ns), avg(idle_ns)
    FROM pipeline_bubbles GROUP BY stage ORDER BY stage
"""
_BUBBLE_PARTS = (
    ("computation", "computation"),
    ("waiting", "waiting for a neighboring stage"),
    ("plain", "waiting for another member of a collective"),
    ("communication", "moving data"),
    ("nothing", "idle"),
)


def bubble_section(contents: Contents, marks: Marks) -> Html:
    table_rows = contents.trace.sql(_BUBBLES).rows()
    if not table_rows:
        return NOTHING
    unit = time_unit(max(each[2] for each in table_rows))
    shown = [
        Bar(
            f"stage {stage}",
            [
                Segment(kind, value, f"{said}: {unit.text(value)}", f"{value / step * 100:.0f}%")
                for (kind, said), value in zip(_BUBBLE_PARTS, parts, strict=True)
            ],
            f"{parts[1] / step * 100:.0f}% bubble",
        )
        for stage, _, step, *parts in table_rows
        if step
    ]
    columns = [Column("Stage", True), Column("Ranks", True), Column(f"Step ({unit.name})", True)]
    columns += [Column(f"{said.capitalize()} ({unit.name})", True) for _, said in _BUBBLE_PARTS]
    rows = [
        row(
            [cell(f"{stage}", stage), cell(f"{n:,}", n), *(cell(unit.number(value), value) for value in (step, *parts))]
        )
        for stage, n, step, *parts in table_rows
    ]
    legend = [Key(kind, said) for kind, said in _BUBBLE_PARTS]
    return section(
        "bubbles",
        "Pipeline stages",
        "What the compute stream of each stage does in a step, averaged over its ranks.",
        figure("chart-bubbles", "What each pipeline stage does", bars(shown, unit), legend),
        table_below(contents, "stages", columns, rows, "Stages"),
    )
