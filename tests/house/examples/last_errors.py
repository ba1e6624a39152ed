"""The last device error of each rank: a derived table."""

from __future__ import annotations

from rankscope.analyze.derived import table
from rankscope.model.schema import spec
from rankscope.model.tables import Table, Trace

TABLES = (
    spec(
        "last_errors",
        "The last device error of each rank that had one.",
        """
        rank     int32  Global rank.
        time_ns  int64  When it was reported.
        xid      int32  The driver's number for the error.
        """,
        "derived",
        source="device_errors",
    ),
)


@table("last_errors", needs=("device_errors",))
def last_errors(trace: Trace) -> Table:
    errors = sorted(trace.table("device_errors").rows(), key=lambda error: error["time_ns"])
    return Table.from_rows("last_errors", list({error["rank"]: error for error in errors}.values()))
