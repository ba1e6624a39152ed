"""The linked trace as four tables, each complete in itself: nodes with their times, edges, kernels, collectives."""

from __future__ import annotations

_SELECTS = {
    "nodes": """
        SELECT n.*, l.* EXCLUDE (file_id, rank, node_id)
        FROM et_nodes AS n JOIN et_links AS l ON l.file_id = n.file_id AND l.node_id = n.node_id""",
    "edges": "FROM et_edges",
    "kernels": """
        SELECT k.*, l.file_id AS node_file_id, l.node_id
        FROM kernels AS k
        SEMI JOIN (SELECT DISTINCT profile_id, rank FROM et_links) AS p
            ON p.profile_id = k.file_id AND p.rank IS NOT DISTINCT FROM k.rank
        LEFT JOIN et_links AS l
            ON l.profile_id = k.file_id AND l.rank IS NOT DISTINCT FROM k.rank AND l.op_id = k.op_id""",
    "collectives": "FROM et_collectives",
}
# Name of the file -> what it holds, as the FROM of a statement.
LINKED_TABLES = {name: f"({select})" for name, select in _SELECTS.items()}
