"""The table of desync reports."""

from __future__ import annotations

from rankscope.model.schema import TableSpec, spec

DESYNC_TABLES: tuple[TableSpec, ...] = (
    spec(
        "desync_states",
        "What desync reports say about each rank: its latest collective in each process group.",
        """
        file_id     int32  The report.
        rank        int32  Global rank that wrote the report.
        time_ns     int64  When it was written.
        origin      text   rankscope, or torch for the text of torch's own tracker.
        group_name  text   Name of the group.
        group_desc  text   Description of the group.
        members     text   Global ranks of the group in group order, as JSON; empty if unknown.
        group_rank  int32  The reported rank, as its position in the group.
        member      int32  The same as a global rank; NULL if the members are unknown.
        seq         int64  Sequence number of the rank's latest collective in the group.
        op          text   Its name in torch's terms: ALLREDUCE, _ALLGATHER_BASE, ...
        state       text   started, finished, absent (never joined one) or unreadable.
        """,
    ),
)
