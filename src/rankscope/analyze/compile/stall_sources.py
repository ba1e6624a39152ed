"""Delays that ranks spent compiling: late arrivals at collectives and longer steps, joined with compile logs in SQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rankscope.analyze.compile.ledger import total_times
from rankscope.analyze.compile.sites import Site, sites_of
from rankscope.analyze.hangs.evidence import call_text, collective_ref, group_ref, group_text
from rankscope.analyze.hangs.view import JobView, job_view
from rankscope.model.clock import POLL_NS
from rankscope.model.finding import CollectiveRef, GroupRef, format_duration
from rankscope.model.tables import Array, Trace

_MIN_DELAY_NS = 500_000_000
_MIN_STEPS = 3  # fewer have no usual duration
_EXPLAINS = 0.5  # of a delay: compiling that took less of it is not its cause


class Delay(NamedTuple):
    """Time that a rank should not have needed, on its host's clock."""

    rank: int
    lost_ns: int
    text: str  # after `rank 3`
    key: object  # equal for ranks that delayed the same thing
    group: GroupRef | None = None
    collective: CollectiveRef | None = None


class Stall(NamedTuple):
    """A delay, and what was compiled during it."""

    kind: str  # call or step
    delay: Delay
    site: Site
    compile_id: str
    compiled_ns: int


# Who joined long after half of the others, per source: the recorder sees a call when the host makes it, the profiler
# when it runs. Of a call that both saw late, the recorder's time counts. What clocks may be wrong by is no lateness; a
# clock that was used as it is may be off by a polling period.
_LATE_CALLS = f"""
    SELECT 'call' AS kind, l.match_id AS key, l.rank, l.start_ns - late_ns AS begin_ns, l.start_ns AS end_ns,
           late_ns AS lost_ns, l.op, l.record_id, p.step, NULL::BIGINT AS took_ns
    FROM (
        SELECT *, (arrival_ns - quantile_disc(arrival_ns, 0.5) OVER together)::BIGINT AS late_ns,
               max(error_ns) OVER together AS largest_error_ns
        FROM (
            SELECT c.*, c.start_ns - coalesce(k.offset_ns, 0) AS arrival_ns, coalesce(k.error_ns, {POLL_NS}) AS error_ns
            FROM calls AS c LEFT JOIN clocks AS k USING (rank)
            WHERE match_id IS NOT NULL AND NOT is_p2p AND role <> 'member' AND start_ns IS NOT NULL
                AND source IN ('flight_recorder', 'kineto', 'nsys')
        ) WINDOW together AS (PARTITION BY match_id, source)
    ) AS l LEFT JOIN (SELECT file_id, rank, comm_id AS row_id, step FROM comm_calls) AS p
        ON l.source <> 'flight_recorder' AND p.file_id = l.file_id AND p.rank = l.rank AND p.row_id = l.row_id
    WHERE late_ns > {_MIN_DELAY_NS} + 2 * largest_error_ns
    QUALIFY row_number() OVER (PARTITION BY match_id, l.rank ORDER BY l.source <> 'flight_recorder', l.source) = 1
"""
# Steps that took at least half a second, and half as much again, longer than the rank's median step.
_LATE_STEPS = f"""
    SELECT 'step' AS kind, step AS key, rank, start_ns AS begin_ns, start_ns + duration_ns AS end_ns,
           (duration_ns - usual_ns)::BIGINT AS lost_ns, NULL AS op, NULL AS record_id, step, duration_ns AS took_ns
    FROM (SELECT *, median(duration_ns) OVER own AS usual_ns, count(*) OVER own AS n_steps FROM steps
          WINDOW own AS (PARTITION BY rank))
    WHERE n_steps >= {_MIN_STEPS} AND duration_ns - usual_ns > greatest({_MIN_DELAY_NS}, usual_ns / 2)
"""
# Forward, backward and what runs alongside them may overlap: the length of their union counts.
_STALLS = f"""
WITH delays AS (
    SELECT *, row_number() OVER (ORDER BY kind, key, rank, begin_ns) AS delay FROM ({{delays}})
), parts AS (
    SELECT d.*, c.place, c.site, greatest(c.begin_ns, d.begin_ns) AS low, least(c.end_ns, d.end_ns) AS high
    FROM delays AS d JOIN compiled AS c ON c.rank = d.rank AND c.begin_ns < d.end_ns AND c.end_ns > d.begin_ns
), added AS (
    SELECT *, greatest(high - greatest(low, coalesce(max(high) OVER before, low)), 0) AS added_ns,
           sum(high - low) OVER (PARTITION BY delay, site) AS at_site_ns
    FROM parts
    WINDOW before AS (PARTITION BY delay ORDER BY low, place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
)
SELECT kind, key, rank, lost_ns, op, record_id, step, took_ns, place, at_site_ns::BIGINT
FROM (SELECT *, sum(added_ns) OVER (PARTITION BY delay) AS compiled_ns FROM added)
WHERE compiled_ns >= {_EXPLAINS} * lost_ns
QUALIFY row_number() OVER (PARTITION BY delay ORDER BY at_site_ns DESC, site, high - low DESC, place) = 1
ORDER BY delay
"""


