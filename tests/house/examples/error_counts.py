"""How many device errors each rank had: a metric."""

from __future__ import annotations

from collections import Counter

from rankscope.analyze.metric import Selection, metric
from rankscope.model.schema import spec
from rankscope.model.tables import Table, Trace

TABLES = (
    spec(
        "error_counts",
        "Device errors by rank.",
        """
        rank      int32  Global rank.
        n_errors  int64  Errors of its device.
        """,
        "derived",
        source="device_errors",
    ),
)


@metric("device_errors", "error_counts", needs=("device_errors",))
def error_counts(trace: Trace, selection: Selection) -> Table:
    """One row per rank whose device had errors, the one with the most first."""
    ranks = trace.table("device_errors").array("rank").tolist()
    counts = Counter(rank for rank in ranks if selection.ranks is None or rank in selection.ranks)
    rows = [{"rank": rank, "n_errors": count} for rank, count in counts.most_common()]
    return Table.from_rows("error_counts", rows)
