"""Delays that other traces show: late arrivals at collectives, and steps that took longer than usual."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankscope.analyze.hangs.evidence import call_text, collective_ref, group_ref, group_text
from rankscope.analyze.hangs.view import job_view
from rankscope.model.finding import CollectiveRef, GroupRef, format_duration
from rankscope.model.tables import Trace

_MIN_DELAY_NS = 500_000_000
_MIN_STEPS = 3  # fewer have no usual duration


class Delay(NamedTuple):
    """Time that a rank should not have needed, on its host's clock."""

    rank: int
    start_ns: int
    end_ns: int
    lost_ns: int
    text: str  # after `rank 3`
    key: object  # equal for ranks that delayed the same thing
    group: GroupRef | None = None
    collective: CollectiveRef | None = None


def recorded_delays(trace: Trace) -> list[Delay]:
    """Calls in Flight Recorder dumps that a rank made long after half of its group."""
    view = job_view(trace)
    rows = np.flatnonzero((view.match >= 0) & ~view.is_p2p)
    rows = rows[np.lexsort((view.created[rows], view.match[rows]))]
    if not len(rows):
        return []
    _, starts, counts = np.unique(view.match[rows], return_index=True, return_counts=True)
    middle = view.created[rows[starts + (counts - 1) // 2]]
    lateness = view.created[rows] - np.repeat(middle, counts)
    raw = view.calls.array("created_ns")
    delays = []
    for at in np.flatnonzero(lateness > _MIN_DELAY_NS).tolist():
        row, late = int(rows[at]), int(lateness[at])
        group = int(view.group[row])
        text = f"joined {call_text(view, row)} of {group_text(view, group)}, seq {int(view.seq[row])}, "
        text += f"{format_duration(late)} after half of its members"
        key = ("match", int(view.match[row]))
        end = int(raw[row])
        refs = group_ref(view, group), collective_ref(view, row)
        delays.append(Delay(int(view.rank[row]), end - late, end, late, text, key, *refs))
    return delays


def profiled_delays(trace: Trace) -> list[Delay]:
    """The same from profiler traces, whose times are on a common clock: they are converted back to the host's."""
    sql = f"""
        SELECT calls.rank, (calls.start_ns + coalesce(clocks.offset_ns, 0))::BIGINT, calls.lateness_ns,
               matches.op, calls.match_id, calls.step
        FROM comm_calls calls JOIN comm_matches matches USING (match_id)
        LEFT JOIN profile_clocks clocks ON clocks.file_id = calls.file_id
        WHERE calls.lateness_ns > {_MIN_DELAY_NS} AND NOT matches.is_p2p AND calls.rank IS NOT NULL
        ORDER BY ALL"""
    delays = []
    for rank, end, late, op, match, step in trace.sql(sql).rows():
        where = f" in step {step}" if step is not None else ""
        text = f"joined {op}{where} {format_duration(late)} after half of its members"
        delays.append(Delay(rank, end - late, end, late, text, ("comm", match)))
    return delays


def late_steps(trace: Trace) -> list[Delay]:
    """Steps that took at least half a second, and half as much again, longer than the rank's median step."""
    sql = f"""
        WITH usual AS (SELECT rank, median(duration_ns) AS ns FROM steps GROUP BY rank HAVING count(*) >= {_MIN_STEPS})
        SELECT rank, step, start_ns, duration_ns, usual.ns::BIGINT FROM steps JOIN usual USING (rank)
        WHERE duration_ns - usual.ns > greatest({_MIN_DELAY_NS}, usual.ns / 2) ORDER BY ALL"""
    delays = []
    for rank, step, start, duration, usual in trace.sql(sql).rows():
        text = f"took {format_duration(duration)} for step {step} instead of {format_duration(usual)}"
        delays.append(Delay(rank, start, start + duration, duration - usual, text, ("step", step)))
    return delays
