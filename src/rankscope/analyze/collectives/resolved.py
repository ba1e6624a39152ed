"""What profilers saw of collectives, with the groups and peers that the Flight Recorder knows for certain."""

from __future__ import annotations

# Members in group order, as JSON without spaces, as execution traces have them too.
MEMBERS = """(
    SELECT group_id, '[' || string_agg(rank, ',' ORDER BY group_rank) || ']' AS ranks FROM group_members GROUP BY ALL
)"""
# Members that only their recorded calls show may be less than all where a rank left no dump.
IS_GUESS = "(g.inferred AND (SELECT count(DISTINCT rank) <= max(rank) FROM ranks))"
# The trace's word comes first where it has one. Members that only their recorded calls show may be less than all. Each
# process counts its transfers alone: their number proves nothing. `partner` is the place of root or peer in its group;
# `generation` is of groups that were made more than once.
RESOLVED_COMMS = f"""(
    SELECT c.* REPLACE (
               coalesce(t.op, c.op) AS op,
               coalesce(c.group_name, g.name) AS group_name, coalesce(c.group_desc, g.description) AS group_desc,
               CASE WHEN c.group_name IS NULL AND NOT g.inferred THEN m.ranks ELSE c.group_ranks END AS group_ranks,
               CASE WHEN c.group_name IS NULL AND NOT g.inferred THEN g.size ELSE c.group_size END AS group_size,
               coalesce(c.seq, CASE WHEN NOT c.is_p2p THEN r.seq END) AS seq,
               CASE WHEN c.op = 'recv' THEN coalesce(t.peer, c.src) ELSE c.src END AS src,
               CASE WHEN c.op = 'send' THEN coalesce(t.peer, c.dst) ELSE c.dst END AS dst),
           t.partner, CASE WHEN g.last_generation > 0 THEN g.generation END AS generation
    FROM comms AS c LEFT JOIN (SELECT * RENAME (row_id AS comm_id) FROM call_twins) AS t USING (file_id, rank, comm_id)
    LEFT JOIN (SELECT group_id, name, description, size, generation, inferred,
                      max(generation) OVER (PARTITION BY name) AS last_generation FROM groups) AS g USING (group_id)
    LEFT JOIN {MEMBERS} AS m USING (group_id)
    LEFT JOIN (SELECT file_id AS recorder_file_id, rank, record_id, seq FROM collectives) AS r
        USING (recorder_file_id, rank, record_id)
)"""
