"""The flat database of the Flight Recorder: groups, memberships, tracebacks, collectives and the calls of each rank.

Its tables and columns are those that torch's own analyzer writes, with what that leaves open filled in: tracebacks,
states, times, and the ranks on both sides of a mismatch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankscope.model.call_text import count_elements, decode_shapes
from rankscope.model.sql import quote_name
from rankscope.model.tables import SCHEMA, Trace

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TABLES = ("groups", "memberships", "tracebacks", "collectives", "ncclcalls")

_SETUP = """
CREATE TABLE flat.shapes (encoded VARCHAR, sizes BIGINT[][], n_elements BIGINT);

CREATE VIEW flat.groups AS
SELECT group_id AS id, name, description AS "desc", size, origin, inferred FROM flat.known_groups;

CREATE VIEW flat.memberships AS
SELECT group_id, rank AS global_rank, group_rank FROM main.group_members;

CREATE VIEW flat.tracebacks AS
SELECT stack_id AS id,
       coalesce(list({'name': function, 'filename': file, 'line': line} ORDER BY depth)
                FILTER (WHERE frame_id IS NOT NULL), []) AS frames
FROM (SELECT DISTINCT stack_id FROM flat.known_collectives WHERE stack_id IS NOT NULL)
LEFT JOIN main.stacks USING (stack_id) LEFT JOIN flat.known_frames USING (frame_id)
GROUP BY stack_id ORDER BY stack_id;

CREATE VIEW flat.ncclcalls AS
SELECT row_number() OVER (ORDER BY rank, record_id) - 1 AS id,
       match_id AS collective_id, group_id, rank AS global_rank, stack_id AS traceback_id,
       op AS collective_type, name AS collective_name, inputs.sizes, outputs.sizes AS output_sizes,
       input_dtypes, output_dtypes, record_id, seq AS collective_seq_id, p2p_seq AS p2p_seq_id, peer,
       state, status, created_ns, started_ns, completed_ns, duration_ns
FROM flat.known_collectives
JOIN flat.shapes AS inputs ON inputs.encoded = input_sizes
JOIN flat.shapes AS outputs ON outputs.encoded = output_sizes
ORDER BY id;
"""

# One call speaks for a collective: the first that is like most of the others.
_COLLECTIVES = """
CREATE VIEW flat.collectives AS
WITH variants AS (
    SELECT match_id, op, input_sizes, output_sizes, input_dtypes, output_dtypes,
           count(*) AS n_calls, min(rank) AS first_rank
    FROM flat.known_collectives WHERE match_id IS NOT NULL
    GROUP BY ALL
), usual AS (
    SELECT match_id, first_rank AS rank FROM variants
    QUALIFY row_number() OVER (PARTITION BY match_id ORDER BY n_calls DESC, first_rank) = 1
), speaker AS (
    SELECT calls.* FROM flat.known_collectives AS calls JOIN usual USING (match_id, rank)
    QUALIFY row_number() OVER (PARTITION BY match_id ORDER BY record_id DESC) = 1
), members AS (
    SELECT group_id, list(rank ORDER BY group_rank) AS ranks FROM main.group_members GROUP BY group_id
), absent AS (
    SELECT match_id, list(rank ORDER BY rank) AS ranks
    FROM main.matches JOIN main.group_progress AS progress USING (group_id)
    WHERE n_missing > 0 AND NOT is_p2p AND known AND coalesce(last_seq, -1) < seq
    GROUP BY match_id
    UNION ALL
    SELECT match_id, [CASE WHEN speaker.rank = src THEN dst ELSE src END]
    FROM main.matches JOIN speaker USING (match_id)
    WHERE matches.is_p2p AND n_missing > 0 AND n_done < n_joined
), odd AS (
    SELECT calls.match_id,
           list({'global_rank': calls.rank, 'collective_name': calls.name, 'input_sizes': calls.input_sizes,
                 'output_sizes': calls.output_sizes, 'input_dtypes': calls.input_dtypes,
                 'output_dtypes': calls.output_dtypes} ORDER BY calls.rank) AS calls,
           CASE WHEN bool_or(calls.op <> speaker.op AND NOT matches.is_p2p) THEN 'COLLECTIVE_TYPE_MISMATCH'
                WHEN bool_or(calls.input_dtypes <> speaker.input_dtypes) AND
                     (any_value(speaker.op) LIKE 'all_to_all%' OR bool_and(calls.input_sizes = speaker.input_sizes))
                THEN 'COLLECTIVE_DTYPE_MISMATCH'
                ELSE 'SIZE_OR_SYNTAX_MISMATCH' END AS kind
    FROM main.matches JOIN speaker USING (match_id) JOIN flat.known_collectives AS calls USING (match_id)
    WHERE n_signatures > 1 AND calls.rank <> speaker.rank AND
          ((calls.op, calls.input_sizes, calls.output_sizes) IS DISTINCT FROM
           (speaker.op, speaker.input_sizes, speaker.output_sizes) OR
           (calls.input_dtypes <> '[]' AND speaker.input_dtypes <> '[]' AND
            (calls.input_dtypes, calls.output_dtypes) IS DISTINCT FROM
            (speaker.input_dtypes, speaker.output_dtypes)))
    GROUP BY calls.match_id
)
SELECT matches.match_id AS id, matches.group_id,
       n_signatures = 1 AND absent.ranks IS NULL AS pass_check,
       speaker.seq AS collective_seq_id, speaker.p2p_seq AS p2p_seq_id, speaker.record_id,
       speaker.group_desc AS pg_desc, speaker.name AS collective_name,
       inputs.sizes AS input_sizes, outputs.sizes AS output_sizes,
       CASE WHEN matches.is_p2p THEN [src, dst] ELSE members.ranks END AS expected_ranks,
       matches.state AS collective_state, speaker.stack_id AS traceback_id,
       inputs.n_elements AS input_numel, outputs.n_elements AS output_numel,
       coalesce(absent.ranks, []) AS missing_ranks, coalesce(odd.calls, []) AS mismatch_collectives,
       odd.kind AS type_of_mismatch
FROM main.matches
JOIN speaker USING (match_id)
LEFT JOIN members ON members.group_id = matches.group_id
LEFT JOIN absent ON absent.match_id = matches.match_id
LEFT JOIN odd ON odd.match_id = matches.match_id
JOIN flat.shapes AS inputs ON inputs.encoded = speaker.input_sizes
JOIN flat.shapes AS outputs ON outputs.encoded = speaker.output_sizes
ORDER BY id;
"""


def build_flat_database(connection: DuckDBPyConnection, trace: Trace) -> dict[str, str]:
    """Adds the flat tables to a database of the trace; returns their names there, by their own names."""
    connection.execute("CREATE SCHEMA flat").fetchall()
    for name in ("groups", "collectives", "frames"):
        texts = (quote_name(column.name) for column in SCHEMA[name].columns if column.is_text)
        known = ", ".join(f"coalesce({text}, '') AS {text}" for text in texts)  # the flat tables have no NULL for these
        connection.execute(f"CREATE VIEW flat.known_{name} AS SELECT * REPLACE ({known}) FROM main.{name}").fetchall()
    connection.execute(_SETUP).fetchall()
    calls = trace.table("collectives")
    encoded = sorted({*calls.text("input_sizes").values, *calls.text("output_sizes").values})
    rows = [(text, decode_shapes(text), count_elements(decode_shapes(text))) for text in encoded]
    if rows:
        connection.executemany("INSERT INTO flat.shapes VALUES (?, ?, ?)", rows)
    connection.execute(_COLLECTIVES).fetchall()
    return {name: f"flat.{name}" for name in TABLES}
