"""The tables calls and segments: what every source knows of collectives, in the same words."""

from __future__ import annotations

from rankscope.analyze.collectives.matching import MATCHED
from rankscope.analyze.collectives.resolved import IS_GUESS, MEMBERS
from rankscope.analyze.derived import table
from rankscope.model.tables import Table, Trace

_SITES = """(
    SELECT frame_id AS site_id, file || ':' || line || coalesce(' in ' || function, '') AS site FROM frames
)"""
_RECORDER = f"""
    SELECT 'flight_recorder' AS source, c.file_id, c.record_id AS row_id, c.rank, c.group_name, m.ranks AS group_ranks,
           g.generation, CASE WHEN c.is_p2p THEN c.p2p_seq ELSE c.seq END AS position, c.op, c.is_p2p, c.role,
           c.input_sizes AS sizes, try_cast(c.input_dtypes AS VARCHAR[])[1] AS dtype,
           greatest(c.n_input_bytes, c.n_output_bytes) AS n_bytes, c.peer,
           CASE WHEN c.created_ns > 0 THEN c.created_ns END AS start_ns,
           CASE WHEN c.completed_ns > 0 THEN c.completed_ns END AS end_ns, c.status, s.site, c.record_id,
           c.match_id AS recorded_match, NULL AS profiled_match,
           NOT c.is_p2p AND c.role <> 'member' AND c.seq IS NOT NULL AS is_numbered,
           coalesce(g.inferred, true) AS is_inferred, coalesce({IS_GUESS}, false) AS is_guess
    FROM collectives AS c LEFT JOIN groups AS g USING (group_id) LEFT JOIN {MEMBERS} AS m USING (group_id)
    LEFT JOIN {_SITES} AS s USING (site_id)
"""
# Kernels of one collective end together, which shows their group. What gloo runs does not.
_IS_PROVEN = "NOT k.is_inferred OR c.kernel_id IS NOT NULL"
# What only the recorder knows of a call comes from its twin there.
_PROFILER = f"""
    SELECT coalesce(f.source, 'kineto') AS source, c.file_id, c.comm_id AS row_id, c.rank,
           coalesce(g.name, c.group_name, k.name) AS group_name,
           coalesce(m.ranks, CASE WHEN {_IS_PROVEN} THEN replace(k.ranks, ' ', '') END) AS group_ranks, g.generation,
           c.seq, r.seq AS recorded_seq, coalesce(t.op, c.op) AS op, c.is_p2p, 'call' AS role,
           CASE WHEN c.n_in IS NOT NULL THEN '[[' || c.n_in || ']]' END AS sizes,
           c.dtype, c.n_bytes,
           CASE WHEN c.is_p2p THEN coalesce(
               t.peer, CASE c.op WHEN 'send' THEN c.dst ELSE c.src END,
               CASE WHEN {_IS_PROVEN} THEN try_cast(k.ranks AS INTEGER[])[t.partner + 1] END) END AS peer,
           c.start_ns, c.start_ns + c.duration_ns AS end_ns,
           CASE WHEN c.duration_ns IS NOT NULL THEN 'done' END AS status, s.site, t.record_id,
           r.match_id AS recorded_match, CASE WHEN {_IS_PROVEN} THEN o.match_id END AS profiled_match,
           t.group_id IS NULL AND coalesce(k.is_inferred, true) OR coalesce(g.inferred, false) AS is_inferred,
           m.ranks IS NOT NULL AND coalesce({IS_GUESS}, false) AS is_guess
    FROM comms AS c LEFT JOIN (SELECT file_id, source FROM files) AS f USING (file_id)
    LEFT JOIN (SELECT * RENAME (row_id AS comm_id) FROM call_twins) AS t USING (file_id, rank, comm_id)
    LEFT JOIN comm_calls AS o USING (file_id, rank, comm_id) LEFT JOIN comm_groups AS k USING (group_key)
    LEFT JOIN groups AS g ON g.group_id = t.group_id LEFT JOIN {MEMBERS} AS m ON m.group_id = t.group_id
    LEFT JOIN collectives AS r ON r.file_id = t.recorder_file_id AND r.rank = c.rank AND r.record_id = t.record_id
    LEFT JOIN {_SITES} AS s USING (site_id)
"""
_OBSERVER = f"""
    SELECT 'execution_trace' AS source, e.file_id, e.node_id AS row_id, e.rank, e.group_name,
           nullif(replace(e.group_ranks, ' ', ''), '[]') AS group_ranks, g.generation, e.seq, r.seq AS recorded_seq,
           e.op, e.is_p2p,
           'call' AS role, CASE WHEN e.n_in IS NOT NULL THEN '[[' || e.n_in || ']]' END AS sizes, e.dtype,
           coalesce(c.n_bytes, e.n_bytes) AS n_bytes,
           CASE e.op WHEN 'send' THEN e.dst WHEN 'recv' THEN e.src END AS peer,
           c.start_ns, c.start_ns + c.duration_ns AS end_ns,
           CASE WHEN c.duration_ns IS NOT NULL THEN 'done' END AS status, s.site, e.record_id,
           r.match_id AS recorded_match, CASE WHEN {_IS_PROVEN} THEN e.match_id END AS profiled_match,
           coalesce(e.is_inferred, true) AND (g.inferred IS NULL OR g.inferred) AS is_inferred, false AS is_guess
    FROM et_collectives AS e
    LEFT JOIN (SELECT file_id, profile_id FROM et_pairs) AS l USING (file_id)
    LEFT JOIN comms AS c ON c.file_id = l.profile_id AND c.rank = e.rank AND c.comm_id = e.comm_id
    LEFT JOIN comm_calls AS o ON o.file_id = l.profile_id AND o.rank = e.rank AND o.comm_id = e.comm_id
    LEFT JOIN comm_groups AS k USING (group_key)
    LEFT JOIN groups AS g ON g.group_id = e.group_id
    LEFT JOIN collectives AS r ON r.file_id = e.recorder_file_id AND r.rank = e.rank AND r.record_id = e.record_id
    LEFT JOIN {_SITES} AS s USING (site_id)
"""
# In the same file calls are counted where none of the group has a number; with some, the others' place is unknown.
_COUNTED = """
    SELECT * EXCLUDE (seq, recorded_seq), CASE
        WHEN is_p2p THEN row_number() OVER own
        WHEN count(coalesce(seq, recorded_seq)) OVER whole > 0 THEN coalesce(seq, recorded_seq)
        ELSE row_number() OVER own END AS position,
        NOT is_p2p AND coalesce(seq, recorded_seq) IS NOT NULL AS is_numbered
    FROM ({calls})
    WINDOW whole AS (PARTITION BY file_id, rank, group_name, group_ranks, generation, is_p2p),
           own AS (whole ORDER BY start_ns, row_id)
"""
_DESYNC = """
    SELECT 'desync' AS source, file_id, NULL AS row_id, member AS rank, group_name,
           replace(members, ' ', '') AS group_ranks,
           NULL AS generation, seq AS position, lower(op) AS op, false AS is_p2p, 'call' AS role, NULL AS sizes,
           NULL AS dtype, NULL AS n_bytes, NULL AS peer, NULL AS start_ns, NULL AS end_ns,
           CASE state WHEN 'finished' THEN 'done' WHEN 'started' THEN 'waiting' END AS status, NULL AS site,
           NULL AS record_id, NULL AS recorded_match, NULL AS profiled_match, seq IS NOT NULL AS is_numbered,
           false AS is_inferred, false AS is_guess
    FROM desync_states WHERE state IN ('started', 'finished') AND member IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY member, group_name, members ORDER BY time_ns DESC, file_id) = 1
"""
_SOURCES = {
    "collectives": _RECORDER,
    "comms": _COUNTED.format(calls=_PROFILER),
    "et_nodes": _COUNTED.format(calls=_OBSERVER),
    "desync_states": _DESYNC,
}
_SEGMENTS = """
WITH ordered AS (
    SELECT *, row_number() OVER (PARTITION BY source, file_id, rank ORDER BY start_ns, row_id) AS place
    FROM calls WHERE start_ns IS NOT NULL AND role <> 'member' AND source <> 'execution_trace'
), pairs AS (
    SELECT b.source, b.file_id, b.rank, a.group_name, a.group_ranks, a.generation, a.position, b.op AS before_op,
           a.op AS after_op, b.site AS before_site, a.site AS after_site, b.row_id AS before_row_id,
           a.row_id AS after_row_id, coalesce(b.end_ns > a.start_ns, b.end_ns IS NULL) AS is_overlapped,
           CASE WHEN is_overlapped THEN b.start_ns ELSE b.end_ns END AS start_ns, a.start_ns AS end_ns,
           CASE WHEN a.row_id IS NULL THEN b.position END AS last_position,
           CASE WHEN a.row_id IS NULL THEN b.group_ranks END AS last_ranks
    FROM ordered AS b LEFT JOIN ordered AS a
        ON a.source = b.source AND a.file_id = b.file_id AND a.rank = b.rank AND a.place = b.place + 1
)
SELECT *, dense_rank() OVER (
    ORDER BY source, group_name, group_ranks, generation, position, before_op, after_op, before_site, after_site,
             last_ranks, last_position) AS segment_key
FROM pairs ORDER BY segment_key, rank, file_id
"""


@table("calls", needs=("collectives", "comms", "et_nodes", "desync_states"))
def calls(trace: Trace) -> Table:
    sources = [sql for name, sql in _SOURCES.items() if trace.has(name)]
    return trace.sql(MATCHED.format(calls=" UNION ALL BY NAME ".join(f"({sql})" for sql in sources))).table("calls")


@table("segments", needs=("collectives", "comms"))
def segments(trace: Trace) -> Table:
    return trace.sql(_SEGMENTS).table("segments")
