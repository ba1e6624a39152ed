"""Hardware counters, tied to the operators whose kernels they were measured on."""

from __future__ import annotations

from rankscope.analyze.metric import Selection, metric
from rankscope.model.tables import Table, Trace


@metric("counters", "counter_ops", needs=("counters",))
def counters(trace: Trace, selection: Selection) -> Table:
    """One row per range of hardware counters and counter, with the operators that launched the kernel.

    CUPTI measures one kernel per range and does not say which. Ranges and kernel launches are paired in order of time:
    the first range belongs to the first launch, and so on. That holds only if every launch was measured, so no operator
    is given if a trace has a different number of launches than ranges. The operators are those that were open on the
    launching thread, outermost first.
    """
    in_time = "PARTITION BY file_id, rank ORDER BY start_ns"
    return trace.sql(f"""
        WITH ranges AS (
            SELECT *, row_number() OVER ({in_time}, range_id) AS place FROM (
                SELECT file_id, rank, range_id, any_value(start_ns) AS start_ns FROM counters GROUP BY ALL)
        ), launches AS (
            SELECT *, row_number() OVER ({in_time}, call_id) AS place,
                   count(*) OVER (PARTITION BY file_id, rank) AS n_launches
            FROM runtime_calls WHERE regexp_matches(name, '(cuda|cu|hip)(Module)?Launch(Cooperative)?Kernel')
        ), tied AS (
            SELECT r.file_id, r.rank, r.range_id, l.call_id, l.tid, l.start_ns, l.step
            FROM ranges AS r JOIN launches AS l ON l.file_id = r.file_id AND l.rank = r.rank AND l.place = r.place
            WHERE l.n_launches = (SELECT count(*) FROM ranges AS a WHERE a.file_id = r.file_id AND a.rank = r.rank)
        ), stacks AS (
            SELECT t.file_id, t.rank, t.range_id, list(o.name ORDER BY o.start_ns, o.duration_ns DESC, o.op_id) AS names
            FROM tied AS t JOIN ops AS o ON o.file_id = t.file_id AND o.rank = t.rank AND o.tid = t.tid
                AND o.start_ns <= t.start_ns AND o.start_ns + o.duration_ns > t.start_ns
            GROUP BY t.file_id, t.rank, t.range_id
        )
        SELECT c.file_id, c.rank, c.range_id, c.name, c.counter, c.value, c.duration_ns, t.call_id, s.names[-1] AS op,
               s.names[1] AS top_op, to_json(s.names)::VARCHAR AS op_stack
        FROM (SELECT c.*, t.step FROM counters AS c LEFT JOIN tied AS t USING (file_id, rank, range_id)) AS c
        LEFT JOIN tied AS t USING (file_id, rank, range_id) LEFT JOIN stacks AS s USING (file_id, rank, range_id)
        WHERE {selection.where(alias="c")} ORDER BY c.file_id, c.rank, c.start_ns, c.range_id, c.counter
        """).table("counter_ops")