class _Row(NamedTuple):
    kind: str
    key: int
    rank: int
    lost_ns: int
    op: str | None
    record_id: int | None
    step: int | None
    took_ns: int | None
    place: int
    at_site_ns: int


def stalls_of(trace: Trace) -> Iterator[Stall]:
    """The delays of calls, then those of steps, of which compiling was most."""
    has_calls = trace.has("collectives") or trace.has("comms")
    delays = [sql for is_there, sql in ((has_calls, _LATE_CALLS), (trace.has("steps"), _LATE_STEPS)) if is_there]
    if not delays:
        return
    sites, ids = sites_of(trace).of_row, trace.table("compilations").text("compile_id")
    view = job_view(trace) if trace.has("collectives") else None
    rows = {} if view is None else _rows_by_record(view)
    for columns in trace.sql(_STALLS.format(delays=" UNION ALL ".join(delays)), compiled=_compiled(trace)).rows():
        row = _Row(*columns)
        if row.kind == "step":
            delay = _late_step(row)
        elif view is None or (row.rank, row.record_id) not in rows:
            step = f" in step {row.step}" if row.step is not None else ""
            delay = Delay(row.rank, row.lost_ns, f"joined {row.op}{step} {_after(row)}", row.key)
        else:
            delay = _late_call(view, rows[row.rank, row.record_id or 0], row)
        yield Stall(row.kind, delay, sites[row.place], ids[row.place], row.at_site_ns)


def _compiled(trace: Trace) -> dict[str, Array]:
    """When each rank was compiling what, on its host's clock."""
    table = trace.table("compilations")
    start, duration = table.array("start_ns"), total_times(trace)
    chosen = np.flatnonzero((start > 0) & (duration > 0))
    numbers: dict[Site, int] = {}
    site = np.array([numbers.setdefault(each, len(numbers)) for each in sites_of(trace).of_row], np.int64)
    columns = {"rank": table.array("rank"), "begin_ns": start, "end_ns": start + duration, "site": site}
    return {"place": chosen, **{name: values[chosen] for name, values in columns.items()}}


def _late_step(row: _Row) -> Delay:
    took = row.took_ns or 0
    text = f"took {format_duration(took)} for step {row.step} instead of {format_duration(took - row.lost_ns)}"
    return Delay(row.rank, row.lost_ns, text, ("step", row.key))


def _late_call(view: JobView, call: int, row: _Row) -> Delay:
    group = int(view.group[call])
    text = f"joined {call_text(view, call)} of {group_text(view, group)}, seq {int(view.seq[call])}, {_after(row)}"
    return Delay(row.rank, row.lost_ns, text, row.key, group_ref(view, group), collective_ref(view, call))


def _after(row: _Row) -> str:
    return f"{format_duration(row.lost_ns)} after half of its members"


def _rows_by_record(view: JobView) -> dict[tuple[int, int | None], int]:
    records = zip(view.rank.tolist(), view.calls.array("record_id").tolist(), strict=True)
    return {record: row for row, record in enumerate(records)}
