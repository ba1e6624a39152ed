"""Everything that is drawn: for each kind of row its track, time, name and details."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rankscope.render.timeline.axis import LATEST_NS, UNKNOWN_RANK, Axis
from rankscope.render.timeline.chrome import JOIN_CLOCK, common_clock, json_members

# The sections of a rank, from top to bottom. A track is a section, a key and a second key within it.
FINDINGS, STEPS, COLLECTIVES, THREADS, STREAM_RANGES, STREAMS, COMPILE, STACKS = range(1, 9)
PROFILED_GROUPS = 1 << 32  # keys of groups that only profilers tell of
CALL, KERNEL = 1, 2  # the two ends of a launch
_PROCESS = f"coalesce(e.rank, {UNKNOWN_RANK} + e.file_id)"
_OFFSET = "LEFT JOIN timeline_clocks AS o ON o.rank = e.rank"


def _within(time: str) -> str:
    """Hostile numbers must not make sums overflow."""
    return f"greatest(least({time}, {LATEST_NS}), -{LATEST_NS})"


def _moment_of_profile(column: str) -> str:
    return common_clock(_within(column))


def _moment_of_host(column: str) -> str:
    return f"({_within(column)} - coalesce(o.offset_ns, 0))"


_END = f"({_within('e.start_ns')} + {_within('coalesce(e.duration_ns, 0)')})"


@dataclass(frozen=True)
class Source:
    """A query whose rows `e` are spans on the common clock; if nothing else is said, a profiler's."""

    table: str
    section: int
    category: str
    name: str
    start_ns: str = _moment_of_profile("e.start_ns")
    end_ns: str = common_clock(_END)
    key: str = "0"
    second_key: str = "0"
    numbers: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    joins: str = JOIN_CLOCK
    where: str = "TRUE"
    is_instant: str = "false"
    link: str = "NULL::BIGINT"  # what both ends of a launch have in common
    link_role: int = 0
    flow: str = "NULL::VARCHAR"

    def sql(self, condition: str) -> str:
        return f"""
        SELECT {_PROCESS} AS pid, {self.section} AS section, ({self.key})::BIGINT AS key,
               ({self.second_key})::BIGINT AS second_key, {self.start_ns} AS start_ns,
               {self.end_ns} - {self.start_ns} AS duration_ns, {self.is_instant} AS is_instant,
               '{self.category}' AS category, {self.name} AS name, {json_members(self.numbers, self.texts)} AS args,
               e.file_id, {self.link} AS link, {self.link_role} AS link_role, {self.flow} AS flow
        FROM {self.table} AS e {self.joins} WHERE {self.where} AND {condition}
        """


_THREAD = "coalesce(e.tid, 0)"
_STEP = {"step": "e.step"}
_PROFILER_SPANS = (
    Source(
        *("steps", STEPS, "step", "coalesce('step ' || e.step, e.name)"),
        numbers=_STEP,
        texts={"mark": "e.name"},
    ),
    Source(
        *("ops", THREADS, "cpu_op", "e.name"),
        key=_THREAD,
        numbers={**_STEP, "sequence": "e.sequence_number"},
        texts={"shapes": "e.input_dims", "types": "e.input_types"},
    ),
    Source("python_calls", THREADS, "python", "e.name", key=_THREAD),
    Source(
        "annotations",
        THREADS,
        "annotation",
        "e.name",
        key=_THREAD,
        numbers=_STEP,
        where="e.kind IS DISTINCT FROM 'device'",
    ),
    Source(
        *("annotations", STREAM_RANGES, "annotation", "e.name"),
        key="coalesce(e.stream, 0)",
        numbers=_STEP,
        where="e.kind = 'device'",
    ),
    Source(
        *("runtime_calls", THREADS, "runtime", "e.name"),
        key=_THREAD,
        numbers={**_STEP, "correlation": "e.correlation"},
        link="e.call_id",
        link_role=CALL,
    ),
    Source(
        *("kernels", STREAMS, "kernel", "e.name"),
        key="coalesce(e.device, 0)",
        second_key="coalesce(e.stream, 0)",
        numbers={**_STEP, "correlation": "e.correlation", "bytes": "e.n_bytes"},
        texts={"kind": "e.kind", "type": "e.type", "grid": "e.grid", "block": "e.block"},
        link="e.call_id",
        link_role=KERNEL,
    ),
)
# comm_calls are on the common clock already.
_PROFILED_COLLECTIVES = Source(
    *("comm_calls", COLLECTIVES, "collective", "coalesce(p.op, 'collective')"),
    start_ns=_within("e.start_ns"),
    end_ns=_within("e.end_ns"),
    key=f"{PROFILED_GROUPS} + coalesce(e.group_key, -1)",
    numbers={"seq": "p.seq", **_STEP, "bytes": "p.n_bytes", "ns_waiting": "e.wait_ns"},
    texts={"type": "p.dtype"},
    joins="LEFT JOIN comms AS p "
    "ON p.file_id = e.file_id AND p.comm_id = e.comm_id AND p.rank IS NOT DISTINCT FROM e.rank "
    "LEFT JOIN timeline_chains AS h ON h.file_id = e.file_id AND h.rank = e.rank AND h.number = e.comm_id",
    where="coalesce(e.rank, -1) NOT IN (SELECT rank FROM timeline_recorded)",
    flow="h.flow",
)
PROFILER_SOURCES = (*_PROFILER_SPANS, _PROFILED_COLLECTIVES)

