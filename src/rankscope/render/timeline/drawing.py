"""Puts the rows of some sources on tracks, and writes them: all of it in columns, the text of the events included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rankscope.model.tables import MISSING, Trace
from rankscope.render.timeline.axis import Axis
from rankscope.render.timeline.chrome import LEAD_NS, ROWS_AT_ONCE, EventFile, label, microseconds
from rankscope.render.timeline.lanes import MAX_LANES, lanes_of
from rankscope.render.timeline.sources import CALL, KERNEL, CounterSource, Source

TRACKS_PER_SECTION = 1_000_000
_PLACE = ("pid", "section", "key", "second_key")
# Rows that agree in all of this are the same to a viewer: files do not depend on the order in which rows were found.
_ORDER = "pid, section, key, second_key, start_ns, duration_ns DESC, name, args, link"


@dataclass(frozen=True)
class Cut:
    """What of the capture is drawn."""

    axis: Axis
    ranks: Sequence[int] | None = None
    since_ns: int | None = None
    until_ns: int | None = None
    least_ns: Mapping[str, int] = field(default_factory=dict)  # shorter rows of these tables are left out

    def of_ranks(self) -> str:
        """A condition on the rank of `e`; MISSING is for rows without a rank."""
        if self.ranks is None:
            return "TRUE"
        return f"coalesce(e.rank, {MISSING}) IN ({', '.join(map(str, self.ranks)) or 'NULL'})"

    def of_time(self, start: str = "start_ns", end: str = "start_ns + greatest(duration_ns, 0)") -> str:
        """A condition on times of the common clock: what overlaps the window is drawn whole."""
        since = "TRUE" if self.since_ns is None else f"{end} >= {self.since_ns}"
        until = "TRUE" if self.until_ns is None else f"{start} < {self.until_ns}"
        return f"{since} AND {until}"

    def of_plausible_time(self, start: str = "start_ns") -> str:
        return f"{start} BETWEEN {self.axis.low_ns} AND {self.axis.high_ns}"

    def of_length(self, table: str) -> str:
        return f"e.duration_ns >= {self.least_ns[table]}" if table in self.least_ns else "TRUE"


class Drawing(NamedTuple):
    """Where events go, what tracks are called, and what has been drawn so far."""

    out: EventFile
    track_name: Callable[[int, int, int], str]  # of a section and the two keys in it
    counts: Counter[str]
    processes: set[int]


def draw_spans(trace: Trace, sources: Sequence[Source], cut: Cut, drawing: Drawing) -> None:
    _collect(trace, sources, cut)
    _mend_times(trace, cut.axis, drawing.counts)
    _set_lanes(trace, drawing.counts)
    _link_launches(trace, drawing.counts)
    drawing.out.write_events(_named_tracks(trace, drawing))
    for lines in _batches(trace, _LINES):
        drawing.out.write(lines)
    for is_instant, n_rows in trace.sql(_N_DRAWN).rows():
        drawing.counts["instants" if is_instant else "spans"] += n_rows
    for name in ("timeline_spans", "timeline_tracks"):
        trace.sql(f"DROP TABLE {name}")


def draw_counters(trace: Trace, sources: Sequence[CounterSource], cut: Cut, drawing: Drawing) -> None:
    for source in sources:
        if source.table in cut.least_ns:
            continue
        rows = f"({source.sql(cut.of_ranks())})"
        kept = f"args <> '' AND {cut.of_plausible_time('time_ns')}"
        since = microseconds(f"greatest(time_ns - {cut.axis.base_ns}, 0) + {LEAD_NS}")
        lines = f"""
        SELECT '{{"ph":"C","pid":' || pid || ',"ts":' || {since} || ',"name":' || to_json(name) || ',"args":{{' || args
               || '}}}}'
        FROM {rows} WHERE {kept} AND {cut.of_time("time_ns", "time_ns")} ORDER BY pid, name, time_ns, args
        """
        for batch in _batches(trace, lines):
            drawing.counts["counters"] += len(batch)
            drawing.out.write(batch)


_CREATE = """
CREATE OR REPLACE TEMP TABLE timeline_spans (
    pid BIGINT, section TINYINT, key BIGINT, second_key BIGINT, start_ns BIGINT, duration_ns BIGINT,
    is_instant BOOLEAN, category VARCHAR, name VARCHAR, args VARCHAR,
    file_id INTEGER, link BIGINT, link_role TINYINT, flow VARCHAR, lane SMALLINT DEFAULT 0
)
"""


def _collect(trace: Trace, sources: Sequence[Source], cut: Cut) -> None:
    """Times are from here on since the beginning of the capture. Implausible ones come along, to be counted."""
    trace.sql(_CREATE)
    for source in sources:
        condition = f"{cut.of_ranks()} AND {cut.of_length(source.table)}"
        trace.sql(
            f"INSERT INTO timeline_spans BY NAME SELECT * REPLACE (start_ns - {cut.axis.base_ns} AS start_ns) "
            f"FROM ({source.sql(condition)}) WHERE ({cut.of_time()}) OR NOT ({cut.of_plausible_time()})"
        )


def _mend_times(trace: Trace, axis: Axis, counts: Counter[str]) -> None:
    low, high = axis.low_ns - axis.base_ns, axis.high_ns - axis.base_ns
    mending = {
        "left_out": f"DELETE FROM timeline_spans WHERE start_ns IS NULL OR start_ns NOT BETWEEN {low} AND {high}",
        "negative": "UPDATE timeline_spans SET duration_ns = 0 WHERE duration_ns < 0 OR duration_ns IS NULL",
        "early": "UPDATE timeline_spans SET duration_ns = greatest(duration_ns + start_ns, 0), start_ns = 0 "
        "WHERE start_ns < 0",
        "long": f"UPDATE timeline_spans SET duration_ns = {high} - start_ns WHERE start_ns + duration_ns > {high}",
    }
    for what, statement in mending.items():
        [(n_rows,)] = trace.sql(statement).rows()
        counts["left_out" if what == "left_out" else "clamped"] += n_rows


def _set_lanes(trace: Trace, counts: Counter[str]) -> None:
    track = f"dense_rank() OVER (ORDER BY {', '.join(_PLACE)})"
    rows = trace.sql(
        f"SELECT rowid AS number, {track} AS place, start_ns, start_ns + duration_ns AS end_ns FROM timeline_spans "
        f"WHERE NOT is_instant ORDER BY place, {_ORDER}"
    ).columns()
    lanes = lanes_of(rows["place"], rows["start_ns"], rows["end_ns"])
    moved = np.flatnonzero(lanes)
    if len(moved):
        trace.sql(
            "UPDATE timeline_spans AS s SET lane = m.lane FROM moved AS m WHERE s.rowid = m.number",
            moved={"number": rows["number"][moved], "lane": lanes[moved]},
        )
        [(n_rows,)] = trace.sql(f"DELETE FROM timeline_spans WHERE lane = {MAX_LANES}").rows()
        counts["crowded"] += n_rows


# A launch of a whole graph has one arrow: to the first of its kernels. At equal times viewers take the longer first.
_LAUNCHES = f"""
CREATE OR REPLACE TEMP TABLE timeline_launches AS
WITH pairs AS (
    SELECT c.rowid AS call_row, arg_min(k.rowid, (k.start_ns, k.key, k.second_key, k.name)) AS kernel_row
    FROM timeline_spans AS c JOIN timeline_spans AS k USING (pid, file_id, link)
    WHERE c.link_role = {CALL} AND k.link_role = {KERNEL} AND k.start_ns > c.start_ns GROUP BY c.rowid
)
SELECT call_row, kernel_row, printf('"bind_id":"0x%x"', $n_flows + row_number() OVER (
    ORDER BY c.pid, c.file_id, c.link, c.start_ns)) AS flow
