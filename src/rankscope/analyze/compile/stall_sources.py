"""Delays that other traces show: late arrivals at collectives, and steps that took longer than usual."""

from __future__ import annotations

from typing import NamedTuple

from rankscope.analyze.hangs.evidence import call_text, collective_ref, group_ref, group_text
from rankscope.analyze.hangs.view import JobView, job_view
from rankscope.model.clock import POLL_NS
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


# Who joined long after half of the others, per source: the recorder sees a call when the host makes it, the profiler
# when it runs. Of a call that both saw late, the recorder's time counts. What clocks may be wrong by is no lateness; a
# clock that was used as it is may be off by a polling period.
_LATE_CALLS = f"""
WITH arrivals AS (
    SELECT c.*, c.start_ns - coalesce(k.offset_ns, 0) AS arrival_ns, coalesce(k.error_ns, {POLL_NS}) AS error_ns
    FROM calls AS c LEFT JOIN clocks AS k USING (rank)
    WHERE match_id IS NOT NULL AND NOT is_p2p AND role <> 'member' AND start_ns IS NOT NULL
        AND source IN ('flight_recorder', 'kineto', 'nsys')
), late AS (
    SELECT *, (arrival_ns - quantile_disc(arrival_ns, 0.5) OVER together)::BIGINT AS late_ns,
           max(error_ns) OVER together AS largest_error_ns
    FROM arrivals WINDOW together AS (PARTITION BY match_id, source)
)
SELECT l.match_id, l.rank, l.start_ns, l.late_ns, l.op, l.record_id, p.step
FROM late AS l LEFT JOIN (SELECT file_id, rank, comm_id AS row_id, step FROM comm_calls) AS p
    ON l.source <> 'flight_recorder' AND p.file_id = l.file_id AND p.rank = l.rank AND p.row_id = l.row_id
WHERE late_ns > {_MIN_DELAY_NS} + 2 * largest_error_ns
QUALIFY row_number() OVER (PARTITION BY match_id, l.rank ORDER BY l.source <> 'flight_recorder', l.source) = 1
ORDER BY ALL
"""


def late_calls(trace: Trace) -> list[Delay]:
    """Collectives that a rank joined long after half of its group, whichever source saw it."""
    view = job_view(trace) if trace.has("collectives") else None
    rows = {} if view is None else _rows_by_record(view)
    delays = []
    for match, rank, end, late, op, record, step in trace.sql(_LATE_CALLS).rows():
        after = f"{format_duration(late)} after half of its members"
        row = rows.get((rank, record))
        if view is None or row is None:
            where = f" in step {step}" if step is not None else ""
            delays.append(Delay(rank, end - late, end, late, f"joined {op}{where} {after}", match))
            continue
        group = int(view.group[row])
        text = f"joined {call_text(view, row)} of {group_text(view, group)}, seq {int(view.seq[row])}, {after}"
        refs = group_ref(view, group), collective_ref(view, row)
        delays.append(Delay(rank, end - late, end, late, text, match, *refs))
    return delays


def _rows_by_record(view: JobView) -> dict[tuple[int, int], int]:
    records = zip(view.rank.tolist(), view.calls.array("record_id").tolist(), strict=True)
    return {record: row for row, record in enumerate(records)}


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