# When a call was seen to start; where that is not recorded, when it was enqueued.
RECORDED_START = _moment_of_host("coalesce(greatest(e.started_ns, e.created_ns), e.created_ns)")
_PARTNER = "CASE e.op WHEN 'send' THEN ' to rank ' WHEN 'recv' THEN ' from rank ' END || e.peer"
_STATUS = "CASE WHEN e.status <> 'done' THEN ' (' || e.status || ')' ELSE '' END"
_PLACE = "f.file || ':' || f.line || coalesce(' in ' || f.function, '')"
_FRAME = "LEFT JOIN frames AS f ON f.frame_id = e.site_id"


def recorded_end(axis: Axis) -> str:
    """Calls that never ended last until the end of the capture."""
    return (
        f"CASE WHEN e.completed_ns > 0 THEN greatest({_moment_of_host('e.completed_ns')}, {RECORDED_START})"
        f" WHEN e.status = 'waiting' THEN greatest({axis.end_ns}, {RECORDED_START})"
        f" ELSE {RECORDED_START} + {_within('coalesce(e.duration_ns, 0)')} END"
    )


def recorded_sources(axis: Axis) -> tuple[Source, ...]:
    """Those that are not from profilers."""
    collectives = Source(
        *("collectives", COLLECTIVES, "collective", f"coalesce(e.op, '') || coalesce({_PARTNER}, '') || {_STATUS}"),
        start_ns=RECORDED_START,
        end_ns=recorded_end(axis),
        key="coalesce(e.group_id, -1)",
        numbers={"seq": "CASE WHEN e.is_p2p THEN e.p2p_seq ELSE e.seq END", "bytes": "e.n_input_bytes"},
        texts={
            "status": "e.status",
            "sizes": "e.input_sizes",
            "types": "e.input_dtypes",
            "role": "nullif(e.role, 'call')",
            "thread": "e.thread",
            "location": _PLACE,
        },
        joins=f"{_OFFSET} {_FRAME} "
        "LEFT JOIN timeline_chains AS h ON h.file_id = e.file_id AND h.rank = e.rank AND h.number = e.record_id",
        flow="h.flow",
    )
    phases = Source(
        *("compile_events", COMPILE, "compile", "e.name"),
        start_ns=_moment_of_host("e.start_ns"),
        end_ns=_moment_of_host(_END),
        key="e.file_id",
        second_key="e.track",
        numbers={"own_ns": "e.own_ns"},
        texts={"compile_id": "e.compile_id", "state": "nullif(e.state, 'span')"},
        joins=_OFFSET,
        is_instant="e.state = 'moment'",
    )
    stacks = Source(
        *("thread_stacks", STACKS, "stack"),
        f"coalesce(e.thread_name, e.thread_id, '') || coalesce(': ' || {_PLACE}, '')",
        start_ns=_moment_of_host("e.time_ns"),
        end_ns=_moment_of_host("e.time_ns"),
        texts={"reason": "e.reason", "thread": "e.thread_id", "stack": "s.stack"},
        joins=f"{_OFFSET} {_FRAME} LEFT JOIN timeline_stacks AS s ON s.stack_id = e.stack_id",
        is_instant="true",
    )
    return collectives, phases, stacks


# Innermost first, one frame per line.
STACKS_SQL = """
CREATE OR REPLACE TEMP TABLE timeline_stacks AS
SELECT t.stack_id, string_agg(
    concat(f.function, ' at ', f.file, ':', f.line), chr(10) ORDER BY t.depth) AS stack
FROM stacks AS t JOIN frames AS f USING (frame_id)
WHERE t.stack_id IN (SELECT stack_id FROM thread_stacks) GROUP BY t.stack_id
"""


class CounterSource(NamedTuple):
    """A query whose rows `e` are values over time, one or more by row."""

    table: str
    name: str
    values: Mapping[str, str]  # SQL of each name, as JSON, and of its value
    time_ns: str
    joins: str = JOIN_CLOCK

    def sql(self, condition: str) -> str:
        values = ", ".join(
            f"CASE WHEN isfinite(({value})::DOUBLE) THEN {name} || ':' || ({value})::VARCHAR END"
            for name, value in self.values.items()
        )
        return f"""
        SELECT {_PROCESS} AS pid, {self.name} AS name, {self.time_ns} AS time_ns, concat_ws(',', {values}) AS args
        FROM {self.table} AS e {self.joins} WHERE {condition}
        """


# The hardware counters of a range hold until its end.
_COUNTER_ENDS = f"""(
    SELECT file_id, rank, counter, value, start_ns FROM counters
    UNION ALL SELECT e.file_id, e.rank, e.counter, 0.0, {_END} FROM counters AS e
)"""
_MEMORY = "'memory ' || coalesce(e.device_type, 'device') || coalesce(':' || e.device, '')"
_BYTES = {"'\"allocated\"'": "e.allocated_bytes", "'\"reserved\"'": "e.reserved_bytes"}
PROFILER_COUNTERS = (
    CounterSource("memory", _MEMORY, _BYTES, _moment_of_profile("e.time_ns")),
    CounterSource(
        _COUNTER_ENDS, "'counter'", {"to_json(e.counter)::VARCHAR": "e.value"}, _moment_of_profile("e.start_ns")
    ),
)
RECORDED_COUNTERS = (
    CounterSource(
        "metrics", "'metric'", {"to_json(e.name)::VARCHAR": "e.value"}, _moment_of_host("e.time_ns"), _OFFSET
    ),
)
