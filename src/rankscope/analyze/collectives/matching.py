"""The table call_matches, and the match of each call: one and the same collective over all ranks and all sources.

The Flight Recorder's matches decide where it kept the call: for its own calls, for those that are the same call in
another source, and for what the profiler matched with these. Next comes what the profiler matched; if the recorder kept
it on other ranks only, its number tells. What neither has is matched by its number in its group. Where sources
contradict each other, or where a group was destroyed and recreated and nothing tells which of the two a number is of,
the call has no match.
"""

from __future__ import annotations

from rankscope.analyze.derived import table
from rankscope.model.tables import Table, Trace

# torch has several spellings of one operation: ALLGATHER, _allgather_base, all_gather_coalesced.
_OPERATION = "regexp_replace(lower(op), '_|base|coalesced', '', 'g')"
MATCHED = f"""
WITH named AS (
    SELECT group_name, group_ranks, try_cast(group_ranks AS INTEGER[]) AS members, bool_and(is_inferred) AS is_inferred
    FROM (SELECT DISTINCT group_name, group_ranks, is_inferred FROM ({{calls}})) GROUP BY group_name, group_ranks
    HAVING group_name IS NOT NULL AND members IS NOT NULL
), settled AS (
    SELECT a.group_name, a.group_ranks, min(b.group_ranks) AS all_ranks
    FROM named AS a JOIN named AS b ON a.group_name = b.group_name AND list_has_all(b.members, a.members)
    WHERE a.is_inferred AND NOT b.is_inferred GROUP BY ALL HAVING count(*) = 1
), origins AS (
    SELECT c.* REPLACE (coalesce(s.all_ranks, c.group_ranks) AS group_ranks,
                        is_guess AND s.all_ranks IS NULL AS is_guess),
           CASE WHEN is_numbered AND c.group_ranks IS NOT NULL
           THEN concat_ws('|', c.group_name, coalesce(s.all_ranks, c.group_ranks), position, {_OPERATION})
           END AS number
    FROM ({{calls}}) AS c LEFT JOIN settled AS s USING (group_name, group_ranks)
), clusters AS (
    SELECT profiled_match, count(DISTINCT recorded_match) AS n_recorded, min(recorded_match) AS any_recorded
    FROM origins WHERE profiled_match IS NOT NULL GROUP BY ALL
), witnessed AS (
    SELECT o.*, CASE WHEN recorded_match IS NOT NULL THEN 'recorded ' || recorded_match
                     WHEN n_recorded = 1 THEN 'recorded ' || any_recorded
                     WHEN n_recorded = 0 THEN 'profiled ' || profiled_match END AS witness,
           coalesce(n_recorded > 1, false) AS is_contradicted,
           generation IS NULL AND coalesce(max(generation) OVER (PARTITION BY group_name), 0) > 0 AS is_of_any,
           row_number() OVER (PARTITION BY source, file_id, rank, number ORDER BY start_ns, row_id) AS turn,
           count(*) OVER (PARTITION BY source, file_id, rank, number) AS n_turns
    FROM origins AS o LEFT JOIN clusters USING (profiled_match)
), spread AS (
    SELECT number, count(DISTINCT witness) FILTER (witness LIKE 'recorded %') AS n_recorded_here,
           count(DISTINCT witness) FILTER (witness LIKE 'profiled %') AS n_profiled_here,
           min(witness) FILTER (witness LIKE 'recorded %') AS recorded_here
    FROM witnessed WHERE number IS NOT NULL AND n_turns = 1 AND NOT is_of_any GROUP BY ALL
), joined AS (
    SELECT profiled_match, min(recorded_here) AS joined_witness
    FROM witnessed JOIN spread USING (number)
    WHERE witness LIKE 'profiled %' AND n_turns = 1 AND NOT is_of_any GROUP BY ALL
    HAVING count(DISTINCT recorded_here) = 1 AND max(n_recorded_here) = 1 AND max(n_profiled_here) = 1
), told AS (
    SELECT w.* REPLACE (coalesce(joined_witness, witness) AS witness)
    FROM witnessed AS w LEFT JOIN joined USING (profiled_match)
), numbers AS (
    SELECT number, count(DISTINCT witness) AS n_witnesses, min(witness) AS any_witness,
           min(n_turns) = max(n_turns) AS is_even, bool_or(witness LIKE 'recorded %') AS is_recorded
    FROM told WHERE number IS NOT NULL GROUP BY ALL
), labeled AS (
    SELECT t.*, CASE WHEN is_of_any AND witness LIKE 'profiled %' AND (is_p2p OR is_recorded) THEN NULL
                     WHEN witness IS NOT NULL THEN witness
                     WHEN is_contradicted OR is_of_any THEN NULL
                     WHEN n_witnesses = 1 AND n_turns = 1 THEN any_witness
                     WHEN n_witnesses = 0 AND is_even THEN 'numbered ' || number || ' ' || turn END AS label
    FROM told AS t LEFT JOIN numbers USING (number)
)
SELECT * EXCLUDE (number, is_inferred, witness, is_contradicted, is_of_any, turn, n_turns, label, recorded_match,
                  profiled_match, is_numbered, is_guess)
         REPLACE (CASE WHEN NOT is_guess THEN group_ranks END AS group_ranks),
       CASE WHEN label LIKE 'recorded %' THEN substr(label, 10)::BIGINT
            WHEN label IS NOT NULL THEN coalesce(max(recorded_match) OVER (), -1)
                + dense_rank() OVER (PARTITION BY label IS NULL OR label LIKE 'recorded %' ORDER BY label)
            END AS match_id
FROM labeled
"""
_CALL_MATCHES = """
SELECT match_id, any_value(group_name ORDER BY source) AS group_name,
       any_value(group_ranks ORDER BY source) AS group_ranks, any_value(generation) AS generation,
       CASE WHEN NOT bool_or(is_p2p) THEN min(position) END AS position, mode(op ORDER BY source) AS op,
       bool_or(is_p2p) AS is_p2p,
       min(rank) FILTER (op = 'send') AS src, min(rank) FILTER (op = 'recv') AS dst,
       CASE WHEN bool_or(is_p2p) THEN 2 ELSE len(try_cast(any_value(group_ranks ORDER BY source) AS INTEGER[])) END
           AS n_members,
       count(DISTINCT rank) AS n_ranks, count(*) AS n_calls,
       string_agg(DISTINCT source, ',' ORDER BY source) AS sources,
       CASE WHEN count(DISTINCT regexp_replace(lower(op), '_|base|coalesced', '', 'g')) FILTER (NOT is_p2p) > 1
            THEN true ELSE false END AS is_mixed,
       max(end_ns - start_ns) FILTER (source IN ('kineto', 'nsys')) AS duration_ns,
       any_value(site ORDER BY rank) AS site
FROM calls WHERE match_id IS NOT NULL AND role <> 'member' GROUP BY match_id ORDER BY match_id
"""


@table("call_matches", needs=("collectives", "comms", "et_nodes", "desync_states"))
def call_matches(trace: Trace) -> Table:
    return trace.sql(_CALL_MATCHES).table("call_matches")