FROM pairs JOIN timeline_spans AS c ON c.rowid = call_row
"""


def _link_launches(trace: Trace, counts: Counter[str]) -> None:
    trace.sql(_LAUNCHES, n_flows=counts["flows"])
    for end, arrow in (("call_row", "flow_out"), ("kernel_row", "flow_in")):
        [(n_rows,)] = trace.sql(
            f"UPDATE timeline_spans AS s SET flow = l.flow || ',\"{arrow}\":true' "
            f"FROM timeline_launches AS l WHERE s.rowid = l.{end}"
        ).rows()
    counts["flows"] += n_rows
    trace.sql("DROP TABLE timeline_launches")


_TRACKS = f"""
CREATE OR REPLACE TEMP TABLE timeline_tracks AS
SELECT *, section * {TRACKS_PER_SECTION} + row_number() OVER (
    PARTITION BY pid, section ORDER BY key, second_key, lane) AS tid
FROM (SELECT DISTINCT pid, section, key, second_key, lane FROM timeline_spans)
"""
_LINES = f"""
SELECT CASE WHEN is_instant THEN '{{"ph":"i","s":"t","pid":' ELSE '{{"ph":"X","pid":' END || pid || ',"tid":' || tid
       || ',"ts":' || {microseconds(f"start_ns + {LEAD_NS}")}
       || CASE WHEN is_instant THEN '' ELSE ',"dur":' || {microseconds("duration_ns")} END
       || ',"cat":"' || category || '","name":' || to_json(coalesce(name, ''))
       || coalesce(',' || flow, '') || CASE WHEN args = '' THEN '' ELSE ',"args":{{' || args || '}}' END || '}}'
FROM timeline_spans JOIN timeline_tracks USING (pid, section, key, second_key, lane) ORDER BY {_ORDER}
"""
_N_DRAWN = "SELECT is_instant, count(*) FROM timeline_spans GROUP BY is_instant ORDER BY is_instant"


def _named_tracks(trace: Trace, drawing: Drawing) -> Iterator[dict[str, Any]]:
    trace.sql(_TRACKS)
    tracks = trace.sql(f"SELECT {', '.join(_PLACE)}, lane, tid FROM timeline_tracks ORDER BY pid, tid").rows()
    for pid, section, key, second_key, lane, tid in tracks:
        beside = f", lane {lane + 1}" if lane else ""
        drawing.processes.add(pid)
        yield label("thread_name", pid, tid, name=drawing.track_name(section, key, second_key) + beside)
        yield label("thread_sort_index", pid, tid, sort_index=tid)


def _batches(trace: Trace, sql: str) -> Iterator[list[str]]:
    for rows in trace.sql(sql).batches(ROWS_AT_ONCE):
        yield [line for (line,) in rows]
