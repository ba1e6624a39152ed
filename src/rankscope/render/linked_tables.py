"""The linked trace as four tables, each complete in itself: nodes with their times, edges, kernels, collectives."""

from __future__ import annotations

from rankscope.model.database import database
from rankscope.model.tables import Trace

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
# Name of the file -> the relation that holds it.
LINKED_TABLES = {name: f"linked_{name}" for name in _SELECTS}


def make_linked_tables(trace: Trace) -> None:
    """As views of the trace's database."""
    for table in ("et_links", "et_edges", "et_collectives"):
        trace.table(table)  # made now, so that the views see it
    for name, select in _SELECTS.items():
        database(trace).execute(f"CREATE OR REPLACE TEMP VIEW {LINKED_TABLES[name]} AS {select}").fetchall()
